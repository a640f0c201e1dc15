"""Every container is held to its promise as soon as it can be, and what is reported as held was read back."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from sharer.core.errors import NodeError
from sharer.core.holders.observations import ContainerKind, ContainerSeen, PodPhase, PodSeen
from sharer.core.policy.enforcers import Promise
from sharer.core.policy.model import MemoryPolicy, Mig, OnExceed
from sharer.core.quantities import GIB
from sharer.simulation.gpus import SimulatedGpus
from sharer.simulation.memory_limits import LimitBackend
from tests.adapters.nvml.gpus import mig
from tests.core.builders import policy, rule, time_slicing
from tests.flows.limited_node import FOUR, GPUS, POD, A, B, LimitedNode, ids

OTHER = "0e1f8a3b-0000-4000-8000-00000000000b"


def seen(*containers: ContainerSeen, uid: str = POD, name: str = "job") -> PodSeen:
    return PodSeen(uid=uid, cgroup_uid=uid, namespace="train", name=name, phase=PodPhase.RUNNING, containers=containers)


# Applying.


def test_a_pod_is_limited_when_its_cgroup_appears_and_a_container_when_its_own_does(node: LimitedNode) -> None:
    node.give("main", *ids(A, 0, 1))
    pod = node.start_pod()
    node.look(POD)
    assert node.limit(pod) == 40
    leaf = node.start("main")
    node.look(POD)
    assert (node.limit(pod), node.limit(leaf), node.limit(leaf, B)) == (40, 40, None)


def test_each_gpu_has_its_own_limit_also_where_a_toolkit_has_set_one_value_for_all(node: LimitedNode) -> None:
    """Neighbour of P26: the toolkit's hook knows one value, whatever GPU it is for."""
    node.give("main", *ids(A, 0), *ids(B, 0, gib=10))
    node.start_pod()
    leaf = node.start("main")
    for uuid in (A, B):
        node.gpus.set_memory_limit(uuid, leaf, hard_bytes=20 * GIB)
    node.look(POD)
    assert (node.limit(leaf, A), node.limit(leaf, B)) == (20, 10)


def test_containers_of_a_pod_have_limits_of_their_own_and_the_pod_their_sum(node: LimitedNode) -> None:
    node.give("main", *ids(A, 0, 1))
    node.give("side", *ids(A, 2))
    pod = node.start_pod()
    main, side = node.start("main"), node.start("side")
    node.look()
    assert [node.limit(path) for path in (pod, main, side)] == [60, 40, 20]


def test_the_child_cgroup_that_crun_makes_is_limited_too(node: LimitedNode) -> None:
    """Else the container would take the whole GPU for its own; the outer one holds what moves out of the child."""
    node.give("main", *ids(A, 0))
    node.start_pod()
    leaf = node.start("main", inner="container")
    node.look(POD)
    assert (node.limit(leaf), node.limit(leaf / "container")) == (20, 20)
    assert node.hold().by == "driver"


def test_a_pods_limit_is_raised_and_never_lowered(quick: LimitedNode) -> None:
    quick.give("load", *ids(A, 0, 1))
    pod = quick.start_pod()
    quick.look(POD)
    quick.give("main", *ids(A, 2))
    quick.look(POD)
    assert quick.limit(pod) == 60
    init, app = ContainerSeen(name="load", kind=ContainerKind.INIT), ContainerSeen(name="main")
    quick.tell_pods(seen(init, app))  # now it is known that the two never run together
    quick.look()
    assert quick.limit(pod) == 60


def test_a_stranger_is_never_limited(node: LimitedNode) -> None:
    """Another plugin's pod, a pod without GPUs, a container of our pod that holds nothing, and its sandbox."""
    node.give("main", *ids(A, 0))
    node.give("main", f"{B}::0", uid=OTHER, resource="nvidia.com/gpu")
    pod, other = node.start_pod(), node.start_pod(OTHER)
    leaf, beside, foreign = node.start("main"), node.start("logger"), node.start("main", OTHER)
    node.look()
    assert set(node.gpus.limited(A)) == {str(pod), str(leaf)}
    assert node.gpus.limited(B) == {}
    assert all(node.limit(path) is None for path in (other, beside, foreign))


