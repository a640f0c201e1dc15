"""C libraries of the tests, compiled once for each content of their sources and kept for the next test run."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

_FLAGS = ("-std=gnu17", "-O1", "-g", "-fPIC", "-shared", "-pthread", "-Wall", "-Wextra", "-Werror")


def shared_library(
    name: str,
    sources: Sequence[Path],
    *,
    flags: Sequence[str] = (),
    depends: Sequence[Path] = (),
    texts: Mapping[str, str] | None = None,
) -> Path:
    """The library of that name. `depends`: headers. `texts`: files in the folder that it is compiled in, for its flags.

    Raises LookupError without a compiler, RuntimeError with the compiler's own words.
    """
    texts = texts or {}
    content = [file.read_bytes() for file in (*depends, *sources)]
    words = "\0".join([name, *_FLAGS, *flags, *texts.values()]).encode()
    key = hashlib.sha256(b"\0".join([*content, words])).hexdigest()[:16]
    folder = Path(tempfile.gettempdir()) / f"sharer-compiled-{os.getuid()}"
    built = folder / key / name
    if not built.exists():
        folder.mkdir(mode=0o700, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder) as scratch:
            for file, text in texts.items():
                (Path(scratch) / file).write_text(text)
            _compile(Path(scratch), name, [*map(str, sources), *flags])
            built.parent.mkdir(exist_ok=True)
            os.replace(Path(scratch) / name, built)  # whoever builds the same at the same time builds the same
    return built


def _compile(scratch: Path, name: str, arguments: Sequence[str]) -> None:
    compiler = os.environ.get("CC") or shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        raise LookupError("no C compiler: install gcc, or name one in the variable CC")
    command = [compiler, *_FLAGS, *arguments, "-ldl", "-o", name]
    done = subprocess.run(command, cwd=scratch, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{name} does not compile:\n{done.stderr}")
