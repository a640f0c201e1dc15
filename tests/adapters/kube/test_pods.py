"""From the API server's JSON to the core's words: pods, this node, the policies' ConfigMap."""

from __future__ import annotations

import msgspec
import pytest

from sharer.adapters.kube.pods import pod_seen
from sharer.adapters.kube.watches import watch_config_map, watch_node
from sharer.adapters.kube.wire import Pod
from sharer.core.holders.observations import ConfigMapSeen, ContainerKind, ContainerSeen, NodeSeen, PodPhase, PodSeen
from sharer.simulation.apiserver import (
    CONFIG_MAP,
    NODE,
    Object,
    config_map_object,
    container_object,
    node_object,
    pod_object,
)
from tests.adapters.kube.lab import NODE_NAME, KubeLab, Told

GPU = "nvidia.com/gpu.shared"


def seen(obj: Object) -> PodSeen:
    obj["metadata"].setdefault("uid", "uid1")
    return pod_seen(msgspec.json.decode(msgspec.json.encode(obj), type=Pod))


def test_a_pod_is_read_with_what_sharer_acts_on() -> None:
    pod = pod_object("train", namespace="ml", node="node-1", phase="Running", limits={GPU: 2, "cpu": "500m"})
    assert seen(pod) == PodSeen(
        uid="uid1",
        cgroup_uid="uid1",
        namespace="ml",
        name="train",
        phase=PodPhase.RUNNING,
        node_name="node-1",
        containers=(ContainerSeen(name="main", kind=ContainerKind.APP, limits={GPU: 2}),),
    )


def test_a_deletion_time_is_seen() -> None:
    assert seen(pod_object("a", deleting=True)).is_deleting
    assert not seen(pod_object("a")).is_deleting


def test_a_static_pod_is_known_by_its_manifest_s_hash() -> None:
    """The mirror in the API has an UID of its own; cgroup and checkpoint carry the hash (runtime-facts 44)."""
    mirror = seen(pod_object("static-node-1", uid="api-uid", static_uid="0123456789abcdef0123456789abcdef"))
    assert (mirror.uid, mirror.cgroup_uid) == ("api-uid", "0123456789abcdef0123456789abcdef")
    assert mirror.is_static
    assert not seen(pod_object("a")).is_static


def test_a_copied_hash_annotation_alone_does_not_make_a_pod_static() -> None:
    copied = seen(
        pod_object("a", annotations={"kubernetes.io/config.hash": "beef", "kubernetes.io/config.source": "api"})
    )
    assert copied.cgroup_uid == "uid1"


def test_containers_come_in_the_kubelet_s_order_with_their_kinds() -> None:
    pod = pod_object(
        "a",
        init_containers=[container_object("fetch", {GPU: 1}), container_object("proxy", {}, sidecar=True)],
        containers=[container_object("one", {GPU: 1}), container_object("two", {})],
    )
    assert [(one.name, one.kind, dict(one.limits)) for one in seen(pod).containers] == [
        ("fetch", ContainerKind.INIT, {GPU: 1}),
        ("proxy", ContainerKind.SIDECAR, {}),
        ("one", ContainerKind.APP, {GPU: 1}),
        ("two", ContainerKind.APP, {}),
    ]


def test_a_container_s_id_is_the_runtime_s_without_its_scheme_and_none_before_the_first_start() -> None:
    pod = pod_object(
        "a",
        init_containers=[container_object("proxy", {}, sidecar=True)],
        containers=[container_object("one", {}), container_object("two", {}), container_object("three", {})],
    )
    pod["status"]["initContainerStatuses"] = [{"name": "proxy", "containerID": "containerd://aa"}]
    pod["status"]["containerStatuses"] = [
        {"name": "one", "containerID": "cri-o://bb"},
        {"name": "two", "containerID": ""},
    ]
    assert [one.container_id for one in seen(pod).containers] == ["aa", "bb", None, None]


