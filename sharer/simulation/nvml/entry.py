"""What stands around each function, as around those of the C library in `tests/fakes/nvml`.

It counts the call, applies the steering's faults, and refuses what a real library refuses (not initialised: 1; a null
pointer, or a handle of another session: 2).
"""

from __future__ import annotations

from collections.abc import Callable

from sharer.simulation.nvml import answers as to
from sharer.simulation.nvml.answers import CArgument
from sharer.simulation.nvml.session import Session

Function = Callable[..., int]
FUNCTIONS: dict[str, Function] = {}
"""What is entered, by NVML's names: `exported`, `of_device` and `of_index` put it here."""


def exported(function: Function) -> Function:
    """A function of the library that is about no device."""
    name = function.__name__

    def enter(self: Session, *arguments: CArgument) -> int:
        code = self.driver.enter(name, ())
        if code == to.SUCCESS and not self.users and name != "nvmlInitWithFlags":
            code = to.UNINITIALIZED
        if code == to.SUCCESS and None in arguments:
            code = to.INVALID_ARGUMENT
        return code or function(self, *arguments)

    FUNCTIONS[name] = enter
    return function


def of_device(function: Function) -> Function:
    """A function of the library whose first argument is a device's handle."""
    name = function.__name__

    def enter(self: Session, handle: CArgument, *arguments: CArgument) -> int:
        device = self.resolve(handle)
        code = self.driver.enter(name, () if device is None else device.uuids)
        if code == to.SUCCESS and not self.users:
            code = to.UNINITIALIZED
        if code == to.SUCCESS and (device is None or (None in arguments and "Processes" not in name)):
            code = to.INVALID_ARGUMENT
        if code == to.SUCCESS and device is not None and device.gone:
            code = to.GPU_IS_LOST
        return code or function(self, device, *arguments)

    FUNCTIONS[name] = enter
    return function


def of_index(function: Function) -> Function:
    """A function of the library whose first argument is a GPU's index."""
    name = function.__name__

    def enter(self: Session, index: CArgument, *arguments: CArgument) -> int:
        uuid = dict(enumerate(self.known)).get(to.number(index))
        code = self.driver.enter(name, () if uuid is None else (uuid,))
        if code == to.SUCCESS and not self.users:
            code = to.UNINITIALIZED
        if code == to.SUCCESS and (uuid is None or None in arguments):
            code = to.INVALID_ARGUMENT
        if code == to.SUCCESS and all(gpu.uuid != uuid for gpu in self.driver.gpus):
            code = to.GPU_IS_LOST
        return code or function(self, uuid, *arguments)

    FUNCTIONS[name] = enter
    return function
