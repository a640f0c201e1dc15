"""What containers are given (kubelet-contract §6 to §8, §19 rows 28 to 37 and 39)."""

from __future__ import annotations

import random
import time
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import grpc
import pytest

from sharer.core.quantities import MIB
from sharer.kubeletapi import deviceplugin_pb2 as api
from sharer.simulation.kubelet import ContainerSpec, Phase
from tests.e2e.conftest import MakeNode
from tests.e2e.gpus import GPU, WHOLE, A, B, gpu, gpu_uuid, policy, shared, slices
from tests.e2e.node import Node, Plugin, open_node
from tests.e2e.process import PATIENCE_S, quickest_s

OF_A, OF_B = slices(A, 10, 8192), slices(B, 10, 8192)
LINK_QUERIES = (
    "nvmlDeviceGetTopologyCommonAncestor", "nvmlDeviceGetNvLinkState", "nvmlDeviceGetNvLinkRemoteDeviceType",
    "nvmlDeviceGetNvLinkRemotePciInfo_v2",
)  # fmt: skip
UNBOUNDED = "request: {max: none}"


@pytest.fixture(scope="module")
def spread() -> Iterator[Node]:
    """Two GPUs in ten slices each, spread. For tests that only ask."""
    with open_node(A, B) as node:
        node.kubelet.start()
        node.write_policy(policy(shared(10, "placement: spread", UNBOUNDED)))
        node.start_agent()
        node.wait_listed(20)
        assert sorted(node.ids()) == sorted([*OF_A, *OF_B])
        yield node


@pytest.fixture
def plugin(spread: Node) -> Iterator[Plugin]:
    with spread.plugin() as plugin:
        yield plugin


# -- GetPreferredAllocation


def test_a_container_is_on_one_gpu_where_it_fits_and_on_no_more_than_it_must(plugin: Plugin) -> None:
    """P28, as placement is documented: several slices are one larger share of one GPU. Its four inputs."""
    free = [*OF_A[5:8], *OF_B[3:8]]
    assert gpus_of(plugin.prefer(free, 2)) == {B.uuid}
    assert plugin.prefer(OF_A[5:8], 2) == OF_A[5:7]
    assert sorted(plugin.prefer([*OF_A, *OF_B], 20)) == sorted([*OF_A, *OF_B])
    assert plugin.prefer([*OF_A[:2], *free], 3, must_include=OF_A[:2]) == [*OF_A[:2], OF_A[5]]


@pytest.mark.parametrize(("placement", "gpus"), [("spread", 2), ("packed", 1)])
def test_spread_puts_the_next_pod_on_the_other_gpu_and_packed_on_the_same(
    node: Node, placement: str, gpus: int
) -> None:
    """Contract row 28, P28: the policy says which, and the kubelet follows it."""
    node.write_policy(policy(shared(10, f"placement: {placement}", UNBOUNDED)))
    node.start_agent()
    node.wait_listed(20)
    pods = [node.kubelet.start_pod(name, {GPU: 3}) for name in ("first", "second")]
    assert [len(gpus_of(pod.ids(GPU))) for pod in pods] == [1, 1]
    assert len(gpus_of([*pods[0].ids(GPU), *pods[1].ids(GPU)])) == gpus


def test_a_preference_is_always_lawful_and_always_the_same(plugin: Plugin) -> None:
    """Contract rows 28 and 29, pitfalls 29 to 31: random requests; none is an error, none changes a later answer."""
    chance = random.Random(28)
    everything = [*OF_A, *OF_B, "unknown-1", f"{A.uuid}::ts-99-8192"]
    for _ in range(150):
        available = chance.sample(everything, chance.randint(0, len(everything)))
        size = chance.choice([0, 1, 2, len(available), len(available) + 3, chance.randint(0, 22)])
        must = chance.sample(
            everything if chance.random() < 0.2 else available, chance.randint(0, min(3, len(available)))
        )
        answer = plugin.prefer(available, size, must)
        assert plugin.prefer(chance.sample(available, len(available)), size, must) == answer
        assert len(set(answer)) == len(answer)
        if set(must) <= set(available) and len(must) <= size <= len(available):
            assert len(answer) == size
            assert set(must) <= set(answer) <= set(available)


