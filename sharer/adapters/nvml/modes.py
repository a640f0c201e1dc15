"""Reading and setting a GPU's compute mode (`core/mps/compute_modes`)."""

from __future__ import annotations

from sharer.adapters.nvml.errors import NO_PERMISSION, NOT_SUPPORTED, UNINITIALIZED, NvmlCallError
from sharer.adapters.nvml.session import Session
from sharer.core.errors import NodeError
from sharer.core.mps.compute_modes import mode_name

_CURES = {
    NO_PERMISSION: "; only root may set it: run this as root on the host, with CAP_SYS_ADMIN",
    NOT_SUPPORTED: "; this GPU has none, as in MIG mode",
}


def read_mode(session: Session, uuid: str) -> int:
    """The mode in force, as NVML numbers it. In the worker. Raises NodeError; NvmlCallError if the session is dead."""
    try:
        return session.calls.compute_mode(session.handle(uuid))
    except NvmlCallError as error:
        raise _explained("cannot be read", error) from error


def set_mode(session: Session, uuid: str, mode: int) -> None:
    """Set it, and read it back. In the worker. Raises as `read_mode`."""
    try:
        session.calls.set_compute_mode(session.handle(uuid), mode)
    except NvmlCallError as error:
        raise _explained(f"cannot be set to {mode_name(mode)}", error) from error
    found = read_mode(session, uuid)
    if found != mode:
        raise NodeError(f"the driver says that it is {mode_name(found)} after it was set to {mode_name(mode)}")


def _explained(what: str, error: NvmlCallError) -> NodeError:
    if error.code == UNINITIALIZED:
        raise error  # the session is dead: the driver opens another one, and asks again
    return NodeError(f"it {what}: {error}{_CURES.get(error.code or 0, '')}")
