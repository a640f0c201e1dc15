"""Memory limits of cgroups, on both simulated libraries and with both of the driver's backends (gpu-limits §2)."""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from sharer.adapters.nvml import NvmlDriver
from sharer.core.enforcer import LimitAnswer, LimitChange, LimitQuestion, MemoryLimit
from sharer.core.errors import NodeError
from sharer.core.quantities import GIB
from sharer.simulation.memory_limits import LimitBackend
from sharer.simulation.steering import GpuSteering
from tests.adapters.nvml.conftest import MakeNode, OpenDriver
from tests.adapters.nvml.gpus import A, B, mig, with_migs
from tests.fakes.cgroups import FakeCgroups

POD, LEAF = "0e1f8a3b-0000-4000-8000-00000000000a", "1" * 64
OF_A, OF_B = A.uuid, B.uuid


@pytest.fixture(params=[LimitBackend.DMEM, LimitBackend.MISC], ids=["dmem", "misc"])
def node(request: pytest.FixtureRequest, make_node: MakeNode) -> GpuSteering:
    return make_node(A, B, limit_backend=request.param)


@pytest.fixture
def tree(tmp_path: Path) -> FakeCgroups:
    tree = FakeCgroups(tmp_path / "node")
    tree.add_pod(POD)
    tree.add_container(POD, LEAF)
    return tree


def question(cgroup: Path, uuid: str = OF_A, change: LimitChange | None = None) -> LimitQuestion:
    return LimitQuestion(gpu_uuid=uuid, cgroup=str(cgroup), change=change)


def hold(
    driver: NvmlDriver, cgroup: Path, hard_bytes: int | None, *, uuid: str = OF_A, soft_bytes: int | None = None
) -> LimitAnswer:
    change = LimitChange(hard_bytes=hard_bytes, soft_bytes=soft_bytes)
    return driver.limits([question(cgroup, uuid, change)])[0]


def read(driver: NvmlDriver, cgroup: Path, uuid: str = OF_A) -> LimitAnswer:
    return driver.limits([question(cgroup, uuid)])[0]


def test_a_limit_is_set_and_read_back_for_one_gpu_and_no_other(
    node: GpuSteering, tree: FakeCgroups, open_driver: OpenDriver
) -> None:
    """P26."""
    driver = open_driver(node)
    assert hold(driver, tree.pod(POD), 5 * GIB).limit == MemoryLimit(hard_bytes=5 * GIB)
    assert read(driver, tree.pod(POD)).limit == MemoryLimit(hard_bytes=5 * GIB)
    assert read(driver, tree.pod(POD), OF_B).limit == MemoryLimit()


def test_a_cgroup_without_a_limit_has_none_on_either_backend(
    node: GpuSteering, tree: FakeCgroups, open_driver: OpenDriver
) -> None:
    """`misc` answers "not supported" where none is set."""
    answer = read(open_driver(node), tree.pod(POD) / LEAF)
    assert (answer.limit, answer.problem) == (MemoryLimit(), None)


def test_what_is_as_wanted_is_not_set_again(node: GpuSteering, tree: FakeCgroups, open_driver: OpenDriver) -> None:
    driver = open_driver(node)
    for _ in range(3):
        assert hold(driver, tree.pod(POD), 5 * GIB).problem is None
    assert node.calls("nvmlDeviceSetMemoryLimits_v1") == 1


def test_a_limit_within_bounds_is_left_as_it_is(node: GpuSteering, tree: FakeCgroups, open_driver: OpenDriver) -> None:
    driver, pod = open_driver(node), tree.pod(POD)
    hold(driver, pod, 5 * GIB)
    for least, most, then in ((3, 8, 5), (6, 8, 6), (7, 8, 7), (1, 2, 1)):
        change = LimitChange(hard_bytes=least * GIB, up_to_bytes=most * GIB)
        (answer,) = driver.limits([question(pod, change=change)])
        assert answer.limit == MemoryLimit(hard_bytes=then * GIB)


