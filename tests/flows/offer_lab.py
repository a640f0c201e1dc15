"""A node whose slices are handed to a kubelet that only remembers them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace

from sharer.core.change.rollout import PolicyInForce
from sharer.core.device_id import DeviceId
from sharer.core.edits import DeviceFacts, Injection, NodeFacts
from sharer.core.holders.evidence import Evidence
from sharer.core.holders.ledger import Ledger
from sharer.core.ports.kubelet import ListedDevice, ResourceAnswers, ResourceOptions
from sharer.flows.inbox import Inbox
from sharer.flows.offer.allocate import Answers
from sharer.flows.offer.offer import offer
from sharer.flows.state import NodeState
from tests.core.builders import gpu, gpu_uuid, node, policy, time_slicing
from tests.core.evidence import SHARED, checkpoint, listed

FACTS = NodeFacts(injection=(Injection.ENVVAR,), devices={gpu_uuid(0): DeviceFacts()})


class Kubelet:
    """Remembers what it was handed."""

    def __init__(self) -> None:
        self.lists: list[tuple[str, list[str]]] = []
        self.withdrawn: list[str] = []

    def offer(
        self, resource: str, options: ResourceOptions, devices: Sequence[ListedDevice], answers: ResourceAnswers
    ) -> None:
        self.lists.append((resource, [device.id for device in devices if device.healthy]))

    def withdraw(self, resource: str) -> None:
        self.withdrawn.append(resource)

    def renew(self, resource: str) -> None: ...

    def registered(self) -> dict[str, bool]:
        return {}

    def stop(self) -> None: ...


class Specs:
    """Counts how often it is asked to write."""

    def __init__(self) -> None:
        self.writes = 0
        self.kept: list[set[str]] = []
        self.is_behind = False
        self.has_leftovers = False

    def write(self, ids: Iterable[DeviceId], facts: NodeFacts) -> NodeFacts:
        self.writes += 1
        return replace(facts, injection_reason=f"with {len(list(ids))} specs")

    def keep_only(self, ids: Collection[DeviceId]) -> None:
        self.kept.append({str(one) for one in ids})


class OfferLab:
    """A node with one GPU in four slices, whose sources were read."""

    def __init__(self) -> None:
        self.state, self.kubelet, self.specs, self.inbox = NodeState(), Kubelet(), Specs(), Inbox()
        self.now_s = 100.0
        self.state.change(
            inventory=node(gpu(0)),
            facts=FACTS,
            policy=PolicyInForce(policy=policy(time_slicing(4))),
            ledger=Ledger(evidence=Evidence(listed=listed(serial=2), checkpoint=checkpoint(serial=2))),
        )

    def answers(self, resource: str = SHARED) -> Answers:
        return Answers(self.state, resource, (), self.inbox.put, lambda resource, ids: None)

    def step(self, after_s: float = 2.0) -> str | None:
        self.now_s += after_s
        return offer(self.state, self.kubelet, self.specs, self.answers, self.now_s)

    def facts_are_read(self) -> None:
        """As the daemon does every 10 seconds."""
        self.state.change(facts=replace(FACTS))
