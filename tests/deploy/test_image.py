"""The image, without an engine: the first stage's RUN lines, as they stand, in a folder of their own."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.deploy.agent_image import Image
from tests.tasks import ROOT

DOCKERFILE = ROOT / "deploy" / "Dockerfile"
LARGEST_BYTES = 160 * 10**6


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Image:
    folder = tmp_path_factory.mktemp("image")
    probe = [sys.executable, "-m", "pip", "download", "--no-deps", "--no-cache-dir", "-d", str(folder), "mdurl"]
    asked = subprocess.run(probe, capture_output=True, text=True, check=False)
    if asked.returncode != 0:
        pytest.skip(f"an image needs a package index: {asked.stderr.strip().splitlines()[-1]}")
    return Image.build(DOCKERFILE, folder)


def test_the_steps_make_a_program_that_runs(image: Image) -> None:
    assert image.sharer("--version").startswith("sharer")


def test_a_policy_is_checked_by_the_image_as_by_this_tree(image: Image) -> None:
    assert image.sharer("policy", "check", str(ROOT / "config" / "default.yaml")).endswith(": fine\n")


def test_everything_that_an_agent_may_load_is_there(image: Image) -> None:
    """What was taken out for its size is missed by nobody."""
    modules = [
        "sharer.daemon", "sharer.outside", "sharer.adapters.kube.transport", "sharer.adapters.documents",
        "sharer.pages", "sharer.adapters.metrics", "sharer.simulation.scenario", "prometheus_client", "tomli_w",
    ]  # fmt: skip
    image.python("-W", "error", "-c", f"import {', '.join(modules)}")


def test_every_module_is_compiled_so_that_a_start_need_not_do_it(image: Image) -> None:
    """Missing bytecode makes a start six times slower (DESIGN §10)."""
    sources = [path for path in image.packages.rglob("*.py") if "lib2to3" not in path.parts]
    compiled = [
        path
        for path in sources
        if (path.parent / "__pycache__" / f"{path.stem}.{sys.implementation.cache_tag}.pyc").exists()
    ]
    assert len(sources) > 500
    assert [path for path in sources if path not in set(compiled)] == []


def test_the_bytecode_does_not_depend_on_the_files_times(image: Image) -> None:
    (compiled,) = (image.packages / "sharer" / "__pycache__").glob(f"daemon.{sys.implementation.cache_tag}.pyc")
    flags = int.from_bytes(compiled.read_bytes()[4:8], "little")
    assert flags == 0b01, "hash-based and unchecked (PEP 552)"


def test_nothing_that_only_installing_needs_is_left(image: Image) -> None:
    names = {path.name.lower() for path in image.packages.iterdir()}
    assert not {"pip", "setuptools"} & names
    assert not any(name.startswith(("pytest", "mypy", "aws_cdk", "kubernetes_validate")) for name in names)


def test_the_size_is_what_the_dockerfile_says(image: Image) -> None:
    size_bytes = sum(path.stat().st_size for path in image.root.rglob("*") if path.is_file() and not path.is_symlink())
    (said,) = re.findall(r"is some\n?# ?([0-9]+) MB|some ([0-9]+) MB", DOCKERFILE.read_text().replace("\n# ", " "))
    assert abs(size_bytes / 10**6 - int("".join(said))) < 25
    assert size_bytes < LARGEST_BYTES


def test_the_image_s_packages_are_the_project_s_and_pinned_alike() -> None:
    def pins(path: Path) -> dict[str, str]:
        return dict(re.findall(r"^([A-Za-z0-9._-]+)==([^ ]+)", path.read_text(), re.MULTILINE))

    everything, ours = pins(ROOT / "requirements.lock"), pins(ROOT / "deploy" / "requirements.lock")
    named = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    wanted = {canonicalize_name(Requirement(one).name) for one in named}
    assert ours.items() <= everything.items()
    assert wanted <= ours.keys()


def test_it_does_not_run_as_root_unless_it_is_told_to() -> None:
    assert re.findall(r"^USER (.*)$", DOCKERFILE.read_text(), re.MULTILINE) == ["65532:65532"]


def test_only_what_is_copied_is_sent_to_the_builder() -> None:
    copied = [line.split()[1:-1] for line in DOCKERFILE.read_text().splitlines() if line.startswith("COPY ")]
    named = {name for names in copied for name in names if not name.startswith(("--from", "/"))}
    ignored = (ROOT / ".dockerignore").read_text().split()
    assert {f"!{name}" for name in named} == {line for line in ignored if line.startswith("!")}
    assert all((ROOT / name).exists() for name in named)
