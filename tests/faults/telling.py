"""How a step is told, in a line of what a seed did."""

from __future__ import annotations

from dataclasses import dataclass, fields
from enum import StrEnum

from sharer.simulation.kubelet import ContainerSpec
from tests.faults.policies import Cut


@dataclass(frozen=True, slots=True)
class Told:
    """A step: its name, and its values but those that say nothing."""

    def __str__(self) -> str:
        values = ((one.name, getattr(self, one.name)) for one in fields(self))
        told = ", ".join(f"{name}={_short(value)}" for name, value in values if value is not False and value != ())
        return f"{type(self).__name__}({told})"


def _short(value: object) -> str:
    match value:
        case Cut():
            return value.name
        case tuple():
            return f"[{', '.join(map(_short, value))}]"
        case ContainerSpec():
            limits = "+".join(f"{count} {name}" for name, count in value.limits.items()) or "nothing"
            return f"{'sidecar ' if value.sidecar else ''}{value.name}: {limits}"
        case StrEnum():
            return value.value
        case _:
            return repr(value)
