"""The policies between which the operator in these sequences changes, and what each means, told independently."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from sharer.core.quantities import MIB
from sharer.simulation.hardware import SimulatedGpu, SimulatedMig
from tests.e2e.gpus import GPU, A, B, policy, slices

GPUS = (A, B)
MEMORY_MIB = 81920  # of each GPU
OTHER = "example.com/gpu"  # the name after a rename
_MORE = {"health": "{transient: {xids: [94], recoverAfter: 1s}}"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """A policy: how many slices of each GPU, under which name."""

    name: str
    resource: str
    counts: tuple[int, int]  # of the first and of the second GPU
    limited: bool  # whether its slices promise memory
    guaranteed: bool  # whether that is reserved for them as well
    patience: str

    @property
    def text(self) -> str:
        """As the operator writes it."""
        limit = ", memory: {guarantee: true}" if self.guaranteed else "" if self.limited else ", memory: {limit: none}"
        rules = (
            f"{{match: {{uuid: [{gpu.uuid}]}}, resource: {self.resource}, strategy: time-slicing,"
            f" slices: {count}{limit}}}"
            for gpu, count in zip(GPUS, self.counts, strict=True)
        )
        return policy(*rules, drain=f"{{patience: {self.patience}}}", **_MORE)

    @property
    def ids(self) -> Mapping[str, str]:
        """Every device ID that it offers, and the UUID of its GPU."""
        return {
            one: gpu.uuid
            for gpu, count in zip(GPUS, self.counts, strict=True)
            for one in slices(gpu, count, MEMORY_MIB // count if self.limited else None)
        }


def _cuts() -> tuple[Cut, ...]:
    shapes = (
        ("four", GPU, (4, 4), "limited"),
        ("two", GPU, (2, 2), "limited"),
        ("eight-and-two", GPU, (8, 2), "limited"),
        ("four-and-eight", GPU, (4, 8), "limited"),
        ("renamed", OTHER, (4, 4), "limited"),
        ("guaranteed", GPU, (4, 4), "guaranteed"),
        ("unlimited", GPU, (4, 4), "unlimited"),
    )
    return tuple(
        Cut(
            name=f"{name}, patience {patience}",
            resource=resource,
            counts=counts,
            limited=memory != "unlimited",
            guaranteed=memory == "guaranteed",
            patience=patience,
        )
        for name, resource, counts, memory in shapes
        for patience in ("1s", "10m")
    )


CUTS = _cuts()
(FIRST,) = (cut for cut in CUTS if cut.name == "guaranteed, patience 10m")  # the most that an end can leave behind
MISTAKES = (
    "rules: 4\n",
    "rules: [",
    policy("{match: {}, strategy: time-slicing, slices: 0}"),
    policy("{match: {}, strategy: time-slicing, slices: 4, replicas: 2}"),
    policy("{match: {}, strategy: time-slicing, slices: 65536, memory: {limit: none}}"),
)


def in_mig_mode(number: int) -> SimulatedGpu:
    """A GPU of which somebody has made one MIG device."""
    uuid = f"MIG-77b1e0d2-{number:04d}-4f1a-8c3e-000000000000"
    device = SimulatedMig(uuid=uuid, index=0, gpu_instance_id=7, profile="1g.10gb", memory_bytes=9728 * MIB)
    return replace(GPUS[number], mig_enabled=True, mig_devices=(device,))
