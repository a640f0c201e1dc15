"""The policies between which the operator in these sequences changes, and what each means, told independently."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from sharer.core.quantities import MIB
from sharer.simulation.hardware import SimulatedGpu, SimulatedMig
from tests.e2e.gpus import GPU, A, B, gpu, policy, slices

GPUS = (A, B)  # which the policies share by time
C = gpu(2)  # which some nodes have besides, for MPS alone
MPS = "nvidia.com/gpu.mps"
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
    mps: int = 0  # clients of GPU C; 0: it is not offered

    @property
    def text(self) -> str:
        """As the operator writes it."""
        limit = ", memory: {guarantee: true}" if self.guaranteed else "" if self.limited else ", memory: {limit: none}"
        rules = [
            f"{{match: {{uuid: [{gpu.uuid}]}}, resource: {self.resource}, strategy: time-slicing,"
            f" slices: {count}{limit}}}"
            for gpu, count in zip(GPUS, self.counts, strict=True)
        ]
        if self.mps:
            rules.append(f"{{match: {{uuid: [{C.uuid}]}}, resource: {MPS}, strategy: mps, slices: {self.mps}}}")
        return policy(*rules, drain=f"{{patience: {self.patience}}}", **_MORE)

    @property
    def ids(self) -> Mapping[tuple[str, str], str]:
        """Everything that it offers, by resource and device ID, and the UUID of its GPU."""
        by_time = {
            (self.resource, one): gpu.uuid
            for gpu, count in zip(GPUS, self.counts, strict=True)
            for one in slices(gpu, count, MEMORY_MIB // count if self.limited else None)
        }
        limit = "" if not self.mps else f"{MEMORY_MIB // self.mps}-{100 // self.mps}"
        return by_time | {(MPS, f"{C.uuid}::mps-{number}-{limit}"): C.uuid for number in range(self.mps)}

    def with_mps(self, clients: int) -> Cut:
        """The same, with so many clients of GPU C."""
        return replace(self, name=f"{self.name}, {clients} by MPS", mps=clients)


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
MPS_COUNTS = (4, 2, 0)
MPS_CUTS = tuple(cut.with_mps(count) for cut in CUTS for count in MPS_COUNTS)
MPS_FIRST = FIRST.with_mps(4)
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
