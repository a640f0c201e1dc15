"""Publishing to the simulated API server that holds the real CRD: what is stored, and what a whole fleet asks."""

from __future__ import annotations

import datetime
import random
from collections.abc import Iterator
from dataclasses import replace

import pytest

from sharer.adapters.kube.access import InCluster, Kubeconfig, own_namespace
from sharer.adapters.kube.client import KubeClient
from sharer.core.api_error import ApiError
from sharer.core.change.rollout import PolicyInForce
from sharer.core.holders.observations import ApiTroubleKind, NodeSeen
from sharer.core.inventory import Inventory
from sharer.core.known import About
from sharer.flows.state import NodeView
from sharer.flows.tell.publish import APART_S, CHECK_S, FLEET_SPREAD_S, Living, Publishing
from sharer.flows.tell.report import stamper
from sharer.simulation.apiserver import GPU_NODE, KINDS, LEASE, NODE, ApiServer, Fail, node_object
from tests.adapters.kube.lab import NODE_NAME, KubeLab
from tests.core.builders import gpu, node
from tests.deploy.crd import gpu_node_crd

FLEET = 200
NOW_S = 1000.0
NOW = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
VIEW = NodeView(inventory=node(gpu(0), gpu(1)))


@pytest.fixture
def server() -> Iterator[ApiServer]:
    with ApiServer().start() as server:
        server.define(gpu_node_crd())
        server.put(NODE, node_object(NODE_NAME, uid="uid-of-node"))
        yield server


class Link:
    def __init__(self, client: KubeClient, uid: str | None = "uid-of-node") -> None:
        self.client: KubeClient | None = client
        self.node = None if uid is None else NodeSeen(uid=uid, name=NODE_NAME)


def publishing(client: KubeClient, name: str = NODE_NAME, seed: int = 0) -> Publishing:
    about = About(node_name=name, version="1.2.3", kernel="6.1.0", cgroup="v2")
    uniform = random.Random(seed).uniform
    return Publishing(Link(client, None), about, stamper(NOW_S, 1_800_000_000.0), lease=f"gpu/{name}", uniform=uniform)


def writes(server: ApiServer) -> int:
    """To GpuNodes, so far."""
    return sum(count for (verb, resource), count in server.counts().items()
               if verb != "get" and (resource or "").startswith("gpunodes"))  # fmt: skip


def test_a_node_is_published_as_its_crd_wants_it(lab: KubeLab, server: ApiServer) -> None:
    publishing(lab.client()).publish(VIEW, NOW_S)
    obj = server.get(GPU_NODE, NODE_NAME)
    assert obj is not None
    assert obj["metadata"]["ownerReferences"] == [
        {"apiVersion": "v1", "kind": "Node", "name": NODE_NAME, "uid": "uid-of-node"}
    ]
    assert obj["metadata"]["annotations"] == {"sharer.dev/lease": f"gpu/{NODE_NAME}"}
    assert obj["status"]["summary"]["gpus"] == 2
    assert obj["status"]["node"] == {
        "driver": "580.95.05", "kernel": "6.1.0", "cgroup": "v2", "injection": None, "injectionReason": None,
    }  # fmt: skip


def test_what_is_left_out_next_time_is_gone(lab: KubeLab, server: ApiServer) -> None:
    mine = publishing(lab.client())
    mine.publish(replace(VIEW, driver_problem="it hangs"), NOW_S)
    mine.publish(replace(VIEW, inventory=Inventory(driver_version=None, gpus=())), NOW_S + APART_S)
    mine.publish(replace(VIEW, inventory=Inventory(driver_version=None, gpus=())), NOW_S + APART_S + FLEET_SPREAD_S)
    obj = server.get(GPU_NODE, NODE_NAME)
    assert obj is not None
    assert (obj["status"]["gpus"], obj["status"]["warnings"]) == ([], [])


def test_an_object_is_looked_at_and_made_again(lab: KubeLab, server: ApiServer) -> None:
    mine = publishing(lab.client())
    mine.publish(VIEW, NOW_S)
    before = writes(server)
    mine.check(VIEW, NOW_S + CHECK_S[1])
    assert writes(server) == before
    server.delete(GPU_NODE, NODE_NAME)
    mine.check(VIEW, NOW_S + CHECK_S[1] * 2)
    assert server.get(GPU_NODE, NODE_NAME) is not None


