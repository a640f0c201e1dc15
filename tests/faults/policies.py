"""The policies between which the operator in these sequences changes, and what each means, told independently."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

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
    patience: str

    @property
    def text(self) -> str:
        """As the operator writes it."""
        limit = "" if self.limited else ", memory: {limit: none}"
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
        ("four", GPU, (4, 4), True),
        ("two", GPU, (2, 2), True),
        ("eight-and-two", GPU, (8, 2), True),
        ("four-and-eight", GPU, (4, 8), True),
        ("renamed", OTHER, (4, 4), True),
        ("unlimited", GPU, (4, 4), False),
    )
    return tuple(
        Cut(name=f"{name}, patience {patience}", resource=resource, counts=counts, limited=limited, patience=patience)
        for name, resource, counts, limited in shapes
        for patience in ("1s", "10m")
    )


CUTS = _cuts()
FIRST = CUTS[1]
MISTAKES = (
    "rules: 4\n",
    "rules: [",
    policy("{match: {}, strategy: time-slicing, slices: 0}"),
    policy("{match: {}, strategy: time-slicing, slices: 4, replicas: 2}"),
    policy("{match: {}, strategy: time-slicing, slices: 65536, memory: {limit: none}}"),
)
