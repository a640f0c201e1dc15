"""How much of which GPU each container uses, from one reading of the process lists. What cannot be told is not zero."""

from __future__ import annotations

from collections.abc import Collection

from sharer.core.holders.evidence import ProcessReading
from sharer.core.inventory import Inventory
from sharer.core.limits.limits import Tenant
from sharer.core.values import dataclass

NOT_KNOWN = "which cgroup is its own is not known"
_NOTHING_ASKED = ProcessReading()
_NO_LIST = "there is no list of the processes on it"
_UNSAID = "the driver does not list the clients of MPS"


@dataclass(frozen=True, slots=True, kw_only=True)
class Use:
    """What one container was seen to use of one device."""

    known_bytes: int  # it uses at least this
    unknown: str | None = None  # why it may use more; None: that is all


@dataclass(frozen=True, slots=True, kw_only=True)
class MpsUse:
    """Which processes of one container on one GPU are clients of MPS, by PID."""

    clients: tuple[int, ...] = ()
    others: tuple[int, ...] = ()
    unknown: str | None = None  # why there may be more of either; None: that is all


class Usage:
    """One reading of the process lists, looked up by container."""

    def __init__(self, reading: ProcessReading | None, inventory: Inventory | None) -> None:
        """`reading` None: there is none, or none that is recent enough to say anything."""
        reading = _NOTHING_ASKED if reading is None else reading
        self._asked, self._lost = reading.asked, reading.lost
        self._known: dict[tuple[str, str], dict[str, int]] = {}  # pod and container -> device -> bytes
        self._pids: dict[tuple[str, str], dict[str, list[tuple[int, bool | None]]]] = {}  # and whether by MPS
        self._unknown: dict[tuple[str, str], dict[str, str]] = {}  # pod and container -> device -> why
        self._nobodys: dict[str, str] = {}  # device -> why somebody's use of it is not known
        self._of_pod: dict[str, dict[str, str]] = {}  # pod -> device -> likewise, for its containers
        self._instances = (
            {gpu.uuid: {mig.uuid for mig in gpu.mig_devices} for gpu in inventory.gpus if gpu.mig_devices}
            if inventory is not None
            else {}
        )
        self._silent = () if inventory is None else tuple(self._without_list(inventory))
        for process in reading.processes:
            what = "a process" if process.pid is None else f"process {process.pid}"
            if not process.attributed:
                self._nobodys[process.gpu_uuid] = f"whose {what} is cannot be told"
            elif process.uid is not None and process.container_id is None:
                self._of_pod.setdefault(process.uid, {})[process.gpu_uuid] = (
                    f"which container {what} is in is not known"
                )
            elif process.uid is not None and process.container_id is not None:
                key = (process.uid, process.container_id)
                known = self._known.setdefault(key, {})
                known[process.gpu_uuid] = known.get(process.gpu_uuid, 0) + (process.used_bytes or 0)
                if process.pid is not None:
                    pids = self._pids.setdefault(key, {}).setdefault(process.gpu_uuid, [])
                    pids.append((process.pid, process.is_mps_client))
                if process.used_bytes is None:
                    why = f"the driver does not say how much {what} uses"
                    self._unknown.setdefault(key, {})[process.gpu_uuid] = why

    def of(self, uid: str, container_id: str | None, uuid: str) -> Use:
        """What a container uses of a GPU or MIG device."""
        if container_id is None:
            return Use(known_bytes=0, unknown=NOT_KNOWN)
        key = (uid, container_id)
        unknown = (
            (None if uuid in self._asked else _NO_LIST)
            or self._unknown.get(key, {}).get(uuid)
            or self._of_pod.get(uid, {}).get(uuid)
            or self._nobodys.get(uuid)
        )
        return Use(known_bytes=self._known.get(key, {}).get(uuid, 0), unknown=unknown)

    def clients(self, uid: str, container_id: str, uuid: str) -> MpsUse:
        """Which processes of a container came to a GPU by MPS, and which did not."""
        found = self._pids.get((uid, container_id), {}).get(uuid, [])
        unsaid = any(is_client is None for _, is_client in found)
        return MpsUse(
            clients=tuple(pid for pid, is_client in found if is_client),
            others=tuple(pid for pid, is_client in found if is_client is False),
            unknown=None if uuid in self._asked and not unsaid else _UNSAID if uuid in self._asked else _NO_LIST,
        )

    def why_not_confined(self, tenant: Tenant) -> str | None:
        """Why it cannot be said that a container uses no device but its own; None: it can."""
        if tenant.container_id is None:
            return NOT_KNOWN
        if strays := self.strays(tenant.uid, tenant.container_id, tenant.held):
            return f"it uses {', '.join(strays)}, of which it holds nothing"
        return self.blind_spot(tenant.held)

    def strays(self, uid: str, container_id: str | None, held: Collection[str]) -> tuple[str, ...]:
        """The devices that a container uses and does not hold."""
        used = self._known.get((uid, container_id), {}) if container_id is not None else {}
        return tuple(
            sorted(uuid for uuid in used if uuid not in held and not self._instances.get(uuid, set()) & {*held})
        )

    def blind_spot(self, held: Collection[str]) -> str | None:
        """Why a container may use a device that it does not hold without our seeing it; None: we would see it."""
        if self._silent:
            return f"there is no list of the processes on {', '.join(self._silent)}"
        return next((f"{why}, on {uuid}" for uuid, why in sorted(self._nobodys.items()) if uuid not in held), None)

    def _without_list(self, inventory: Inventory) -> list[str]:
        """The GPUs that could be in use without our seeing it; nothing uses one that is lost."""
        silent = []
        for gpu in inventory.gpus:
            migs = [mig.uuid for mig in gpu.mig_devices if mig.lost is None]
            is_listed = gpu.uuid in self._asked or (migs and self._asked.issuperset(migs))
            if gpu.lost is None and gpu.uuid not in self._lost and not is_listed:
                silent.append(gpu.uuid)
        return silent