def test_a_reservation_that_is_not_meant_stays(node: GpuSteering, tree: FakeCgroups, open_driver: OpenDriver) -> None:
    driver, leaf = open_driver(node), tree.pod(POD) / LEAF
    hold(driver, leaf, 5 * GIB, soft_bytes=2 * GIB)
    assert hold(driver, leaf, 6 * GIB).limit == MemoryLimit(hard_bytes=6 * GIB, soft_bytes=2 * GIB)


def test_a_limit_is_lifted_whole(node: GpuSteering, tree: FakeCgroups, open_driver: OpenDriver) -> None:
    driver, leaf = open_driver(node), tree.pod(POD) / LEAF
    hold(driver, leaf, 5 * GIB, soft_bytes=2 * GIB)
    assert hold(driver, leaf, None, soft_bytes=0).limit == MemoryLimit()
    assert node.limited(OF_A) == {}


def test_what_a_cgroup_uses_is_told_with_its_limit(
    node: GpuSteering, tree: FakeCgroups, open_driver: OpenDriver
) -> None:
    driver, leaf = open_driver(node), tree.pod(POD) / LEAF
    hold(driver, leaf, 5 * GIB)
    assert node.allocate(OF_A, leaf, 3 * GIB)
    assert not node.allocate(OF_A, leaf, 3 * GIB)
    assert read(driver, leaf).used_bytes == 3 * GIB


def test_on_dmem_a_pods_limit_holds_its_containers_beside_their_own(
    make_node: MakeNode, tree: FakeCgroups, open_driver: OpenDriver
) -> None:
    node, other = make_node(A, B, limit_backend=LimitBackend.DMEM), tree.add_container(POD, "2" * 64)
    driver, leaf = open_driver(node), tree.pod(POD) / LEAF
    hold(driver, tree.pod(POD), 5 * GIB)
    hold(driver, leaf, 4 * GIB)
    assert node.allocate(OF_A, other, 2 * GIB)
    assert not node.allocate(OF_A, leaf, 4 * GIB)
    assert node.allocate(OF_A, leaf, 3 * GIB)
    assert read(driver, tree.pod(POD)).used_bytes == 5 * GIB


def test_on_misc_the_nearest_limit_alone_holds(make_node: MakeNode, tree: FakeCgroups, open_driver: OpenDriver) -> None:
    node, other = make_node(A, B, limit_backend=LimitBackend.MISC), tree.add_container(POD, "2" * 64)
    driver, leaf = open_driver(node), tree.pod(POD) / LEAF
    hold(driver, tree.pod(POD), 5 * GIB)
    hold(driver, leaf, 4 * GIB)
    assert node.allocate(OF_A, other, 5 * GIB)
    assert node.allocate(OF_A, leaf, 4 * GIB)
    assert not node.allocate(OF_A, other, 1)
    assert read(driver, tree.pod(POD)).used_bytes == 5 * GIB


def test_on_dmem_a_reservation_stays_above_a_cgroup_that_is_gone(
    make_node: MakeNode, tree: FakeCgroups, open_driver: OpenDriver
) -> None:
    node = make_node(A, B, limit_backend=LimitBackend.DMEM)
    driver, pod = open_driver(node), tree.pod(POD)
    hold(driver, pod / LEAF, 5 * GIB, soft_bytes=5 * GIB)
    assert [node.memory_limit(OF_A, path)[0] for path in (pod, tree.kubepods, tree.root)] == [5 * GIB, 5 * GIB, 0]
    tree.remove(pod)
    assert node.memory_limit(OF_A, tree.kubepods) == (5 * GIB, None)
    hold(driver, tree.kubepods / "burstable", None, soft_bytes=0)
    assert node.limited(OF_A) == {}