def test_a_preferred_request_of_65000_ids_or_six_mib_is_answered_within_two_seconds(plugin: Plugin) -> None:
    """Contract row 30. (Most of its IDs are not ours: no list of ours can be so long.)"""
    many = [*OF_A, *OF_B, *(f"{gpu_uuid(7)}::ts-{number}" for number in range(65_000))]
    long = [*OF_A, *OF_B, *(f"{gpu_uuid(7)}::ts-{number}-{'x' * 100}" for number in range(40_000))]
    for available in (many, long):
        assert plugin.prefer(available, 2) == OF_A[:2]
        assert quickest_s(partial(plugin.prefer, available, 2)) < 2


# -- Allocate


def test_each_container_request_gets_one_response_in_order(plugin: Plugin) -> None:
    """Contract row 31, pitfalls 28 and 35: and the order of the IDs within a request changes nothing."""
    [alone] = plugin.allocate(OF_A[:2])
    both_ways = plugin.allocate(OF_A[:2], [OF_B[0]], OF_A[1::-1])
    assert [response == alone for response in both_ways] == [True, False, True]
    assert both_ways[1].envs["SHARER_GPU_UUIDS"] == B.uuid


def test_what_cannot_be_given_is_an_error_that_names_it_and_leaves_nothing_behind(plugin: Plugin) -> None:
    """Contract row 32."""
    before = plugin.allocate([OF_A[0]])
    for ids, words in (
        (["GPU-x::ts-0"], "'GPU-x::ts-0'"),
        ([OF_A[0], f"{A.uuid}::ts-0-4096"], f"'{A.uuid}::ts-0-4096'"),
        ([], "names no device ID"),
    ):
        refusal = refused(plugin, ids)
        assert refusal.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert words in (refusal.details() or "")
    assert plugin.allocate() == []
    assert plugin.allocate([OF_A[0]]) == before


def test_a_slice_of_a_gpu_at_fault_is_refused_with_the_reason_that_the_pods_author_reads(node: Node) -> None:
    """Contract row 32: an Unhealthy ID, which a kubelet asks for if the list crossed its question."""
    node.start_agent()
    node.wait_listed(8)
    node.gpus.xid(A.uuid, 79)
    [first, *_] = ids = slices(A, 4, 20480)
    node.wait_unhealthy(ids)
    with node.plugin() as plugin:
        refusal = refused(plugin, [first])
    assert f"{first!r} cannot run: {A.uuid} is at fault: XID 79" in (refusal.details() or "")


def test_any_ids_of_the_resource_are_given_preferred_or_not(plugin: Plugin) -> None:
    """Contract row 33: slices of one GPU add up, each GPU is named once."""
    [given] = plugin.allocate([OF_A[7], OF_B[2], OF_A[3]])
    assert given.envs["SHARER_DEVICE_IDS"].split(",") == sorted([OF_A[3], OF_A[7], OF_B[2]])
    assert limits_mib(given.envs) == {A.uuid: 16384, B.uuid: 8192}


def test_one_id_goes_to_init_container_sidecar_and_app_in_turn(node: Node) -> None:
    """Contract row 34, pitfall 32, §7: with no free in between, each time with the same content. Neighbour of P27."""
    node.start_agent()
    node.wait_listed(8)
    one = {GPU: 1}
    pod = node.kubelet.start_pod(
        "p",
        init_containers=[
            ContainerSpec(name="i1", limits=one),
            ContainerSpec(name="side", limits=one, sidecar=True),
            ContainerSpec(name="i2", limits=one),
        ],
        containers=[ContainerSpec(name="app", limits=one)],
    )
    assert pod.phase is Phase.RUNNING
    names = ("i1", "side", "i2", "app")
    assert [pod.ids(GPU, name) for name in ("i1", "i2")] == [pod.ids(GPU, name) for name in ("side", "app")]
    for name in names:
        assert pod.env(name)["SHARER_DEVICE_IDS"] == ",".join(pod.ids(GPU, name))


