"""The project's tasks, as `python -m tests TASK`. Developers, CONTRIBUTING and `.ci/run` call only these."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from tests.audit import run as run_audit
from tests.proof import CONTRIBUTING, collect, written

ROOT = Path(__file__).resolve().parents[1]
SCRIPTS = Path(sysconfig.get_path("scripts"))  # of this environment, which need not be on PATH

AT_ONCE = ("--numprocesses=4", "--dist=loadfile")  # all tests; some are sooner done than four processes have begun
MOST_UNSTEADY = 10  # tests that fail beside the others are tried alone; more of them are a defect, not a busy machine

CHECKS = (
    ["python", "-m", "ruff", "check"],
    ["python", "-m", "ruff", "format", "--check"],
    ["python", "-m", "mypy"],
    ["lint-imports", "--no-logo"],
    ["python", "-m", "tests", "proto", "--check"],
    ["python", "-m", "tests", "manifests", "--check"],
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
    """The test suite, without GPU or network. Arguments go to pytest: `test -k plan`, `test tests/core`.

    A few that fail while four processes share the machine run once more, alone. Those that pass then are named as
    unsteady: to be mended, and no reason to hold back somebody else's change.
    """
    if arguments:
        return _run(["python", "-m", "pytest", *arguments])
    status = _run(["python", "-m", "pytest", "--cache-clear", *AT_ONCE])
    failed = _last_failed()
    if status != pytest.ExitCode.TESTS_FAILED or len(failed) > MOST_UNSTEADY:
        return status
    status = _run(["python", "-m", "pytest", "--last-failed", "--last-failed-no-failures=none"])
    for name in sorted(set(failed) - set(_last_failed())):
        print(f"test: unsteady: {name} failed beside other tests, and passes alone")
    return status


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


def fuzz(arguments: Sequence[str]) -> int:
    """Every property again with 5,000 examples each, for as long as that takes. Arguments go to pytest."""
    patient = ["-o", "faulthandler_timeout=0"]  # one property takes minutes
    return _run(["python", "-m", "pytest", "-m", "hypothesis", "--hypothesis-profile=fuzz", *patient, *arguments])


def endurance(arguments: Sequence[str]) -> int:
    """An accelerated day, half an hour: what the agent weighs must not grow. --allocations N for a part of it."""
    return _run(["python", "-m", "tests.endurance", *arguments])


def manifests(arguments: Sequence[str]) -> int:
    """Write deploy/manifests anew from the chart. With --check: fail if that would change anything."""
    from tests.deploy.manifests import differences, write  # needs helm

    if arguments not in ([], ["--check"]):
        return _misused("manifests takes no argument but --check")
    if not arguments:
        write()
        return 0
    found = differences()
    for difference in found:
        print(f"manifests: {difference}")
    return 1 if found else 0


def proof(arguments: Sequence[str]) -> int:
    """Write into CONTRIBUTING which test holds which rule of the team's papers."""
    if arguments:
        return _misused("proof takes no arguments")
    found = collect()
    CONTRIBUTING.write_text(written(CONTRIBUTING.read_text(), found))
    for rule in found.missing():
        print(f"proof: no test names {rule}")
    return 1 if found.missing() else 0


def audit(arguments: Sequence[str]) -> int:
    """Look up known holes in what requirements.lock pins. Status 3: it could not be done, so nothing is audited."""
    return _misused("audit takes no arguments") if arguments else run_audit()


def lock(arguments: Sequence[str]) -> int:
    """Write requirements.lock and the image's part of it; pins stay unless --upgrade[-package NAME] is given."""
    everything = ["--extra", "dev", "--output-file", "requirements.lock", *arguments]
    image = [
        "--group",
        "image",
        "--constraint",
        "requirements.lock",
        "--no-annotate",
        "--output-file",
        "deploy/requirements.lock",
    ]
    return _compile_lock(everything) or _compile_lock(image)


TASKS: dict[str, Callable[[Sequence[str]], int]] = {
    "check": check,
    "test": test,
    "proto": proto,
    "manifests": manifests,
    "bench": bench,
    "faults": faults,
    "fuzz": fuzz,
    "endurance": endurance,
    "proof": proof,
    "audit": audit,
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


def _last_failed() -> list[str]:
    """The tests that failed when they last ran, as pytest notes them."""
    note = ROOT / ".pytest_cache" / "v" / "cache" / "lastfailed"
    return list(json.loads(note.read_text())) if note.exists() else []


def _compile_lock(arguments: Sequence[str]) -> int:
    compile_command = ["python", "-m", "uv", "pip", "compile", "pyproject.toml", "--quiet"]
    portable = ["--universal", "--python-version", "3.11", "--generate-hashes", "--no-emit-index-url"]
    return _run([*compile_command, *portable, "--custom-compile-command", "python -m tests lock", *arguments])


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