def test_on_misc_a_reservation_is_the_cgroups_alone(
    make_node: MakeNode, tree: FakeCgroups, open_driver: OpenDriver
) -> None:
    node = make_node(A, B, limit_backend=LimitBackend.MISC)
    hold(open_driver(node), tree.pod(POD) / LEAF, 5 * GIB, soft_bytes=5 * GIB)
    assert list(node.limited(OF_A)) == [str(tree.pod(POD) / LEAF)]


def test_without_the_dmem_controller_a_cgroup_has_no_limits(
    make_node: MakeNode, tmp_path: Path, open_driver: OpenDriver
) -> None:
    tree = FakeCgroups(tmp_path / "other", dmem=False)
    answer = hold(open_driver(make_node(A, B, limit_backend=LimitBackend.DMEM)), tree.add_pod(POD), GIB)
    assert answer.limit is None
    assert answer.problem is not None
    assert answer.problem.startswith("the cgroup has no dmem controller")


def test_a_cgroup_that_has_gone_is_told_from_one_that_cannot_be_read(
    node: GpuSteering, tree: FakeCgroups, open_driver: OpenDriver
) -> None:
    driver = open_driver(node)
    gone, there = driver.limits([question(tree.root / "gone"), question(tree.pod(POD))])
    assert (gone.gone, gone.limit, there.gone, there.problem) == (True, None, False, None)


@pytest.mark.parametrize("backend", [LimitBackend.DMEM, LimitBackend.MISC])
def test_another_folder_of_the_same_name_is_another_cgroup(
    make_node: MakeNode, tree: FakeCgroups, open_driver: OpenDriver, backend: LimitBackend
) -> None:
    driver, leaf = open_driver(make_node(A, B, limit_backend=backend)), tree.pod(POD) / LEAF
    hold(driver, leaf, 5 * GIB)
    keep = leaf.rename(leaf.with_name("2" * 64))  # so that its inode is not given to the next one
    tree.add_container(POD, LEAF)
    assert read(driver, leaf).limit == MemoryLimit()
    assert keep.exists()


@pytest.mark.parametrize(
    ("hard_bytes", "soft_bytes"), [(A.memory_bytes, None), (1, None), (81 * GIB, None), (GIB, 2 * GIB)]
)
def test_the_driver_takes_limits_up_to_the_gpus_memory(
    node: GpuSteering, tree: FakeCgroups, open_driver: OpenDriver, hard_bytes: int, soft_bytes: int | None
) -> None:
    answer = hold(open_driver(node), tree.pod(POD), hard_bytes, soft_bytes=soft_bytes)
    is_sane = hard_bytes <= 80 * GIB and (soft_bytes or 0) <= hard_bytes
    assert (answer.problem is None) is is_sane
    assert (answer.limit == MemoryLimit(hard_bytes=hard_bytes)) is is_sane


def test_mig_devices_and_gpus_in_mig_mode_take_no_limits(
    make_node: MakeNode, tree: FakeCgroups, open_driver: OpenDriver
) -> None:
    node = make_node(with_migs(mig(0)), B, limit_backend=LimitBackend.DMEM)
    driver = open_driver(node)
    problem = hold(driver, tree.pod(POD), GIB).problem
    assert problem is not None
    assert problem.startswith("the driver does not limit memory on this GPU")
    assert hold(driver, tree.pod(POD), GIB, uuid="MIG-0").problem is not None
    assert hold(driver, tree.pod(POD), GIB, uuid=OF_B).problem is None


def test_an_older_driver_has_no_such_function(make_node: MakeNode, tree: FakeCgroups, open_driver: OpenDriver) -> None:
    missing = ("nvmlDeviceSetMemoryLimits_v1", "nvmlDeviceGetMemoryLimits_v1")
    problem = hold(open_driver(make_node(A, missing=missing)), tree.pod(POD), GIB).problem
    assert problem is not None
    assert problem.startswith("this driver cannot limit memory: that needs r615")


