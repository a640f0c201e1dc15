"""Take an operator's word that a GPU was repaired: the Node annotation `sharer.dev/recover: <uuid>@<time>` (DESIGN §3).

The time is RFC 3339, and says which faults are meant: those that were last seen before it. An annotation counts once,
and stays where it is; so after a restart it is read again, and ends nothing that came since. The operator's clock and
the node's may differ: a time in the future counts as now, and a fault that seems to be newer is named with its time.
What the driver itself reports (a GPU that is gone, a recovery action that is due) no annotation can end.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime

from sharer.core.errors import NodeError
from sharer.core.health import after_operator
from sharer.core.policy.values import nearest
from sharer.flows.state import NodeState

_OURS = "sharer.dev/"
RECOVER_ANNOTATION = f"{_OURS}recover"  # of a Node


def recover(state: NodeState, annotations: Mapping[str, str], now_s: float, wall_s: float) -> str | None:
    """End the fault that the annotation is about. Returns what came of it; None: there is none, or it has counted.

    `wall_s` is the wall clock's reading at `now_s`. Raises NodeError, which says what to write instead, for a text that
    cannot be read, a device that does not exist, and (once) a fault that is newer.
    """
    view, asked = state.view, annotations.get(RECOVER_ANNOTATION)
    if asked is None and (meant := next(filter(_is_meant, annotations), None)) is not None:
        raise NodeError(f"the annotation {meant} means nothing; did you mean {RECOVER_ANNOTATION}?")
    if asked is None or asked == view.recovery_counted or view.inventory is None:
        return None
    uuid, at_wall_s = _read(asked)
    if uuid not in view.inventory.uuids:
        raise NodeError(f"{_shown(asked)}: this node has no GPU or MIG device of that UUID; correct or remove it")
    fault = view.health.of(uuid).fault
    health = after_operator(view.health, uuid, now_s + min(at_wall_s - wall_s, 0.0))
    state.change(health=health, recovery_counted=asked)
    if fault is None:
        return f"{_shown(asked)} changes nothing: no fault of {uuid} is waiting for a repair"
    if health.of(uuid).fault is not None:
        last = datetime.fromtimestamp(wall_s + fault.last_s - now_s, UTC)
        raise NodeError(
            f"{_shown(asked)} changes nothing: {fault.reason} was last seen at {_written(last)}; after a repair, write"
            " a later time"
        )
    return f"{_shown(asked)} ends a fault: {fault.reason}"


def _is_meant(annotation: str) -> bool:
    """Whether it is the annotation with a slip of the pen: else the operator would wait for nothing."""
    prefix, slash, name = annotation.partition("/")
    return f"{prefix}{slash}" == _OURS and nearest(name, ["recover"]) is not None


def _read(asked: str) -> tuple[str, float]:
    """The UUID, and the seconds since the epoch."""
    uuid, _, written = asked.strip().partition("@")
    try:
        at = datetime.fromisoformat(written)
    except ValueError:
        at = None
    if not uuid or at is None or at.tzinfo is None:
        raise NodeError(f"{_shown(asked)} cannot be read; write <uuid>@<time> with a time such as 2026-01-31T12:00:00Z")
    return uuid, at.timestamp()


def _shown(asked: str) -> str:
    return f"the annotation {RECOVER_ANNOTATION}={asked[:120]!r}"


def _written(at: datetime) -> str:
    return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")