@pytest.mark.parametrize(
    ("resource", "amount", "count"),
    [
        (GPU, "3", 3),
        (GPU, "1k", 1000),
        (GPU, "2Ki", 2048),
        (GPU, "0", None),
        (GPU, "half", None),
        ("cpu", "4", None),
        ("hugepages-2Mi", "4", None),
        ("node.kubernetes.io/thing", "4", None),
        ("kubernetes.io/batteries", "4", None),
        ("example.com/nic", "4", 4),
    ],
)
def test_only_extended_resources_are_counted(resource: str, amount: str, count: int | None) -> None:
    (container,) = seen(pod_object("a", limits={resource: amount})).containers
    assert container.limits == ({} if count is None else {resource: count})


@pytest.mark.parametrize(
    ("text", "phase"), [("Failed", PodPhase.FAILED), ("", PodPhase.UNKNOWN), ("New", PodPhase.UNKNOWN)]
)
def test_a_phase_that_is_not_known_says_nothing(text: str, phase: PodPhase) -> None:
    assert seen(pod_object("a", phase=text)).phase is phase
    assert PodPhase.SUCCEEDED.is_terminal
    assert not PodPhase.UNKNOWN.is_terminal


def test_a_pod_with_nothing_but_an_identity_can_be_read() -> None:
    pod = msgspec.json.decode(b'{"metadata":{"name":"a","uid":"u"},"spec":{"containers":null}}', type=Pod)
    assert pod_seen(pod).containers == ()


# ---- the node and the policies


def test_this_node_s_labels_and_our_annotations_are_followed(lab: KubeLab) -> None:
    told: Told[NodeSeen | None] = Told()
    lab.server.put(NODE, node_object("node-2", labels={"sharer.dev/policy": "other"}))
    lab.run(watch_node(lab.client(), NODE_NAME, told, pause=lab.pauses))
    assert told.next() is None
    lab.server.wait_watches(1)
    lab.server.put(
        NODE,
        node_object(
            NODE_NAME,
            uid="n1",
            labels={"sharer.dev/policy": "small"},
            annotations={"sharer.dev/recover": "GPU-1@2026-01-01T00:00:00Z", "other/large": "x" * 1000},
        ),
    )
    node = told.next()
    assert node is not None
    assert (node.uid, node.labels["sharer.dev/policy"]) == ("n1", "small")
    assert node.annotations == {"sharer.dev/recover": "GPU-1@2026-01-01T00:00:00Z"}
    lab.server.delete(NODE, NODE_NAME)
    assert told.next() is None


def test_the_policies_are_followed_with_rights_on_that_one_config_map(lab: KubeLab) -> None:
    """resourceNames with list and watch work only with a selector of the name (api-server-facts §8)."""
    told: Told[ConfigMapSeen | None] = Told()
    lab.grant_policy_only("sharer", "sharer-policy")
    lab.run(watch_config_map(lab.client(), "sharer", "sharer-policy", told, pause=lab.pauses))
    assert told.next() is None
    lab.server.wait_watches(1)
    lab.server.put(CONFIG_MAP, config_map_object("sharer-policy", {"default": "one"}, namespace="sharer"))
    first = told.next()
    lab.server.put(CONFIG_MAP, config_map_object("sharer-policy", {"default": "two"}, namespace="sharer"))
    second = told.next()
    assert first is not None
    assert second is not None
    assert (first.data, second.data) == ({"default": "one"}, {"default": "two"})
    assert first.resource_version != second.resource_version
    assert lab.pauses.none


def test_what_is_not_utf_8_in_a_config_map_is_followed_too(lab: KubeLab) -> None:
    """Neighbour of P05: kubectl puts a file that Windows PowerShell has written under `binaryData`."""
    told: Told[ConfigMapSeen | None] = Told()
    lab.server.put(
        CONFIG_MAP,
        config_map_object("sharer-policy", {"a100": "one"}, namespace="sharer")
        | {"binaryData": {"default": "//5hAA=="}},
    )
    lab.run(watch_config_map(lab.client(), "sharer", "sharer-policy", told, pause=lab.pauses))
    found = told.next()
    assert found is not None
    assert (found.data, found.binary) == ({"a100": "one"}, {"default": "a".encode("utf-16")})
