"""A GpuNode as an agent writes it, for the schema of its CRD and for kubectl."""

from __future__ import annotations

from typing import Any

from sharer.core.known import Known
from sharer.core.report.gpu_node import make_gpu_node
from tests.core.nodes import ABOUT, NOW_S


def _stamp(at_s: float) -> str:
    return f"2026-01-01T00:{int(at_s) // 60 % 60:02d}:{int(at_s) % 60:02d}Z"


def published(what: Known) -> dict[str, Any]:
    """The whole object, by JSON names."""
    status = make_gpu_node(what, ABOUT, None, NOW_S, _stamp).status_fields()
    return {"apiVersion": "sharer.dev/v1alpha1", "kind": "GpuNode", "metadata": {"name": "n"}, "status": status}
