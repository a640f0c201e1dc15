"""The links between GPUs are read once, apart from the loop, and only where whole GPUs are offered."""

from __future__ import annotations

import contextlib
import queue

from sharer.core.errors import NodeError
from sharer.core.inventory import GpuLink, Topology
from sharer.core.policy.model import Exclusive, Sharing
from sharer.core.slices.plan import make_plan
from sharer.flows.look.links import LinkReader, read_links
from sharer.flows.state import NodeState
from tests.core.builders import gpu, gpu_uuid, node, policy, time_slicing

ANSWER = Topology(links=(GpuLink(uuids=(gpu_uuid(0), gpu_uuid(1)), nvlinks=4, pcie=None),))


class Driver:
    """Answers a question when it is told the answer."""

    def __init__(self) -> None:
        self.answers: queue.SimpleQueue[Topology | NodeError] = queue.SimpleQueue()
        self.asked: queue.SimpleQueue[None] = queue.SimpleQueue()

    def topology(self) -> Topology:
        self.asked.put(None)
        answer = self.answers.get(timeout=30)
        if isinstance(answer, NodeError):
            raise answer
        return answer


class LinkLab:
    """A state, a driver, and a reader between them."""

    def __init__(self, sharing: Sharing, gpus: int = 2) -> None:
        self.state, self.driver = NodeState(), Driver()
        self.state.change(plan=make_plan(node(*(gpu(n) for n in range(gpus))), policy(sharing)))
        self.rung: queue.SimpleQueue[None] = queue.SimpleQueue()
        self.reader = LinkReader(self.driver, lambda: self.rung.put(None))

    def step(self) -> str | None:
        return read_links(self.state, self.reader)


def test_the_answer_reaches_the_view_and_is_not_asked_for_again() -> None:
    lab = LinkLab(Exclusive())
    assert lab.step() is None, "the loop does not wait for it"
    lab.driver.asked.get(timeout=30)
    lab.driver.answers.put(ANSWER)
    lab.rung.get(timeout=30)
    assert lab.step() == "read 1 links between GPUs"
    assert lab.state.view.topology == ANSWER
    assert lab.step() is None
    assert lab.driver.asked.empty()


def test_nobody_asks_where_no_two_whole_gpus_are_offered() -> None:
    for lab in (LinkLab(time_slicing(4)), LinkLab(Exclusive(), gpus=1)):
        assert lab.step() is None
        assert lab.driver.asked.empty()


def test_a_driver_that_does_not_answer_is_asked_again() -> None:
    lab = LinkLab(Exclusive())
    lab.step()
    lab.driver.asked.get(timeout=30)
    lab.driver.answers.put(NodeError("NVML does not answer"))
    assert asked_again(lab)
    lab.driver.answers.put(ANSWER)  # or its thread would wait on after the test
    lab.rung.get(timeout=30)


def asked_again(lab: LinkLab) -> bool:
    """Whether one of the next cycles asks."""
    for _ in range(3000):
        lab.step()
        with contextlib.suppress(queue.Empty):
            lab.driver.asked.get(timeout=0.01)
            return True
    return False