def test_entries_of_pods_that_are_gone_are_left_alone(quick: LimitedNode) -> None:
    """The checkpoint keeps them (runtime-facts 57)."""
    quick.give("main", *ids(A, 0))
    assert quick.look() is None
    assert quick.holds() == {}


def test_an_agent_that_starts_again_changes_nothing_that_is_right(node: LimitedNode) -> None:
    node.give("main", *ids(A, 0))
    node.start_pod()
    node.start("main")
    node.look()
    node.start_agent()
    calls = node.gpus.calls("nvmlDeviceSetMemoryLimits_v1")
    node.look()
    assert node.gpus.calls("nvmlDeviceSetMemoryLimits_v1") == calls
    assert node.hold().by == "driver"


def test_an_agent_that_starts_late_holds_what_runs_already(node: LimitedNode) -> None:
    node.give("main", *ids(A, 0))
    node.start_pod()
    leaf = node.start("main")
    assert node.gpus.allocate(A, leaf, 50 * GIB)
    node.look()
    assert node.limit(leaf) == 20
    assert node.hold().by is None
    assert node.hold().reason == "driver: it uses more than the 20 GiB it was promised"
    assert not node.gpus.allocate(A, leaf, GIB)


def test_a_container_that_starts_again_is_held_in_its_new_cgroup(node: LimitedNode) -> None:
    node.give("main", *ids(A, 0))
    node.start_pod()
    first = node.start("main")
    node.look()
    node.tree.remove(first)
    node.look(POD)
    second = node.start("main")
    node.look(POD)
    assert node.limit(second) == 20
    assert (node.hold().by, node.hold().since_s) == ("driver", node.now_s)


# Verifying.


def test_a_container_is_held_once_its_limit_was_read_back(node: LimitedNode) -> None:
    node.give("main", *ids(A, 0))
    node.start_pod()
    leaf = node.start("main")
    node.process(leaf, used_bytes=10 * GIB)
    node.read_processes()
    assert node.look() == f"memory of {POD} (main) on {A} is held by driver"
    held = node.hold()
    assert (held.by, held.since_s, held.verified_s) == ("driver", node.now_s, node.now_s)
    assert held.escapes == ("managed memory, which is counted as the host's",)


def test_the_pod_alone_is_not_enough(node: LimitedNode) -> None:
    node.give("main", *ids(A, 0))
    node.start_pod()
    node.tree.add_container(POD, node.next_id())  # whose it is cannot be told
    node.look()
    assert node.hold().by is None
    assert node.hold().reason == ("driver: which cgroup is its own is not known, so only its pod as a whole is held")


def test_the_api_may_tell_whose_a_cgroup_is(quick: LimitedNode) -> None:
    quick.give("main", *ids(A, 0))
    quick.start_pod()
    leaf = quick.tree.add_container(POD, quick.next_id())
    quick.tell_pods(seen(ContainerSeen(name="main", container_id=leaf.name)))
    quick.look()
    assert (quick.limit(leaf), quick.hold().by) == (20, "driver")


def test_a_limit_that_the_driver_refuses_is_not_held_and_says_why(node: LimitedNode) -> None:
    node.give("main", *ids(A, 0))
    node.start_pod()
    node.start("main")
    node.gpus.fail("nvmlDeviceSetMemoryLimits_v1", 4)
    node.look()
    assert node.hold().by is None
    assert "the driver lets only root set limits" in (node.hold().reason or "")


def test_a_container_on_a_gpu_that_it_does_not_hold_is_not_held(node: LimitedNode) -> None:
    node.give("main", *ids(A, 0))
    node.start_pod()
    leaf = node.start("main")
    node.process(leaf, A)
    node.process(leaf, B)
    node.read_processes()
    node.look()
    assert node.hold().reason == f"driver: it uses {B}, of which it holds nothing"


def test_without_process_lists_nothing_is_called_fine(node: LimitedNode) -> None:
    node.give("main", *ids(A, 0))
    node.start_pod()
    node.start("main")
    node.read_processes(asked=[A])
    node.look()
    assert node.hold().reason == f"driver: there is no list of the processes on {B}"


