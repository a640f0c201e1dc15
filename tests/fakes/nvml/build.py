"""Builds the C library against NVIDIA's own header, once for each content of its sources."""

from __future__ import annotations

import functools
import importlib.metadata
from collections.abc import Collection
from pathlib import Path

from tests.fakes.compiling import shared_library

NAME = "libnvidia-ml.so.1"
_HERE = Path(__file__).parent
_SOURCES = sorted(_HERE.glob("*.c"))
_HEADERS = sorted(_HERE.glob("*.h"))


def build(missing: Collection[str] = ()) -> Path:
    """The library, without the functions that `missing` names, as in an older driver. Kept for the next test run."""
    hidden = "".join(f"{name}; " for name in sorted(missing))
    return shared_library(
        NAME,
        _SOURCES,
        flags=("-isystem", str(header().parent), f"-Wl,-soname,{NAME}", "-Wl,--version-script=symbols"),
        depends=(header(), *_HEADERS),
        texts={"symbols": f"{{ global: nvml*; node_*; fake_*; local: {hidden}*; }};"},
    )


@functools.cache
def header() -> Path:
    """NVML's official header, from the PyPI package nvidia-nvml-dev. Raises LookupError with what to install."""
    try:
        files = importlib.metadata.files("nvidia-nvml-dev") or []
        return next(Path(str(file.locate())) for file in files if file.name == "nvml.h")
    except (importlib.metadata.PackageNotFoundError, StopIteration):
        raise LookupError(
            "nvml.h is not installed: pip install 'nvidia-nvml-dev>=13.4' (the tests' requirements)"
        ) from None
