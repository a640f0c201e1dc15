"""How GPUs are linked. Read once, never while the kubelet waits: a link query can take 0.6 s (bug case P12).

Each query is a job of its own in the worker, so that discovery and health are asked in between. What cannot be read is
unknown for that pair, with the reason.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import partial
from typing import Protocol, TypeVar

from sharer.adapters.nvml.calls import Calls, Handle
from sharer.adapters.nvml.errors import FUNCTION_NOT_FOUND, INVALID_ARGUMENT, NOT_SUPPORTED, NvmlCallError
from sharer.adapters.nvml.session import Session
from sharer.core.inventory import GpuLink, PcieDistance, Topology
from sharer.core.values import dataclass

T = TypeVar("T")

MAX_NVLINKS = 64  # a bound for drivers that answer nonsense; NVML 13 knows 36
_NO_SUCH_LINK = (INVALID_ARGUMENT, NOT_SUPPORTED, FUNCTION_NOT_FOUND)
_SWITCH = "switch"  # in place of a PCI bus ID


class Ask(Protocol):
    """Has a question answered in the worker, in an open session. Raises NodeError."""

    def __call__(self, question: Callable[[Session], T], /) -> T:
        """The answer."""
        ...


@dataclass(frozen=True, slots=True)
class _Gpu:
    """What one GPU says of itself."""

    uuid: str
    pci_bus_id: str | None
    peers: tuple[str, ...] | NvmlCallError  # at the end of each active NVLink: a PCI bus ID or "switch"


def read_topology(ask: Ask) -> Topology:
    """Every pair of GPUs that can be asked. Raises NodeError only if NVML as a whole does not answer."""
    uuids = ask(lambda session: [gpu.uuid for gpu in session.gpus() if gpu.handle is not None and gpu.uuid is not None])
    gpus = [_read_gpu(ask, uuid) for uuid in uuids]
    return Topology(links=tuple(_read_link(ask, one, other) for one, other in itertools.combinations(gpus, 2)))


def _read_gpu(ask: Ask, uuid: str) -> _Gpu:
    pci_bus_id = _query(ask, uuid, lambda calls, handle: calls.pci_bus_id(handle).upper())
    return _Gpu(uuid, pci_bus_id if isinstance(pci_bus_id, str) else None, _read_peers(ask, uuid))


def _read_peers(ask: Ask, uuid: str) -> tuple[str, ...] | NvmlCallError:
    peers: list[str] = []
    for link in range(MAX_NVLINKS):
        peer = _query(ask, uuid, partial(_peer, link))
        if isinstance(peer, NvmlCallError) and peer.code in _NO_SUCH_LINK:
            break  # links are numbered without gaps
        if isinstance(peer, NvmlCallError):
            return peer
        if peer is not None:
            peers.append(peer)
    return tuple(peers)


def _peer(link: int, calls: Calls, handle: Handle) -> str | None:
    """What is at the other end of an NVLink; None: it is down. Raises NvmlCallError if there is no such link."""
    if not calls.nvlink_is_up(handle, link):
        return None
    try:
        to_switch = calls.nvlink_leads_to_switch(handle, link)
    except NvmlCallError as error:
        if not error.optional:
            raise
        to_switch = False  # an older driver: the PCI bus ID will tell
    try:
        return _SWITCH if to_switch else calls.nvlink_peer(handle, link).upper()
    except NvmlCallError as error:
        raise NvmlCallError(error.function, None, f"NVLink {link} is up, but not where it ends: {error}") from error


def _read_link(ask: Ask, one: _Gpu, other: _Gpu) -> GpuLink:
    unknown: list[tuple[str, str]] = []
    nvlinks: int | None = None
    if isinstance(one.peers, NvmlCallError) or isinstance(other.peers, NvmlCallError):
        unknown.append(("nvlinks", str(one.peers if isinstance(one.peers, NvmlCallError) else other.peers)))
    elif one.pci_bus_id is None or other.pci_bus_id is None:
        unknown.append(("nvlinks", "the GPUs' PCI bus IDs are not known, which tell where an NVLink ends"))
    else:
        # Over switches every GPU reaches every other, with as many links as the one with fewer has.
        nvlinks = one.peers.count(other.pci_bus_id) + min(one.peers.count(_SWITCH), other.peers.count(_SWITCH))
    pcie = ask(partial(_distance, one.uuid, other.uuid))
    if isinstance(pcie, NvmlCallError):
        unknown.append(("pcie", str(pcie)))
    return GpuLink(
        uuids=(one.uuid, other.uuid),
        nvlinks=nvlinks,
        pcie=None if isinstance(pcie, NvmlCallError) else pcie,
        unknown=tuple(unknown),
    )


def _distance(one: str, other: str, session: Session) -> PcieDistance | NvmlCallError:
    try:
        level = session.calls.common_ancestor(session.handle(one), session.handle(other))
        return PcieDistance(level)
    except NvmlCallError as error:
        return error
    except ValueError:
        return NvmlCallError("nvmlDeviceGetTopologyCommonAncestor", None, "the level is none that NVML's header has")


def _query(ask: Ask, uuid: str, query: Callable[[Calls, Handle], T]) -> T | NvmlCallError:
    """A query about one GPU. Its failure is an answer, and no reason to doubt the session."""

    def question(session: Session) -> T | NvmlCallError:
        try:
            return query(session.calls, session.handle(uuid))
        except NvmlCallError as error:
            return error

    return ask(question)