def test_process_lists_that_are_old_say_nothing(quick: LimitedNode) -> None:
    quick.give("main", *ids(A, 0))
    quick.start_pod()
    quick.start("main")
    quick.look()
    assert quick.hold().by == "driver"
    quick.now_s += 60.0
    quick.look()
    assert quick.hold().by is None


def test_a_limit_that_somebody_lifts_is_set_again_counted_and_told(node: LimitedNode) -> None:
    node.give("main", *ids(A, 0))
    pod = node.start_pod()
    leaf = node.start("main")
    node.look()
    since_s = node.hold().since_s
    node.now_s += 5.0
    node.gpus.set_memory_limit(A, leaf)
    said = node.look()
    assert said == f"memory of {POD} (main) on {A}: no limit is in force, and 20 GiB should be; it is set again"
    assert (node.limit(leaf), node.enforcing.found.enforcement.lift_count) == (20, 1)
    assert since_s is not None
    assert (node.hold().since_s or 0.0) > since_s
    node.now_s += 5.0
    node.read_processes()
    node.gpus.set_memory_limit(A, pod, hard_bytes=70 * GIB)
    node.look()
    assert (node.limit(pod), node.enforcing.found.enforcement.lift_count) == (20, 2)


def test_a_hook_that_overwrites_a_new_containers_limit_is_undone_and_no_lift(node: LimitedNode) -> None:
    """An image's own variable beats ours at the toolkit's hook (gpu-limits §2)."""
    node.give("main", *ids(A, 0))
    node.start_pod()
    leaf = node.start("main")
    node.look(POD)
    node.gpus.set_memory_limit(A, leaf, hard_bytes=80 * GIB)
    node.look(POD)
    assert (node.limit(leaf), node.enforcing.found.enforcement.lift_count) == (20, 0)


def test_a_driver_that_does_not_answer_holds_nothing_and_all_comes_back(quick: LimitedNode) -> None:
    quick.give("main", *ids(A, 0))
    quick.start_pod()
    quick.start("main")
    quick.look()
    fault = quick.gpus.fail("nvmlDeviceGetMemoryLimits_v1", 15)
    quick.look()
    assert quick.hold().by is None
    quick.gpus.clear(fault)
    quick.look()
    assert quick.hold().by == "driver"


def test_a_checkpoint_that_cannot_be_read_is_no_news(quick: LimitedNode) -> None:
    quick.give("main", *ids(A, 0))
    quick.start_pod()
    leaf = quick.start("main")
    quick.look()
    quick.checkpoint.problem = "the checkpoint is damaged"
    with pytest.raises(NodeError, match="damaged"):
        quick.look()
    assert (quick.limit(leaf), quick.hold().by) == (20, "driver")


def test_a_lost_checkpoint_lifts_no_limit_of_a_container_that_lives(node: LimitedNode) -> None:
    node.give("main", *ids(A, 0))
    pod = node.start_pod()
    leaf = node.start("main")
    node.look()
    node.checkpoint.is_there = False
    node.look()
    assert (node.limit(pod), node.limit(leaf)) == (20, 20)
    assert node.holds() == {}  # and nothing is claimed of what nobody holds


# Choosing.


@pytest.mark.parametrize(
    ("backend", "version", "dmem", "why"),
    [
        (LimitBackend.NONE, 2, True, "the driver does not limit memory on this GPU"),
        (LimitBackend.DMEM, 1, True, "the driver's limits need cgroup v2"),
        (LimitBackend.DMEM, 2, False, "the cgroup has no dmem controller"),
    ],
)
def test_where_the_driver_cannot_the_next_best_is_chosen_with_the_reason(
    tmp_path: Path, backend: LimitBackend, version: int, dmem: bool, why: str
) -> None:
    made = LimitedNode(tmp_path / "node", backend=backend, version=version, dmem=dmem)
    with contextlib.closing(made) as node:
        reason = node.state.view.enforcers[A]["driver"]
        assert reason is not None
        assert reason.startswith(why)
        if version == 1:
            return
        node.give("main", *ids(A, 0))
        node.start_pod()
        leaf = node.start("main")
        node.process(leaf, used_bytes=10 * GIB)
        node.read_processes()
        node.look()
        assert node.hold().by == "watch"
        assert (node.hold().reason or "").startswith(f"driver: {why}")
        assert node.gpus.limited(A) == {}


