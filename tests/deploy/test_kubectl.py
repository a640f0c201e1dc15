"""The real kubectl lists GpuNodes, and whatever else people look at beside them, from the simulated API server."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from sharer.simulation.apiserver import GPU_NODE, NODE, POD, ApiServer, node_object, pod_object
from tests.core.report.sliced import sliced
from tests.deploy.crd import CRD_FILE, gpu_node_crd
from tests.deploy.gpu_nodes import published
from tests.deploy.tools import kubectl
from tests.tasks import ROOT

PATIENCE_S = 60.0


class Kubectl:
    """kubectl as a user of one server."""

    def __init__(self, folder: Path, server: ApiServer) -> None:
        self._folder = folder
        self.plugins = folder / "plugins"  # on its PATH
        self.plugins.mkdir()
        self._kubeconfig = folder / "kubeconfig"
        self._kubeconfig.write_text(
            f"""
            {{apiVersion: v1, kind: Config, current-context: here,
             contexts: [{{name: here, context: {{cluster: here, user: me}}}}],
             clusters: [{{name: here, cluster: {{server: "{server.url}"}}}}],
             users: [{{name: me, user: {{token: t1}}}}]}}
            """
        )

    def __call__(self, *arguments: str, text: str | None = None, fails: bool = False) -> str:
        """What it prints. `text` is its standard input."""
        ended = self.run(f"--cache-dir={self._folder / 'cache'}", *arguments, text=text)
        assert (ended.returncode != 0) is fails, ended.stderr
        return ended.stderr if fails else ended.stdout

    def run(self, *arguments: str, text: str | None = None) -> subprocess.CompletedProcess[str]:
        """How it ends. Whose cluster it is about is in KUBECONFIG, which reaches plugins too."""
        return subprocess.run(
            [kubectl(), *arguments],
            input=text,
            check=False,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            env={
                **os.environ,
                "KUBECONFIG": str(self._kubeconfig),
                "PATH": f"{self.plugins}:{os.environ['PATH']}",
                "PYTHONPATH": str(ROOT),
            },
        )

    def rows(self, *arguments: str) -> list[list[str]]:
        """A table's lines, cut where two spaces or more stand between two columns."""
        lines = self(*arguments).splitlines()
        return [[cell.strip() for cell in line.split("  ") if cell.strip()] for line in lines]


@pytest.fixture
def server() -> Iterator[ApiServer]:
    with ApiServer().start() as server:
        server.define(gpu_node_crd())
        for name in ("node-1", "node-2"):
            server.put(NODE, node_object(name))
        server.put(GPU_NODE, gpu_node("node-1"))
        yield server


@pytest.fixture
def run(tmp_path: Path, server: ApiServer) -> Kubectl:
    return Kubectl(tmp_path, server)


def gpu_node(name: str) -> dict[str, Any]:
    return {**published(sliced(4, gpus=2, holders=3)), "metadata": {"name": name}}


def test_get_gpunodes_is_a_report(run: Kubectl) -> None:
    header, row = run.rows("get", "gpunodes")
    assert header == [
        "NAME", "GPUS", "PRODUCT", "RESOURCE", "SLICES", "HELD", "FREE", "QUARANTINED", "POLICY", "STATE", "AGE",
    ]  # fmt: skip
    assert row[:7] == ["node-1", "2", "NVIDIA A100-SXM4-80GB", "nvidia.com/gpu.shared", "8", "3", "5"]
    assert "no policy" in row


def test_wide_short_name_and_category_work(run: Kubectl) -> None:
    header, row = run.rows("get", "gn", "-o", "wide")
    assert header[-6:] == ["DRAINING", "UNHEALTHY", "DRIVER", "INJECTION", "AGENT", "CHANGED"]
    assert "580.95.05" in row
    by_category, by_name = run.rows("get", "sharer"), run.rows("get", "gpunodes")
    assert [row[:-1] for row in by_category] == [row[:-1] for row in by_name], "but for the age"


