"""Let go of the driver while somebody who manages it says so by a label of the node, and take it up again afterwards.

An open NVML keeps a driver from being unloaded and a GPU from being reset (gpu-limits §4). NVIDIA's GPU Operator tells
its own clients so by labels that turn from `true` to `paused-for-driver-upgrade`, `paused-for-mig-change` or the like,
with something of the cluster's own in front of it where the label had another value.

While it is so NVML is closed, every slice is Unhealthy, and we stay registered: nothing can start, and what runs is
for the operator to drain. The label changes back *before* the new driver is loaded; so slices are healthy again when
the driver has answered, not before.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from sharer.core.ports.driver import Pausable
from sharer.flows.state import NodeState

_PAUSED = "paused-for-"


def pause(state: NodeState, driver: Pausable, labels: Mapping[str, str] | None, keys: Iterable[str]) -> str | None:
    """Do as the labels of these keys say. Returns that it is paused, for as long as it is, or that it is over.

    `labels` None: they are not known, so everything stays as it is. Raises NodeError while NVML cannot be closed; call
    it again then.
    """
    if labels is None:
        return None
    view = state.view
    found = next((f"{key}={labels[key]}" for key in keys if _PAUSED in labels.get(key, "")), None)
    if found is None:
        if not view.let_go:
            return None
        state.change(let_go=False, paused=f"{view.paused}; that is over, and the driver has not answered since")
        driver.resume()
        return "the pause is over: the driver is asked again, and slices are given out once it answers"
    reason = f"paused by the node's label {found}"
    if view.paused != reason:
        state.change(let_go=True, paused=reason, driver_problem=reason)
    driver.pause(reason)
    return f"{reason}: NVML is closed, and no slice is given out"
