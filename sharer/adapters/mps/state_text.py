"""The text of a daemon's state.json (`states`)."""

from __future__ import annotations

import msgspec

from sharer.core.mps.state import MpsGpu, MpsInterface, MpsState, folder_name


class _Gpu(msgspec.Struct, rename="camel", kw_only=True):
    problem: str | None = None
    clients: int | None = None


class _State(msgspec.Struct, rename="camel", kw_only=True):
    resource: str
    written_at_s: float
    problem: str | None  # without this field a state says nothing, so it has no default
    interface: str | None = None
    interface_reason: str | None = None
    gpus: dict[str, _Gpu] = msgspec.field(default_factory=dict)
    namespaces: dict[str, str] = msgspec.field(default_factory=dict)
    shared_memory: str | None = None
    warnings: tuple[str, ...] = ()


def to_text(state: MpsState) -> bytes:
    """One line of JSON."""
    return msgspec.json.encode(msgspec.convert(state, _State, from_attributes=True)) + b"\n"


def from_text(text: bytes, folder: str) -> MpsState | None:
    """The state in a file's text; None: there is none in it, or not this folder's."""
    try:
        raw = msgspec.json.decode(text, type=_State)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    if folder_name(raw.resource) != folder:
        return None
    interface = raw.interface if raw.interface in set(MpsInterface) else None
    if interface is None and raw.interface is not None:
        return None  # one that this version cannot use
    return MpsState(
        resource=raw.resource,
        written_at_s=raw.written_at_s,
        problem=raw.problem,
        interface=None if interface is None else MpsInterface(interface),
        interface_reason=raw.interface_reason,
        gpus={uuid: MpsGpu(problem=gpu.problem, clients=gpu.clients) for uuid, gpu in raw.gpus.items()},
        namespaces=raw.namespaces,
        shared_memory=raw.shared_memory,
        warnings=raw.warnings,
    )
