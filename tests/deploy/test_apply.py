"""kubectl takes the plain manifests: each object goes to a resource that a cluster has, in an order that works."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from sharer.simulation.apiserver import ApiServer
from tests.deploy.chart import PROFILES
from tests.deploy.clusters import cluster_kinds
from tests.deploy.manifests import FOLDER
from tests.deploy.tools import kubectl


@pytest.fixture(scope="module")
def cluster() -> Iterator[ApiServer]:
    """An API server that knows the kinds of the chart's objects, too."""
    with ApiServer(kinds=cluster_kinds()).start() as server:
        yield server


def apply(cluster: ApiServer, *arguments: str, home: Path) -> str:
    command = [str(kubectl()), "--server", cluster.url, "apply", "--server-side", "--validate=false", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, env={"HOME": str(home)}, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("name", PROFILES)
def test_kubectl_applies_every_object_of_the_manifests_and_twice_is_as_once(
    name: str, cluster: ApiServer, tmp_path: Path
) -> None:
    path = FOLDER / f"{name}.yaml"
    wanted = [document["metadata"]["name"] for document in yaml.safe_load_all(path.read_text())]
    tried = apply(cluster, "--dry-run=server", "-f", str(path), home=tmp_path).splitlines()
    assert [line.endswith("serverside-applied (server dry run)") for line in tried] == [True] * len(wanted)
    first = apply(cluster, "-f", str(path), home=tmp_path).splitlines()
    again = apply(cluster, "-f", str(path), home=tmp_path).splitlines()
    assert [line.split("/")[1].split()[0] for line in first] == wanted
    assert again == first
    assert all(line.endswith("serverside-applied") for line in first)
    assert wanted[0] == "sharer", "the namespace is there before what is in it"