def test_a_cluster_without_the_crd_is_told_in_one_sentence(lab: KubeLab) -> None:
    with ApiServer(kinds=[kind for kind in KINDS if kind is not GPU_NODE]).start() as bare:
        bare.put(NODE, node_object(NODE_NAME))
        client = KubeLab(lab.folder, bare).client()
        with pytest.raises(ApiError, match="deploy/crds/gpunodes.sharer.dev.yaml") as raised:
            publishing(client).publish(VIEW, NOW_S)
        client.close()
    assert raised.value.kind is ApiTroubleKind.REFUSED


def test_an_agent_without_the_right_is_told_which_rule_it_lacks(lab: KubeLab, server: ApiServer) -> None:
    """P36."""
    server.forbid("patch", "gpunodes/status")
    mine = publishing(lab.client())
    with pytest.raises(ApiError, match=r'apiGroups: \["sharer.dev"\], resources: \[gpunodes/status\]'):
        mine.publish(VIEW, NOW_S)
    server.allow("patch", "gpunodes/status")
    mine.publish(VIEW, NOW_S + 300.0)
    assert server.counts()["patch", "gpunodes"] == 1  # what was done is not done again


def test_a_throttled_agent_hears_when_to_come_back(lab: KubeLab, server: ApiServer) -> None:
    """P33."""
    server.fail_next(Fail(code=429, retry_after_s=9), verb="patch", resource="gpunodes")
    with pytest.raises(ApiError) as raised:
        publishing(lab.client()).publish(VIEW, NOW_S)
    assert (raised.value.kind, raised.value.retry_after_s) == (ApiTroubleKind.THROTTLED, 9.0)


def test_a_lease_is_the_nodes_and_names_its_agent(lab: KubeLab, server: ApiServer) -> None:
    Living(Link(lab.client()), NODE_NAME, "gpu", now=lambda: NOW).renew(VIEW, NOW_S)
    lease = server.get(LEASE, NODE_NAME, "gpu")
    assert lease is not None
    assert lease["spec"] == {
        "holderIdentity": NODE_NAME, "leaseDurationSeconds": 300, "renewTime": "2026-01-01T00:00:00.000000Z",
    }  # fmt: skip
    assert lease["metadata"]["ownerReferences"][0]["uid"] == "uid-of-node"


def test_an_agent_knows_its_namespace_in_a_pod_only(lab: KubeLab) -> None:
    (lab.folder / "namespace").write_text("gpu\n")
    assert own_namespace(InCluster(directory=lab.folder)) == "gpu"
    assert own_namespace(InCluster(directory=lab.folder / "none")) is None
    assert own_namespace(Kubeconfig(path=lab.folder)) is None
    assert own_namespace(None) is None


def test_an_idle_fleet_writes_nothing_and_one_that_changes_at_once_does_so_over_half_a_minute(
    lab: KubeLab, server: ApiServer
) -> None:
    """P33: 200 agents; what they ask is counted by the server."""
    client = lab.client()
    names = [f"node-{number:03d}" for number in range(FLEET)]
    for name in names:
        server.put(NODE, node_object(name))
    fleet = [publishing(client, name, seed) for seed, name in enumerate(names)]
    for one in fleet:
        one.publish(VIEW, NOW_S)
    assert writes(server) == 2 * FLEET  # each object, and its status

    for hour in range(1, 4):
        for one in fleet:
            assert one.publish(replace(VIEW), NOW_S + hour * 3600.0) is None
    assert writes(server) == 2 * FLEET

    refused = replace(VIEW, policy=PolicyInForce(refused="rules[0]: no"))
    changed_s = NOW_S + 20_000.0
    due_s = [one.publish(refused, changed_s) or 0.0 for one in fleet]
    per_second = [sum(second <= at_s - changed_s < second + 1.0 for at_s in due_s) for second in range(30)]
    assert sum(per_second) == FLEET
    assert max(per_second) <= 20  # 6.7 on average
    assert writes(server) == 2 * FLEET
    for one in fleet:
        one.publish(refused, changed_s + FLEET_SPREAD_S)
    assert writes(server) == 3 * FLEET
