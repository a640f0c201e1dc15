"""helm against a cluster: what the chart finds there before it installs anything."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from sharer.simulation.apiserver import DAEMON_SET, ApiServer
from tests.deploy.chart import CHART, NAMESPACE, RELEASE, Object, objects, of_kind, run
from tests.deploy.clusters import cluster_kinds, kind_of


@pytest.fixture
def cluster() -> Iterator[ApiServer]:
    with ApiServer(kinds=cluster_kinds()).start() as server:
        yield server


def install(cluster: ApiServer, home: Path, *flags: str) -> tuple[int, str]:
    """The exit status and words of a dry run that may look at the cluster."""
    kubeconfig = home / "kubeconfig"
    kubeconfig.write_text(
        f"""
        {{apiVersion: v1, kind: Config, current-context: here,
         contexts: [{{name: here, context: {{cluster: here, user: me}}}}],
         clusters: [{{name: here, cluster: {{server: "{cluster.url}"}}}}], users: [{{name: me, user: {{token: t}}}}]}}
        """
    )
    done = run(
        "install", RELEASE, CHART, "-n", NAMESPACE, "--dry-run=server", "--kubeconfig", kubeconfig,
        "--disable-openapi-validation", *flags,
    )  # fmt: skip
    return done.returncode, done.stdout + done.stderr


def ours(**metadata: object) -> Object:
    """The agent's DaemonSet of another installation."""
    (made,) = of_kind("DaemonSet", objects())
    return {**made, "metadata": {**made["metadata"], **metadata}}


def test_a_cluster_without_sharer_takes_it(cluster: ApiServer, tmp_path: Path) -> None:
    status, said = install(cluster, tmp_path)
    assert status == 0, said
    assert "NOTES" in said
    assert "nvidia-device-plugin" not in said


def test_a_second_installation_is_refused_with_the_name_of_the_first(cluster: ApiServer, tmp_path: Path) -> None:
    """P11: installed twice, whichever agent goes first takes the other's resource with it."""
    cluster.put(DAEMON_SET, ours(namespace="other"))
    status, said = install(cluster, tmp_path)
    assert status != 0
    assert f"installed already, as release {RELEASE} in namespace other" in said


def test_a_crd_that_an_earlier_release_has_left_is_taken_over_when_asked_for(
    cluster: ApiServer, tmp_path: Path
) -> None:
    """README, "Uninstall": it stays, and Helm takes nothing that is another release's."""
    (crd,) = of_kind("CustomResourceDefinition", objects())
    metadata = crd["metadata"]
    old = {"meta.helm.sh/release-name": "old", "meta.helm.sh/release-namespace": "gpu", **metadata["annotations"]}
    kind = kind_of(crd["apiVersion"], crd["kind"])
    cluster.put(kind, {**crd, "metadata": {**metadata, "annotations": old}})
    status, said = install(cluster, tmp_path)
    assert status != 0
    assert "invalid ownership metadata" in said
    status, said = install(cluster, tmp_path, "--take-ownership")
    assert status == 0, said


def test_nvidia_s_own_plugin_beside_it_is_named(cluster: ApiServer, tmp_path: Path) -> None:
    """P11: the vendor's plugin alongside."""
    plugin = ours(namespace="gpu-operator", name="nvidia-device-plugin-daemonset", labels={"app": "nvidia"})
    cluster.put(DAEMON_SET, plugin)
    status, said = install(cluster, tmp_path)
    assert status == 0, said
    assert "NOTE: gpu-operator/nvidia-device-plugin-daemonset offers GPUs, too" in said


def test_what_openshift_asks_for_beside_the_chart_is_said_there_and_nowhere_else(tmp_path: Path) -> None:
    """Reported of three charts for GPUs: a DaemonSet that wants 3 pods, has 0, and tells nobody but its Events why."""
    scc = kind_of("security.openshift.io/v1", "SecurityContextConstraints")
    with ApiServer(kinds=(*cluster_kinds(), scc)).start() as openshift:
        status, said = install(openshift, tmp_path, "--set", "features.mps=true")
        assert status == 0, said
        assert f"add-scc-to-user privileged -n {NAMESPACE} -z {RELEASE}-agent -z {RELEASE}-mps" in said
        assert "seLinuxOptions.type=spc_t" in said
    with ApiServer(kinds=cluster_kinds()).start() as other:
        assert "add-scc-to-user" not in install(other, tmp_path)[1]
