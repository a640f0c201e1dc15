"""One process's view of the GPUs: its session, its handles, its event sets."""

from __future__ import annotations

from sharer.simulation.hardware import SimulatedGpu, SimulatedMig
from sharer.simulation.nvml import answers as to
from sharer.simulation.nvml.answers import CArgument, Device
from sharer.simulation.nvml.driver import SimulatedDriver


class EventSet:
    """What a caller waits for events with."""

    def __init__(self, seen: int) -> None:
        self.seen = seen  # so many of all events are over for it
        self.since: dict[str, int] = {}  # how many events there were when a GPU was registered, by UUID


class Session:
    """One process's view."""

    def __init__(self, driver: SimulatedDriver) -> None:
        self.driver = driver
        self.users = 0  # nvmlInit is counted
        self.known: dict[str, SimulatedGpu] = {}  # the GPUs of this session, in its order
        self._hidden: frozenset[tuple[str, int]] = frozenset()  # MIG devices that were stale before it
        self._handles: dict[int, tuple[str, int | None]] = {}  # a GPU's UUID, the index of a MIG device below it
        self.event_sets: dict[int, EventSet] = {}
        self._last_address = 0x1000

    def begin(self) -> None:
        """Find the GPUs that there are now. Handles of an earlier session stand for nothing any more."""
        self._handles.clear()
        self.known = {gpu.uuid: gpu for gpu in self.driver.gpus}
        self._hidden = frozenset(
            (mig.uuid, mig.index) for gpu in self.driver.gpus for mig in gpu.mig_devices if mig.stale
        )

    def resolve(self, handle: CArgument) -> Device | None:
        """The device that a handle stands for; None: not a handle of this session."""
        uuid, index = self._handles.get(to.address(handle), (None, None))
        if uuid is None:
            return None
        present = next((gpu for gpu in self.driver.gpus if gpu.uuid == uuid), None)
        gpu = present or self.known[uuid]
        mig = None if index is None else self.mig(gpu, index)
        return None if index is not None and mig is None else Device(gpu, mig, gone=present is None)

    def mig(self, gpu: SimulatedGpu, index: int) -> SimulatedMig | None:
        """The MIG device at an index, as this session sees it."""
        migs = (mig for mig in gpu.mig_devices if mig.index == index and (mig.uuid, index) not in self._hidden)
        return next(migs, None)

    def handle(self, uuid: str, mig_index: int | None = None) -> int:
        """The handle of a GPU, or of the MIG device at an index of it; always the same one."""
        for address, meaning in list(self._handles.items()):  # another thread may add one
            if meaning == (uuid, mig_index):
                return address
        address = self.new_address()
        self._handles[address] = (uuid, mig_index)
        return address

    def new_address(self) -> int:
        """One that stands for nothing else."""
        self._last_address += 16
        return self._last_address