def test_memory_and_compute_are_chosen_apart(quick: LimitedNode) -> None:
    quick.give("main", f"{A}::mps-0-20480-25")
    quick.start_pod()
    quick.start("main")
    quick.look()
    compute = quick.enforcing.found.enforcement.by_container(Promise.COMPUTE)[POD, "main", A]
    assert (quick.hold().by, compute.by) == ("driver", None)
    assert (compute.reason or "").startswith("mps: no MPS control daemon has served it")


def test_a_policy_that_no_longer_wants_the_driver_lifts_its_limits(node: LimitedNode) -> None:
    node.give("main", *ids(A, 0))
    pod = node.start_pod()
    leaf = node.start("main")
    node.look()
    node.use(MemoryPolicy(enforce=("watch",)))
    node.look()
    assert (node.limit(pod), node.limit(leaf)) == (None, None)
    assert node.hold().by == "watch"


def test_a_driver_that_is_lost_for_a_while_keeps_its_limits_in_force(quick: LimitedNode) -> None:
    quick.give("main", *ids(A, 0))
    quick.start_pod()
    leaf = quick.start("main")
    quick.look()
    quick.state.change(enforcers={A: {"driver": "NVML hangs", "watch": None}, B: {}})
    quick.process(leaf)
    quick.read_processes()
    quick.look()
    assert (quick.limit(leaf), quick.hold().by, quick.hold().reason) == (20, "watch", "driver: NVML hangs")


# Guarantees.

GUARANTEE = MemoryPolicy(guarantee=True)


def reserved(node: LimitedNode, path: Path) -> int:
    return node.gpus.memory_limit(A, path)[0] // GIB


def test_a_guarantee_is_reserved_on_the_container_and_stays_when_the_pods_limit_is_set_again(
    node: LimitedNode,
) -> None:
    node.use(GUARANTEE)
    node.give("main", *ids(A, 0))
    pod = node.start_pod()
    leaf = node.start("main", inner="container")
    node.look()
    node.look()
    assert reserved(node, leaf / "container") == 20
    assert node.hold().by == "driver"
    assert {path for path in (pod, leaf) if reserved(node, path) not in (0, 20)} == set()


def test_without_a_guarantee_nothing_stays_reserved_whatever_an_image_asks_for(node: LimitedNode) -> None:
    node.give("main", *ids(A, 0))
    node.start_pod()
    leaf = node.start("main")
    node.gpus.set_memory_limit(A, leaf, soft_bytes=20 * GIB, hard_bytes=20 * GIB)
    node.look()
    assert [reserved(node, path) for path in (leaf, leaf.parent, node.tree.kubepods)] == [0, 0, 0]


@pytest.fixture
def dmem(tmp_path: Path) -> Iterator[LimitedNode]:
    with contextlib.closing(LimitedNode(tmp_path / "node")) as made:
        made.use(GUARANTEE)
        yield made


def test_a_reservation_is_made_once_also_where_a_container_has_a_child_cgroup(dmem: LimitedNode) -> None:
    """The kernel adds it to the cgroups above by itself."""
    dmem.give("main", *ids(A, 0))
    pod = dmem.start_pod()
    leaf = dmem.start("main", inner="container")
    dmem.look()
    assert [reserved(dmem, path) for path in (leaf / "container", leaf, pod, dmem.tree.kubepods)] == [20] * 4
    assert dmem.hold().by == "driver"


def test_what_an_ended_container_had_reserved_is_taken_back_from_the_cgroups_above(dmem: LimitedNode) -> None:
    dmem.give("main", *ids(A, 0))
    dmem.give("side", *ids(A, 1))
    pod = dmem.start_pod()
    main, side = dmem.start("main"), dmem.start("side")
    dmem.look()
    assert reserved(dmem, dmem.tree.kubepods) == 40
    dmem.tree.remove(main)
    said = dmem.look(POD)
    assert said is not None
    assert f"took back 20 GiB of {A} that ended containers had reserved" in said
    assert [reserved(dmem, path) for path in (pod, dmem.tree.kubepods, side)] == [20, 20, 20]


