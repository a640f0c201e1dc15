"""What a GpuNode leaves out to stay within 64 KiB whatever happens on its node, and never without saying so.

5,000 nodes' objects are listed by everybody who looks at the fleet, and kept by etcd. What goes first is what is needed
least: the ends of long sentences, holders beyond those there is room for (held ones before those that somebody should
look at), the later warnings; at the very end devices, quiet ones first. All of it is counted: `holdersOmitted`,
`gpusOmitted`, a last warning. The counts of resources and devices never miss anything.

16 GPUs with 160 holders lose nothing. 112 MIG devices (16 GPUs in seven each) have room for some 20 holders.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import TypeVar

from sharer.core.report.inventory import camel_case
from sharer.core.report.node import GpuStatus, HolderReport, NodeStatus, WarningReport
from sharer.core.values import dataclass, field_names, replace

MOST_BYTES = 64 * 1024  # of the status, as JSON
MOST_HOLDERS = 160
MOST_WARNINGS = 32
MOST_GPUS = 256  # with their MIG devices; the CRD's limits are these four
MOST_RESOURCES = 64
TEXT_BYTES = 200  # of a short text as JSON, at most
SUMMARY_BYTES = 1536  # of the summary, at most: its texts are short

_HOLDERS_BYTES = 4 * 1024  # that holders may always have, a dozen of them
_KEPT_ON_THE_NODE = "used_bytes"  # changes all the time
_CUT = "…"

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sparing:
    """How long texts may be, in bytes as JSON, and how many warnings there may be."""

    text: int
    message: int
    refusal: int  # a policy's problems, one a line
    warnings: int


_MORE_AND_MORE_SPARING = (
    _Sparing(text=TEXT_BYTES, message=384, refusal=2048, warnings=MOST_WARNINGS),
    _Sparing(text=64, message=192, refusal=1024, warnings=16),
    _Sparing(text=24, message=96, refusal=512, warnings=8),
)


def fitted(status: NodeStatus) -> NodeStatus:
    """The status, with as much as there is room for beside a summary."""
    tries = (_shortened(status, sparing) for sparing in _MORE_AND_MORE_SPARING)
    short = next((one for one in tries if _room_bytes(one) >= _needed_bytes(one)), None)
    if short is None:
        short = _with_fewer_gpus(_shortened(status, _MORE_AND_MORE_SPARING[-1]))
    holders = _kept(short.holders, _room_bytes(short), MOST_HOLDERS, _is_settled)
    return replace(short, holders=holders, holders_omitted=len(status.holders) - len(holders))


def _room_bytes(status: NodeStatus) -> int:
    """Room for holders."""
    return MOST_BYTES - SUMMARY_BYTES - size_bytes(plain(replace(status, holders=())))


def _needed_bytes(status: NodeStatus) -> int:
    """The least room that holders are to have."""
    needed_bytes = 0
    for one in status.holders:
        if (needed_bytes := needed_bytes + _size_bytes(one)) >= _HOLDERS_BYTES:
            return _HOLDERS_BYTES
    return needed_bytes


def _with_fewer_gpus(status: NodeStatus) -> NodeStatus:
    room_bytes = sum(map(_size_bytes, status.gpus)) + _room_bytes(status) - _needed_bytes(status)
    gpus = _kept(status.gpus, room_bytes, MOST_GPUS, _is_quiet)
    return replace(status, gpus=gpus, gpus_omitted=status.gpus_omitted + len(status.gpus) - len(gpus))


def _shortened(status: NodeStatus, sparing: _Sparing) -> NodeStatus:
    policy = status.policy
    return replace(
        status,
        node=replace(status.node, injection_reason=shortened(status.node.injection_reason, sparing.text)),
        policy=replace(
            policy, refused=shortened(policy.refused, sparing.refusal), unread=shortened(policy.unread, sparing.message)
        ),
        resources=status.resources[:MOST_RESOURCES],
        gpus=tuple(_with_short_texts(gpu, sparing) for gpu in status.gpus[:MOST_GPUS]),
        gpus_omitted=max(0, len(status.gpus) - MOST_GPUS),
        holders=tuple(_with_short_reason(one, sparing) for one in status.holders),
        warnings=_warnings(status.warnings, sparing),
    )


def _with_short_texts(gpu: GpuStatus, sparing: _Sparing) -> GpuStatus:
    return replace(
        gpu,
        reason=shortened(gpu.reason, sparing.text),
        offers_nothing=shortened(gpu.offers_nothing, sparing.text),
        waiting=shortened(gpu.waiting, sparing.text),
    )


def _with_short_reason(holder: HolderReport, sparing: _Sparing) -> HolderReport:
    """Itself, if it is short: there may be thousands."""
    reason = shortened(holder.reason, sparing.text) or ""
    return holder if reason == holder.reason else replace(holder, reason=reason)


def _warnings(found: Sequence[WarningReport], sparing: _Sparing) -> tuple[WarningReport, ...]:
    """Each once, as many as there may be; the last says how many are missing."""
    short = [replace(one, message=shortened(one.message, sparing.message) or "") for one in found]
    made = tuple({(one.reason, one.message): one for one in short}.values())
    if len(made) <= sparing.warnings:
        return made
    missing = len(made) - sparing.warnings + 1
    last = WarningReport(
        reason="Omitted", message=f"{missing} more warnings; `sharer report` on the node shows them", since=None
    )
    return (*made[: sparing.warnings - 1], last)


def _kept(items: Sequence[T], room_bytes: int, most: int, is_needed_less: Callable[[T], bool]) -> tuple[T, ...]:
    """Those for which there is room, in their order; those that are needed less go first."""
    kept: list[int] = []
    for place in sorted(range(len(items)), key=lambda place: is_needed_less(items[place])):
        room_bytes -= _size_bytes(items[place])
        if room_bytes < 0 or len(kept) == most:
            break
        kept.append(place)
    return tuple(items[place] for place in sorted(kept))


def _is_settled(holder: HolderReport) -> bool:
    """Whether nobody needs to look at it."""
    return holder.state == "held"


def _is_quiet(gpu: GpuStatus) -> bool:
    """Whether there is nothing on it, and nothing to be said of it."""
    return gpu.health == "healthy" and not (gpu.held or gpu.quarantined or gpu.draining)


def shortened(text: str | None, most_bytes: int) -> str | None:
    """A text that takes no more bytes as JSON than this, without its quotation marks.

    >>> shortened("as long as it is", 10), shortened("short", 10), shortened(None, 10)
    ('as long…', 'short', None)
    """
    if text is None or size_bytes(text) - 2 <= most_bytes:
        return text
    room_bytes, kept = most_bytes - len(_CUT.encode()), 0
    while (room_bytes := room_bytes - size_bytes(text[kept]) + 2) >= 0:
        kept += 1
    return text[:kept] + _CUT


def size_bytes(value: object) -> int:
    """How long something is as JSON."""
    return len(json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode(errors="replace"))


def _size_bytes(item: object) -> int:
    """How much an item of a list takes, with its comma."""
    return size_bytes(plain(item)) + 1


def plain(value: object) -> object:
    """A value in the words of documents (`adapters/documents` writes the same), without what stays on the node."""
    if names := _names(type(value)):
        return {name: plain(getattr(value, field)) for field, name in names if field != _KEPT_ON_THE_NODE}
    if isinstance(value, tuple):
        return [plain(one) for one in value]
    return value


_NAMES: dict[type, tuple[tuple[str, str], ...]] = {}


def _names(of: type) -> tuple[tuple[str, str], ...]:
    if of not in _NAMES:
        _NAMES[of] = tuple((name, camel_case(name)) for name in field_names(of))
    return _NAMES[of]