def test_pods_and_nodes_are_listed_beside_them(run: Kubectl, server: ApiServer) -> None:
    server.put(POD, pod_object("train", node="node-1", phase="Running"))
    text = run("get", "nodes,pods,gpunodes")
    for name in ("node/node-1", "node/node-2", "pod/train", "gpunode.sharer.dev/node-1"):
        assert name in text


def test_a_gpu_node_is_described_and_its_fields_are_explained(run: Kubectl) -> None:
    assert "Largest Free Bytes" in run("describe", "gpunode", "node-1")
    assert "no heartbeat" in run("explain", "gpunodes.status.observedAt").lower()


def test_fields_are_read_by_path_and_what_is_missing_is_said(run: Kubectl) -> None:
    assert run("get", "gn", "node-1", "-o", "jsonpath={.status.summary.held}") == "3"
    assert 'gpunodes.sharer.dev "nope" not found' in run("get", "gn", "nope", fails=True)


def test_objects_are_applied_by_client_and_by_server_dry_and_for_good(run: Kubectl, server: ApiServer) -> None:
    text = yaml.safe_dump({"apiVersion": "sharer.dev/v1alpha1", "kind": "GpuNode", "metadata": {"name": "node-2"}})
    assert "created (server dry run)" in run("apply", "--dry-run=server", "-f", "-", text=text)
    assert server.get(GPU_NODE, "node-2") is None
    assert "created" in run("apply", "-f", "-", text=text)
    assert "configured" in run("apply", "-f", "-", text=text.replace("name:", "labels: {a: b}\n  name:"))
    assert "serverside-applied" in run("apply", "--server-side", "-f", "-", text=text)
    assert "deleted" in run("delete", "gn", "node-2")


def test_a_field_that_the_crd_does_not_know_is_refused_by_name(run: Kubectl) -> None:
    wrong = {"apiVersion": "sharer.dev/v1alpha1", "kind": "GpuNode", "metadata": {"name": "node-3"}, "spec": {"a": 1}}
    assert 'unknown field "spec"' in run("apply", "-f", "-", text=yaml.safe_dump(wrong), fails=True)


@pytest.fixture
def plugin(run: Kubectl) -> Kubectl:
    """A kubectl that finds our plugin, as pip installs it: the entry points of pyproject.toml."""
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    for name in ("kubectl-sharer", "kubectl_complete-sharer"):
        module, _, function = scripts[name].partition(":")
        program = run.plugins / name
        program.write_text(f'#!/bin/sh\nexec {sys.executable} -c "from {module} import {function} as it; it()" "$@"\n')
        program.chmod(0o755)
    return run


def test_kubectl_sharer_reports_the_cluster_and_passes_its_status_on(plugin: Kubectl, server: ApiServer) -> None:
    shown = plugin.run("sharer", "report", "--node", "node-1", "-o", "csv")
    assert shown.returncode == 0
    assert [line.partition(",")[0] for line in shown.stdout.splitlines()] == ["node", "node-1", "node-1"]
    assert plugin.run("sharer", "report", "--context", "here", "-n", "default").returncode == 0
    assert plugin.run("sharer", "report", "--sort-by", "nothing").returncode == 2
    server.forbid("list", "pods")
    assert plugin.run("sharer", "report").returncode == 3


@pytest.mark.parametrize(
    ("words", "completed"),
    [
        (("",), "report"),
        (("report", "--sort-by", "la"), "largest-free"),
        (("report", "-o", ""), "wide"),
        (("report", "--context", ""), "here"),
        (("policy", "ro"), "rollback"),
    ],
)
def test_kubectl_completes_what_follows_its_plugin(plugin: Kubectl, words: tuple[str, ...], completed: str) -> None:
    done = plugin.run("__complete", "sharer", *words)
    assert completed in [line.partition("\t")[0] for line in done.stdout.splitlines()]
    assert "ShellCompDirectiveNoFileComp" in done.stderr


def test_kubectl_leaves_files_to_the_shell(plugin: Kubectl) -> None:
    assert "ShellCompDirectiveDefault" in plugin.run("__complete", "sharer", "policy", "plan", "pol").stderr


def test_kubectl_reads_the_crd_file_as_one_object() -> None:
    assert len(list(yaml.safe_load_all(CRD_FILE.read_text()))) == 1