def test_what_an_ended_pod_had_reserved_is_taken_back_from_what_is_left_above_it(dmem: LimitedNode) -> None:
    dmem.give("main", *ids(A, 0))
    dmem.give("main", *ids(A, 1), uid=OTHER)
    pod, other = dmem.start_pod(), dmem.start_pod(OTHER)
    dmem.start("main"), dmem.start("main", OTHER)
    dmem.look()
    dmem.tree.remove(pod)
    dmem.look()
    assert [reserved(dmem, path) for path in (other, dmem.tree.kubepods / "burstable", dmem.tree.kubepods)] == [20] * 3


def test_what_an_ended_pod_had_reserved_is_taken_back_though_the_checkpoint_cannot_be_read(dmem: LimitedNode) -> None:
    """Neighbour of P32, found by chance: a damaged one is written anew only at the next start of a pod with devices."""
    dmem.give("main", *ids(A, 0))
    dmem.start_pod()
    dmem.start("main")
    dmem.look()
    assert reserved(dmem, dmem.tree.kubepods) == 20
    dmem.checkpoint.problem = "the checkpoint is damaged"
    with pytest.raises(NodeError, match="damaged"):
        dmem.look()
    assert reserved(dmem, dmem.tree.kubepods) == 20
    dmem.tree.remove(dmem.tree.pod(POD))
    with pytest.raises(NodeError, match="damaged"):
        dmem.look()
    assert reserved(dmem, dmem.tree.kubepods) == 0


def test_what_an_earlier_agent_left_reserved_is_found_at_the_start(dmem: LimitedNode) -> None:
    dmem.give("main", *ids(A, 0))
    pod = dmem.start_pod()
    dmem.start("main")
    dmem.look()
    dmem.tree.remove(pod)
    dmem.start_agent()
    said = dmem.look()
    assert said == f"took back 20 GiB of {A} that ended containers had reserved"
    assert dmem.gpus.limited(A) == {}
    assert dmem.look() is None


def test_what_a_pod_had_reserved_that_the_kubelet_has_forgotten_is_taken_back_at_its_end(dmem: LimitedNode) -> None:
    """After a force delete; this agent has never heard of it."""
    dmem.give("main", *ids(A, 0))
    pod = dmem.start_pod()
    dmem.start("main")
    dmem.look()
    dmem.checkpoint.entries = ()
    dmem.start_agent()
    dmem.look()
    assert reserved(dmem, dmem.tree.kubepods) == 20
    dmem.tree.remove(pod)
    assert dmem.look() == f"took back 20 GiB of {A} that ended containers had reserved"
    assert dmem.gpus.limited(A) == {}


def test_what_a_container_of_a_forgotten_pod_had_reserved_is_taken_back_while_the_pod_lives(dmem: LimitedNode) -> None:
    """Found by chance: a container ends on a lost GPU, its pod is deleted by force, and the agent starts anew."""
    dmem.give("main", *ids(A, 0))
    dmem.give("side", *ids(A, 1))
    pod = dmem.start_pod()
    main, _ = dmem.start("main"), dmem.start("side")
    dmem.look()
    dmem.tree.remove(main)
    dmem.checkpoint.entries = ()
    dmem.start_agent()
    dmem.look()
    assert [reserved(dmem, path) for path in (pod, dmem.tree.kubepods)] == [20, 20]


def test_what_a_container_had_reserved_that_ended_without_an_agent_is_taken_back_from_its_living_pod(
    dmem: LimitedNode,
) -> None:
    dmem.use(GUARANTEE)
    dmem.give("main", *ids(A, 0))
    dmem.give("side", *ids(A, 1))
    pod = dmem.start_pod()
    main, side = dmem.start("main"), dmem.start("side")
    dmem.look()
    dmem.tree.remove(main)
    dmem.start_agent()
    dmem.use(GUARANTEE)
    dmem.look()
    assert [reserved(dmem, path) for path in (side, pod, dmem.tree.kubepods)] == [20, 20, 20]


def test_where_nothing_was_ever_reserved_nothing_is_looked_for_again(quick: LimitedNode) -> None:
    quick.give("main", *ids(A, 0))
    quick.start_pod()
    quick.start("main")
    quick.look()
    reads = "nvmlDeviceGetMemoryLimits_v1"
    first = quick.gpus.calls(reads)
    quick.look()
    assert quick.gpus.calls(reads) - first == 2  # the pod's limit and the container's


