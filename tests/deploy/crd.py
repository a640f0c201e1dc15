"""The CustomResourceDefinition of GpuNodes, as it lies in deploy/."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

CRD_FILE = Path(__file__).parents[2] / "deploy/crds/gpunodes.sharer.dev.yaml"


def gpu_node_crd() -> dict[str, Any]:
    """The object, with every anchor resolved."""
    crd = yaml.safe_load(CRD_FILE.read_text())
    assert isinstance(crd, dict)
    return crd
