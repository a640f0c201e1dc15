"""Builds the C library against NVIDIA's own header, once for each content of its sources."""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import os
import shutil
import subprocess
import tempfile
from collections.abc import Collection
from pathlib import Path

NAME = "libnvidia-ml.so.1"
_HERE = Path(__file__).parent
_SOURCES = sorted(_HERE.glob("*.c"))
_HEADERS = sorted(_HERE.glob("*.h"))
_FLAGS = ("-std=gnu17", "-O1", "-g", "-fPIC", "-shared", "-pthread", "-Wall", "-Wextra", "-Werror")


def build(missing: Collection[str] = ()) -> Path:
    """The library, without the functions that `missing` names, as in an older driver. Kept for the next test run."""
    symbols = f"{{ global: nvml*; node_*; fake_*; local: {''.join(f'{name}; ' for name in sorted(missing))}*; }};"
    content = [file.read_bytes() for file in (header(), *_HEADERS, *_SOURCES)]
    key = hashlib.sha256(b"\0".join([*content, symbols.encode(), " ".join(_FLAGS).encode()])).hexdigest()[:16]
    folder = Path(tempfile.gettempdir()) / f"sharer-nvml-{os.getuid()}"
    built = folder / key / NAME
    if not built.exists():
        folder.mkdir(mode=0o700, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder) as scratch:
            (Path(scratch) / "symbols").write_text(symbols)
            _compile(Path(scratch))
            built.parent.mkdir(exist_ok=True)
            os.replace(Path(scratch) / NAME, built)  # whoever builds the same at the same time builds the same
    return built


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


def _compile(scratch: Path) -> None:
    compiler = os.environ.get("CC") or shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        raise LookupError("no C compiler: install gcc, or name one in the variable CC")
    command = [compiler, *_FLAGS, "-isystem", str(header().parent), *map(str, _SOURCES), "-o", str(scratch / NAME)]
    link = [f"-Wl,-soname,{NAME}", f"-Wl,--version-script={scratch / 'symbols'}", "-ldl"]
    done = subprocess.run([*command, *link], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"the simulated NVML does not compile:\n{done.stderr}")