@pytest.mark.parametrize(("memory_mib", "slice_mib"), [((12288, 16384), (3072, 4096)), ((24576, 49152), (6144, 12288))])
def test_limits_follow_from_each_gpus_own_memory(
    make_node: MakeNode, memory_mib: tuple[int, int], slice_mib: tuple[int, int]
) -> None:
    """P26, and P22 as far as it goes without MPS: read back as numbers, one for each GPU of the container."""
    first, second = gpus = [gpu(number, memory_mib=memory_mib[number]) for number in range(2)]
    node = make_node(*gpus)
    node.kubelet.start()
    node.write_policy(policy(shared(4, UNBOUNDED)))
    node.start_agent()
    node.wait_listed(8)
    with node.plugin() as plugin:
        [given] = plugin.allocate([slices(first, 4, slice_mib[0])[3], slices(second, 4, slice_mib[1])[0]])
    assert limits_mib(given.envs) == {first.uuid: slice_mib[0], second.uuid: slice_mib[1]}
    assert limits_mib(node.kubelet.start_pod("p", {GPU: 8}).env()) == {
        first.uuid: memory_mib[0],
        second.uuid: memory_mib[1],
    }


# -- at the same time, and while other things hang


def test_sixteen_allocations_and_starts_run_beside_two_open_streams(spread: Node, plugin: Plugin) -> None:
    """Contract rows 37 and 39, pitfall 26: PreStartContainer, which nobody asked for, is harmless with whatever IDs."""
    streams = [plugin.stub.ListAndWatch(api.Empty(), timeout=PATIENCE_S) for _ in range(2)]
    for stream in streams:
        next(iter(stream))

    def one_container(number: int) -> str:
        plugin.stub.PreStartContainer(api.PreStartContainerRequest(devices_ids=["unknown"]), timeout=PATIENCE_S)
        [given] = plugin.allocate([OF_A[number % 10]])
        return given.envs["SHARER_DEVICE_IDS"]

    with ThreadPoolExecutor(16) as pool:
        assert list(pool.map(one_container, range(64))) == [OF_A[number % 10] for number in range(64)]
    for stream in streams:
        stream.cancel()


def test_a_driver_that_hangs_slow_links_and_an_api_server_that_is_gone_delay_no_pod(make_node: MakeNode) -> None:
    """Contract row 36, pitfall 27, P12: 8 GPUs × 10. A pod's two calls take under a second, also while NVML hangs."""
    gpus = [gpu(number, nvlinks=("switch",) * 4) for number in range(8)]
    node = make_node(*gpus)
    node.kubelet.start()
    for function in LINK_QUERIES:
        node.gpus.delay(function, 0.6)
    whole = f"{{match: {{uuid: [{', '.join(one.uuid for one in gpus[:4])}]}}, strategy: exclusive}}"
    node.write_policy(policy(whole, shared(10, UNBOUNDED)))
    node.start_agent(variables={"KUBERNETES_SERVICE_HOST": "192.0.2.1", "KUBERNETES_SERVICE_PORT": "443"})
    node.wait_listed(40)
    node.wait_listed(4, WHOLE)

    def start_pod(name: str) -> float:
        began_s = time.monotonic()
        assert node.kubelet.start_pod(name, {WHOLE: 1, GPU: 9}).phase is Phase.RUNNING
        return time.monotonic() - began_s

    assert min(start_pod(f"early-{number}") for number in range(2)) < 1
    asked = node.gpus.calls("nvmlDeviceGetCount_v2")
    hanging = node.gpus.hang("nvmlDeviceGetCount_v2")
    node.wake(gpus[0])
    node.gpus.wait_for_calls("nvmlDeviceGetCount_v2", asked + 1)
    assert min(start_pod(f"late-{number}") for number in range(2)) < 1
    node.gpus.clear(hanging)


