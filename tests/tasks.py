"""The project's tasks, as `python -m tests TASK`. Developers, CONTRIBUTING and `.ci/run` call only these."""

from __future__ import annotations

import shlex
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SCRIPTS = Path(sysconfig.get_path("scripts"))  # of this environment, which need not be on PATH

CHECKS = (
    ["python", "-m", "ruff", "check"],
    ["python", "-m", "ruff", "format", "--check"],
    ["python", "-m", "mypy"],
    ["lint-imports", "--no-logo"],
    ["python", "-m", "tests", "proto", "--check"],
)


def check(arguments: Sequence[str]) -> int:
    """Lint, format, types, import contracts, generated code. Runs them all, then lists those that failed."""
    if arguments:
        return _misused("check takes no arguments; each command it prints can be run alone")
    failed = [shlex.join(command) for command in CHECKS if _run(command) != 0]
    for command in failed:
        print(f"check: failed: {command}")
    print(f"check: {len(CHECKS) - len(failed)} of {len(CHECKS)} passed")
    return 1 if failed else 0


def test(arguments: Sequence[str]) -> int:
    """The test suite, without GPU or network. Arguments go to pytest: `test -k plan`, `test tests/core`."""
    return _run(["python", "-m", "pytest", *arguments])


def proto(arguments: Sequence[str]) -> int:
    """Write sharer/kubeletapi anew from proto/. With --check: fail if that would change anything."""
    if arguments not in ([], ["--check"]):
        return _misused("proto takes no argument but --check")
    if not arguments:
        return _generate(ROOT / "proto", ROOT)
    differences = generated_differences(ROOT / "proto", ROOT)
    for difference in differences:
        print(f"proto: {difference}")
    return 1 if differences else 0


def bench(arguments: Sequence[str]) -> int:
    """Speed and size beside a bare plugin. Arguments go to tests/bench, in a process of its own."""
    return _run(["python", "-m", "tests.bench", *arguments])


def faults(arguments: Sequence[str]) -> int:
    """Chance: seeded sequences of everything that happens to a node. --seeds N, or --seed S to replay one."""
    return _run(["python", "-m", "tests.faults", *arguments])


def lock(arguments: Sequence[str]) -> int:
    """Write requirements.lock from pyproject.toml; pins stay unless --upgrade or --upgrade-package NAME is given."""
    compile_command = ["python", "-m", "uv", "pip", "compile", "pyproject.toml", "--extra", "dev", "--quiet"]
    portable = ["--universal", "--python-version", "3.11", "--generate-hashes", "--no-emit-index-url"]
    output = ["--custom-compile-command", "python -m tests lock", "--output-file", "requirements.lock"]
    return _run([*compile_command, *portable, *output, *arguments])


TASKS: dict[str, Callable[[Sequence[str]], int]] = {
    "check": check,
    "test": test,
    "proto": proto,
    "bench": bench,
    "faults": faults,
    "lock": lock,
}


def generated_differences(proto_root: Path, generated_root: Path) -> list[str]:
    """What `_generate` would change below `generated_root`, one sentence a file; empty: nothing.

    Raises RuntimeError if the .proto files do not compile; protoc has printed why.
    """
    with tempfile.TemporaryDirectory(prefix="s-") as folder:
        fresh_root = Path(folder)
        if _generate(proto_root, fresh_root) != 0:
            raise RuntimeError(f"the files in {proto_root} do not compile; protoc's own words are above")
        fresh = {path.relative_to(fresh_root): path.read_bytes() for path in fresh_root.rglob("*_pb2*.py*")}
        found = {
            path.relative_to(generated_root): path.read_bytes()
            for path in (generated_root / "sharer" / "kubeletapi").glob("*_pb2*.py*")
        }
    differences = []
    for path in sorted(fresh.keys() | found.keys()):
        if path not in fresh:
            differences.append(f"{path} comes from no file in proto/: delete it")
        elif fresh[path] != found.get(path):
            differences.append(f"{path} is not what proto/ describes: run `python -m tests proto`")
    return differences


def _generate(proto_root: Path, into: Path) -> int:
    sources = sorted(str(path.relative_to(proto_root)) for path in proto_root.rglob("*.proto"))
    plugins = [f"--plugin={name}={SCRIPTS / name}" for name in ("protoc-gen-mypy", "protoc-gen-mypy_grpc")]
    outputs = [f"--python_out={into}", f"--grpc_python_out={into}"]
    stubs = [f"--mypy_out=quiet:{into}", f"--mypy_grpc_out=quiet:{into}"]
    return _run(["python", "-m", "grpc_tools.protoc", f"-I{proto_root}", *plugins, *outputs, *stubs, *sources])


def _run(command: Sequence[str]) -> int:
    """Show a command and run it in the repository's root with this environment's tools. Returns its exit status."""
    print(f"$ {shlex.join(command)}", flush=True)
    program = sys.executable if command[0] == "python" else str(SCRIPTS / command[0])
    return subprocess.run([program, *command[1:]], cwd=ROOT, check=False).returncode


def _misused(sentence: str) -> int:
    print(sentence, file=sys.stderr)
    return 2
