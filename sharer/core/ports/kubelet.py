"""Our side of the device plugin API: what the kubelet is shown, and what it asks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from sharer.core.edits import ContainerEdits
from sharer.core.values import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedDevice:
    """One line of a ListAndWatch message."""

    id: str
    healthy: bool
    numa_node: int | None = None  # None for one device of a resource means None for all of them (kubelet-contract §14)


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceOptions:
    """What the kubelet is told a resource's plugin can do."""

    pre_start_required: bool = False
    preferred_allocation: bool = True


class ResourceAnswers(Protocol):
    """The kubelet's questions about one resource. Called on gRPC threads; every answer comes from memory."""

    def allocate(self, ids: Sequence[str]) -> ContainerEdits:
        """What a container holding these IDs is given. Raises RequestError, whose text the pod's author reads."""
        ...

    def prefer(self, available: Sequence[str], must_include: Sequence[str], size: int) -> list[str]:
        """Exactly `size` of the available IDs (fewer only if there are fewer), the must-includes among them."""
        ...

    def pre_start(self, ids: Sequence[str]) -> None:
        """Called before each start of a container where `pre_start_required`. Raises RequestError to delay it."""
        ...


class KubeletLink(Protocol):
    """Our side of the device plugin API: any number of resources, each on its own socket."""

    def offer(
        self, resource: str, options: ResourceOptions, devices: Sequence[ListedDevice], answers: ResourceAnswers
    ) -> None:
        """Serve a resource and keep it registered for ever. Called again: replace the list (sent if it differs)."""
        ...

    def withdraw(self, resource: str) -> None:
        """Stop serving a resource: its stream ends, its socket goes, nothing of it is registered again."""
        ...

    def renew(self, resource: str) -> None:
        """Register a resource again, since the kubelet was seen to have another plugin under its name."""
        ...

    def registered(self) -> dict[str, bool]:
        """For each offered resource: whether the kubelet accepted it and reads its list."""
        ...

    def stop(self) -> None:
        """End every stream, remove our sockets, return within 5 seconds."""
        ...
