"""Watch the GPUs' health: XIDs as they come, and a cheap look at every GPU now and then."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable

from sharer.core.errors import NodeError
from sharer.core.health import Health, after_look, after_xid
from sharer.core.policy import HealthPolicy
from sharer.core.ports import HealthSource, XidEvent
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
    return _change(state, after_look(view.health, source.signs(), view.inventory, _policy(state), now_s))


def disagrees(state: NodeState) -> bool:
    """Whether the last look saw a GPU lost, or back, of which discovery says otherwise: time to discover again."""
    view = state.view
    gpus = view.inventory.gpus if view.inventory is not None else ()
    return any((gpu.lost is None) != (view.health.of(gpu.uuid).lost is None) for gpu in gpus)


def watch_xids(source: HealthSource, inbox: Inbox, stop: threading.Event) -> None:
    """Wait for XIDs until told to stop, on a thread of its own. A wait that fails at once is not repeated at once."""
    backoff_s = FIRST_BACKOFF_S
    while not stop.is_set():
        try:
            event = source.wait_for_xid(XID_WAIT_S)
        except NodeError as error:
            if stop.is_set():
                return  # that is why
            level = logging.WARNING if backoff_s == FIRST_BACKOFF_S else logging.DEBUG
            log.log(level, "XIDs cannot be waited for: %s; trying again in %.0f s", error, backoff_s)
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
        f"GPU {uuid} cannot report XIDs: it is offered, and its health is unknown between looks"
        for uuid, device in health.devices.items()
        if device.monitored is False and before.of(uuid).monitored is not False
    ]
    return "; ".join([*(f"{event}: no slice is blamed" for event in strangers), *unmonitored]) or None