def test_a_driver_without_limits_lets_nothing_be_read_back(
    make_node: MakeNode, tree: FakeCgroups, open_driver: OpenDriver
) -> None:
    answer = hold(open_driver(make_node(A, B)), tree.pod(POD), GIB)
    assert answer.limit == MemoryLimit()
    assert answer.problem is not None


def test_setting_needs_root_and_reading_does_not(node: GpuSteering, tree: FakeCgroups, open_driver: OpenDriver) -> None:
    driver = open_driver(node)
    node.fail("nvmlDeviceSetMemoryLimits_v1", 4)
    answer = hold(driver, tree.pod(POD), GIB)
    assert answer.limit == MemoryLimit()
    assert answer.problem is not None
    assert answer.problem.startswith("the driver lets only root set limits")


def test_a_lost_gpu_spoils_no_other_answer(node: GpuSteering, tree: FakeCgroups, open_driver: OpenDriver) -> None:
    driver = open_driver(node)
    driver.discover()
    node.lose(OF_A)
    lost, fine, unknown = driver.limits([question(tree.pod(POD), uuid) for uuid in (OF_A, OF_B, "GPU-c")])
    assert (lost.limit, fine.limit, unknown.limit) == (None, MemoryLimit(), None)
    assert lost.problem is not None
    assert "fallen off the bus" in lost.problem


def test_a_session_that_was_closed_by_somebody_is_opened_again(
    node: GpuSteering, tree: FakeCgroups, open_driver: OpenDriver
) -> None:
    driver = open_driver(node)
    driver.discover()
    node.fail("nvmlDeviceGetMemoryLimits_v1", 1, times=1)
    assert hold(driver, tree.pod(POD), GIB).limit == MemoryLimit(hard_bytes=GIB)


def test_no_questions_need_no_driver(make_node: MakeNode, open_driver: OpenDriver) -> None:
    node = make_node(A, B, limit_backend=LimitBackend.DMEM)
    assert open_driver(node).limits([]) == []
    assert node.calls("nvmlInitWithFlags") == 0


def test_who_gives_a_time_does_not_wait_longer_and_hurts_nobody_else(
    node: GpuSteering, tree: FakeCgroups, open_driver: OpenDriver
) -> None:
    driver = open_driver(node)
    driver.discover()
    fault = node.hang("nvmlDeviceGetMemoryLimits_v1")
    begun_s = time.monotonic()
    with pytest.raises(NodeError, match=r"did not answer within 2 s; nvmlDeviceGetMemoryLimits_v1 is running"):
        driver.limits([question(tree.pod(POD))], within_s=2.0)
    assert time.monotonic() - begun_s < 10.0  # which is a call's own deadline
    node.clear(fault)
    assert read(driver, tree.pod(POD)).limit == MemoryLimit()


def test_a_time_covers_the_jobs_that_are_before_it(
    node: GpuSteering, tree: FakeCgroups, open_driver: OpenDriver
) -> None:
    driver = open_driver(node)
    driver.discover()
    fault = node.hang("nvmlDeviceGetCount_v2")
    other = threading.Thread(target=driver.discover)
    other.start()
    node.wait_for_calls("nvmlDeviceGetCount_v2", 2)
    with pytest.raises(NodeError, match="did not answer within"):
        driver.limits([question(tree.pod(POD), change=LimitChange(hard_bytes=GIB))], within_s=0.2)
    node.clear(fault)
    other.join()
    assert read(driver, tree.pod(POD)).limit == MemoryLimit()  # what was given up was not done later


def test_gpus_whose_memory_is_not_told_take_any_limit(
    make_node: MakeNode, tree: FakeCgroups, open_driver: OpenDriver
) -> None:
    """P25: whether real ones do is not known."""
    node = make_node(replace(A, memory_bytes=None), limit_backend=LimitBackend.DMEM)
    assert hold(open_driver(node), tree.pod(POD), GIB).limit == MemoryLimit(hard_bytes=GIB)