def test_what_a_living_stranger_has_reserved_is_left_to_it(dmem: LimitedNode) -> None:
    dmem.start_pod(OTHER)
    leaf = dmem.start("main", OTHER)
    dmem.gpus.set_memory_limit(A, leaf, soft_bytes=7 * GIB)
    dmem.start_agent()
    dmem.look()
    assert [reserved(dmem, path) for path in (leaf, dmem.tree.kubepods)] == [7, 7]


# Watching.


def test_an_excess_is_found_at_each_new_reading_of_the_process_lists(quick: LimitedNode) -> None:
    quick.use(MemoryPolicy(enforce=("watch",), on_exceed=OnExceed.EVICT, evict_after_s=5.0))
    quick.give("main", *ids(A, 0))
    quick.start_pod()
    leaf = quick.start("main")
    quick.process(leaf, used_bytes=30 * GIB)
    quick.read_processes()
    quick.look()
    quick.now_s += 10.0
    quick.look()  # the same reading once more proves nothing
    (excess,) = quick.enforcing.found.excesses
    assert (excess.readings, excess.is_to_end) == (1, False)
    quick.read_processes()
    quick.look()
    (excess,) = quick.enforcing.found.excesses
    assert (excess.readings, excess.is_to_end) == (2, True)
    assert quick.hold().reason == "watch: it uses more than the 20 GiB it was promised"
    quick.process(leaf, used_bytes=20 * GIB)
    quick.read_processes()
    quick.look()
    assert quick.enforcing.found.excesses == ()


def test_what_the_driver_holds_is_watched_too(quick: LimitedNode) -> None:
    """Managed memory and late limits escape the driver."""
    quick.give("main", *ids(A, 0))
    quick.start_pod()
    quick.process(quick.start("main"), used_bytes=30 * GIB)
    quick.read_processes()
    quick.look()
    assert len(quick.enforcing.found.excesses) == 1
    assert quick.hold().by is None


# MIG.


def test_a_mig_device_holds_its_container_for_as_long_as_it_exists(tmp_path: Path) -> None:
    """P18 to P20 at this level: MIG mode without an instance, one that comes and goes, and the mode switched off."""
    gpus = SimulatedGpus((replace(GPUS[0], mig_enabled=True), GPUS[1]), limit_backend=LimitBackend.DMEM)
    with contextlib.closing(LimitedNode(tmp_path / "node", gpus=gpus)) as node:
        node.use(policy(rule(Mig()), rule(FOUR)))
        assert node.state.view.enforcers[A]["driver"] == "the GPU is in MIG mode, in which the driver takes no limits"
        gpus.put(replace(GPUS[0], mig_enabled=True, mig_devices=(mig(3, "1g.10gb+me"),)))
        node.refresh()
        assert node.state.view.enforcers["MIG-3"]["mig"] is None
        node.give("main", "MIG-3::mig-0", resource="nvidia.com/mig-1g.10gb.me")
        node.start_pod()
        node.start("main")
        node.read_processes(asked=["MIG-3", B])
        node.look()
        assert node.hold().by == "mig"
        gpus.put(replace(GPUS[0], mig_enabled=True, mig_devices=()))
        node.refresh()
        node.read_processes()
        node.look()
        assert node.hold().by is None
        assert (node.hold().reason or "").startswith("mig: the MIG device is gone")
        gpus.put(replace(GPUS[0], mig_enabled=False))
        node.refresh()
        assert node.state.view.enforcers[A]["driver"] is None


def test_slices_of_different_sizes_are_held_each_to_its_own(quick: LimitedNode) -> None:
    """Neighbour of P26: what was promised stands in the ID, whatever the policy says now."""
    quick.use(time_slicing(8))
    quick.give("main", *ids(A, 0, gib=20))
    quick.give("side", *ids(A, 1, gib=10))
    quick.start_pod()
    main, side = quick.start("main"), quick.start("side")
    quick.look()
    assert (quick.limit(main), quick.limit(side)) == (20, 10)