def test_a_policy_that_cuts_thousands_of_slices_anew_delays_no_pod(make_node: MakeNode) -> None:
    """P12: a plan of 16,000 slices is worked out while pods start."""
    gpus = [gpu(number, memory_mib=2000 * 64) for number in range(8)]
    node = make_node(*gpus)
    node.kubelet.start()
    node.write_policy(policy(shared(2000)))
    agent = node.start_agent()
    node.wait_listed(16_000)
    node.write_policy(policy(shared(1999)))
    node.wake(gpus[0])
    started = 0
    while not agent.said("planned 15992"):
        assert node.kubelet.start_pod(f"p{started}", {GPU: 1}).phase is Phase.RUNNING
        started += 1
    assert started > 3, "each has waited for a part of the plan"


# -- what an answer names


@pytest.mark.parametrize("injection", ["device-nodes", "volume-mounts", "envvar", "cdi", "auto", "cdi,envvar"])
def test_everything_that_an_answer_names_is_there(node: Node, injection: str) -> None:
    """Contract row 35."""
    node.write_driver_spec([A, B])
    node.start_agent(injection=injection)
    node.wait_listed(8)
    given = node.kubelet.start_pod("p", {GPU: 1}).container().given
    assert given is not None
    for mount in given.mounts:
        assert mount.container_path.startswith("/")
        assert mount.host_path == "/dev/null" or node.on_host(mount.host_path).exists()
    for device in given.devices:
        assert device.container_path.startswith("/dev/")
        assert node.on_host(device.host_path).is_char_device()
        assert device.permissions
        assert set(device.permissions) <= set("rwm")
    assert set(given.cdi_names) <= node.cdi_names()
    assert given.cdi_names or given.devices or given.mounts or "NVIDIA_VISIBLE_DEVICES" in given.env


def test_with_cdi_the_answers_of_two_resources_do_not_contradict_each_other(node: Node) -> None:
    """Contract row 35, pitfall 38: of two values for one name the kubelet keeps one, at random."""
    node.write_driver_spec([A, B])
    node.write_policy(policy(f"{{match: {{uuid: [{A.uuid}]}}, strategy: exclusive}}", shared(4)))
    node.start_agent(injection="cdi")
    node.wait_listed(1, WHOLE)
    node.wait_listed(4)
    given = node.kubelet.start_pod("both", {WHOLE: 1, GPU: 1}).container().given
    assert given is not None
    assert given.conflicts == ()
    assert {f"nvidia.com/gpu={one.uuid}" for one in (A, B)} <= set(given.cdi_names) <= node.cdi_names()


def test_slices_that_no_container_could_be_given_are_not_offered_as_healthy(node: Node) -> None:
    """P40: MPS without its daemon. Each pod sent here would fail, and its ReplicaSet would make another."""
    node.write_policy(policy("{match: {}, strategy: mps, slices: 4}"))
    agent = node.start_agent()
    agent.wait_log("no MPS control daemon")
    node.wait_unhealthy([f"{one.uuid}::mps-{replica}-20480-25" for one in (A, B) for replica in range(4)])


def gpus_of(ids: Iterable[str]) -> set[str]:
    return {device_id.partition("::")[0] for device_id in ids}


def limits_mib(env: Mapping[str, str]) -> dict[str, int]:
    """The container's limits as whoever reads the variable would understand them."""
    pairs = (pair.split("=") for pair in env["SHARER_MEMORY_LIMIT_BYTES"].split(","))
    return {uuid: int(limit) // MIB for uuid, limit in pairs}


def refused(plugin: Plugin, ids: list[str]) -> grpc.RpcError:
    with pytest.raises(grpc.RpcError) as error:
        plugin.allocate(ids)
    return error.value
