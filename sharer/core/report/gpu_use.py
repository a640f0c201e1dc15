"""How much of each GPU is used, and by whom, as far as the process lists tell. Never a guess: None is "not known"."""

from __future__ import annotations

from collections.abc import Iterable

from sharer.core.device_id import uuid_part
from sharer.core.holders.evidence import Holder
from sharer.core.holders.ledger import Entry, Ledger


class GpuUse:
    """The last reading of the process lists beside the ledger of the same moment."""

    def __init__(self, ledger: Ledger) -> None:
        reading = ledger.evidence.processes
        self._asked = frozenset[str]() if reading is None else reading.asked
        self._on: dict[str, list[int | None]] = {}  # device -> what each of its processes uses
        self._of_pod: dict[tuple[str, str], list[int | None]] = {}  # device and pod UID -> the same
        self._anybodys: set[str] = set()  # devices with a process of which the pod is not known
        for process in () if reading is None else reading.processes:
            self._on.setdefault(process.gpu_uuid, []).append(process.used_bytes)
            if process.uid is not None:
                self._of_pod.setdefault((process.gpu_uuid, process.uid), []).append(process.used_bytes)
            elif not process.attributed:
                self._anybodys.add(process.gpu_uuid)
        self._containers: dict[tuple[str, str], set[str]] = {}  # device and pod UID -> containers with a slice of it
        for (_, text), entry in ledger.entries.items():
            for holder in holders_of(entry):
                if holder.uid is not None:
                    uuid = uuid_part(text)
                    self._containers.setdefault((uuid, holder.uid), set()).add(holder.container)

    def of_device(self, uuid: str) -> int | None:
        """Bytes in use on a GPU or MIG device; None: its processes, or the use of one of them, are not known."""
        return total_bytes(self._on.get(uuid, ())) if uuid in self._asked else None

    def of_holder(self, holder: Holder, uuid: str) -> int | None:
        """Bytes that a container uses on a GPU or MIG device, whatever number of its slices it holds.

        None: not known, or another container of its pod holds a slice there too and may be the one. A process tells
        its container's ID, and the sources of the ledger only tell names.
        """
        if uuid not in self._asked or holder.uid is None or uuid in self._anybodys:
            return None
        own = self._of_pod.get((uuid, holder.uid), [])
        alone = self._containers.get((uuid, holder.uid), set()) <= {holder.container}
        return total_bytes(own) if alone or not own else None


def holders_of(entry: Entry) -> tuple[Holder, ...]:
    """Everybody who may have something on a slice: its owner, if it has one, and the remnants."""
    remnants = tuple(remnant.holder for remnant in entry.remnants)
    return remnants if entry.owner is None else (entry.owner, *remnants)


def total_bytes(amounts: Iterable[int | None]) -> int | None:
    """The sum; None if one of them is not known.

    >>> total_bytes([1, 2]), total_bytes([1, None]), total_bytes([])
    (3, None, 0)
    """
    total = 0
    for amount in amounts:
        if amount is None:
            return None
        total += amount
    return total
