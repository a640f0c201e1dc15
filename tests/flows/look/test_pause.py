"""What labels of a node say about its driver, and what follows for the slices."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sharer.core.change.rollout import PolicyInForce
from sharer.core.errors import NodeError
from sharer.core.inventory import Inventory
from sharer.core.policy.model import Policy
from sharer.flows.look.pause import pause
from sharer.flows.look.refresh import refresh
from sharer.flows.offer.allocate import Answers
from sharer.flows.offer.offer import offer
from sharer.flows.state import NodeState
from tests.core.builders import gpu, node, policy, time_slicing
from tests.flows.offer_lab import FACTS, Kubelet, Specs

PLUGIN, CLIENT = KEYS = ("nvidia.com/gpu.deploy.device-plugin", "nvidia.com/gpu.deploy.client")
UPGRADE = {PLUGIN: "paused-for-driver-upgrade"}


class Driver:
    """Notes whether it is open to questions."""

    def __init__(self) -> None:
        self.reason: str | None = None
        self.stuck = False

    def pause(self, reason: str) -> None:
        self.reason = reason
        if self.stuck:
            raise NodeError("NVML does not let go")

    def resume(self) -> None:
        self.reason = None

    def discover(self) -> Inventory:
        return node(gpu(0))


class Facts:
    def read(self, inventory: Inventory) -> object:
        return FACTS


def running(wanted: Policy | None = None) -> NodeState:
    state = NodeState()
    state.change(inventory=node(gpu(0)), facts=FACTS, policy=PolicyInForce(policy=wanted or policy(time_slicing(2))))
    return state


@pytest.mark.parametrize(
    "value",
    [
        "paused-for-driver-upgrade",
        "paused-for-mig-change",
        "paused-for-vgpu-change",
        "blue_paused-for-driver-upgrade",  # a value of the cluster's own is kept in front
    ],
)
@pytest.mark.parametrize("key", KEYS)
def test_every_way_in_which_a_pause_is_written_closes_the_driver(key: str, value: str) -> None:
    state, driver = running(), Driver()
    said = pause(state, driver, {key: value}, KEYS)
    assert said == f"paused by the node's label {key}={value}: NVML is closed, and no slice is given out"
    assert driver.reason == state.view.paused == state.view.driver_problem
    assert state.view.let_go


@pytest.mark.parametrize("labels", [{}, {PLUGIN: "true"}, {PLUGIN: "false"}, {"x": "paused-for-driver-upgrade"}])
def test_anything_else_is_no_pause(labels: dict[str, str]) -> None:
    state, driver = running(), Driver()
    assert pause(state, driver, labels, KEYS) is None
    assert (driver.reason, state.view.paused, state.view.let_go) == (None, None, False)


def test_no_keys_are_no_pause() -> None:
    assert pause(running(), Driver(), UPGRADE, ()) is None


def test_labels_that_are_not_known_leave_everything_as_it_is() -> None:
    state, driver = running(), Driver()
    assert pause(state, driver, None, KEYS) is None
    pause(state, driver, UPGRADE, KEYS)
    assert pause(state, driver, None, KEYS) is None
    assert state.view.let_go


def test_a_driver_that_does_not_let_go_is_asked_again() -> None:
    state, driver = running(), Driver()
    driver.stuck = True
    with pytest.raises(NodeError, match="does not let go"):
        pause(state, driver, UPGRADE, KEYS)
    assert state.view.let_go, "nothing is asked of it meanwhile"
    driver.stuck, driver.reason = False, None
    pause(state, driver, UPGRADE, KEYS)
    assert driver.reason is not None


def test_slices_are_healthy_again_when_the_driver_has_answered_and_not_before() -> None:
    """The label changes back before the new driver is loaded."""
    state, driver, kubelet, specs = running(), Driver(), Kubelet(), Specs()

    def healthy() -> int:
        offer(
            state,
            kubelet,
            specs,
            lambda name: Answers(state, name, (), lambda _: None, lambda resource, ids: None),
            0.0,
        )
        return len(kubelet.lists[-1][1])

    assert healthy() == 2
    pause(state, driver, UPGRADE, KEYS)
    assert healthy() == 0
    said = pause(state, driver, {PLUGIN: "true"}, KEYS)
    assert said is not None
    assert said.startswith("the pause is over")
    assert (driver.reason, state.view.let_go, healthy()) == (None, False, 0)
    assert pause(state, driver, {PLUGIN: "true"}, KEYS) is None
    refresh(state, driver, Facts())  # type: ignore[arg-type]  # its facts are this test's
    assert (state.view.paused, healthy()) == (None, 2)


def test_a_second_pause_for_another_reason_is_told_as_such() -> None:
    state, driver = running(), Driver()
    pause(state, driver, UPGRADE, KEYS)
    pause(state, driver, {PLUGIN: "paused-for-mig-change"}, KEYS)
    assert state.view.paused == f"paused by the node's label {PLUGIN}=paused-for-mig-change"


@given(st.lists(st.sampled_from(["true", "paused-for-driver-upgrade", "paused-for-mig-change", None]), max_size=12))
def test_whatever_comes_the_driver_is_asked_only_while_no_label_pauses_it(values: list[str | None]) -> None:
    state, driver = running(), Driver()
    last = "true"
    for value in values:
        pause(state, driver, None if value is None else {CLIENT: value}, KEYS)
        last = last if value is None else value
        assert (driver.reason is not None) == state.view.let_go == last.startswith("paused")
