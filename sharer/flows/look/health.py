"""Watch the GPUs' health: XIDs as they come, and a cheap look at every GPU now and then."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable

from sharer.core.errors import FinalError, NodeError
from sharer.core.health import Health, after_look, after_xid
from sharer.core.policy.model import HealthPolicy
from sharer.core.ports.driver import HealthSource, XidEvent
from sharer.flows.inbox import Inbox
from sharer.flows.state import NodeState

XID_WAIT_S = 30.0  # one blocking wait; only a stop cares how long
FIRST_BACKOFF_S, LAST_BACKOFF_S = 1.0, 60.0  # between waits that fail at once

log = logging.getLogger(__name__)


def take_xids(state: NodeState, events: Iterable[XidEvent], now_s: float) -> str | None:
    """Let XIDs count. Returns what is new about the node, or None."""
    view = state.view
    if view.inventory is None:
        return None
    health = view.health
    for event in events:
        health = after_xid(health, event, view.inventory, _policy(state), now_s)
    return _change(state, health)


def look(state: NodeState, source: HealthSource, now_s: float) -> str | None:
    """Look at every GPU. Returns what is new about the node, or None.

    Raises NodeError if the driver does not answer.
    """
    view = state.view
    if view.inventory is None:
        return None
    signs = source.signs()
    state.change(driver_read_s=now_s)
    return _change(state, after_look(view.health, signs, view.inventory, _policy(state), now_s))


def disagrees(state: NodeState) -> bool:
    """Whether the last look saw a GPU lost, or back, of which discovery says otherwise: time to discover again."""
    view = state.view
    gpus = view.inventory.gpus if view.inventory is not None else ()
    return any((gpu.lost is None) != (view.health.of(gpu.uuid).lost is None) for gpu in gpus)


def watch_xids(
    source: HealthSource, inbox: Inbox, stop: threading.Event, driver_problem: Callable[[], str | None]
) -> None:
    """Wait for XIDs until told to stop, on a thread of its own. A wait that fails at once is not repeated at once.

    Failures are warned of from the second on, once for each reason, and not for one that is the driver's own: at the
    first, nobody may have looked at the driver yet.
    """
    backoff_s, said = FIRST_BACKOFF_S, None
    while not stop.is_set():
        try:
            event = source.wait_for_xid(XID_WAIT_S)
        except FinalError:
            return  # the loop's next look says so, and ends
        except NodeError as error:
            if stop.is_set():
                return  # that is why
            if backoff_s > FIRST_BACKOFF_S and str(error) not in (said, driver_problem()):
                said = str(error)
                log.warning("XIDs cannot be waited for: %s; it is tried again", error)
            stop.wait(backoff_s)
            backoff_s = min(2 * backoff_s, LAST_BACKOFF_S)
            continue
        backoff_s = FIRST_BACKOFF_S
        if event is not None:
            inbox.put(event)


def _policy(state: NodeState) -> HealthPolicy:
    policy = state.view.policy.policy
    return HealthPolicy() if policy is None else policy.health


def _change(state: NodeState, health: Health) -> str | None:
    before = state.view.health
    state.change(health=health)
    strangers = health.unattributed[len(before.unattributed) :]
    unmonitored = [
        f"{uuid} cannot report XIDs: it is offered, and its health is unknown between looks"
        for uuid, device in health.devices.items()
        if device.monitored is False and before.of(uuid).monitored is not False
    ]
    return "; ".join([*(f"{event}: no slice is blamed" for event in strangers), *unmonitored]) or None
