"""Look at the node: which GPUs exist, and how they get into a container."""

from __future__ import annotations

from sharer.core.errors import NodeError
from sharer.core.inventory import Inventory, remember_lost
from sharer.core.limits import make_terms, with_driver_limits
from sharer.core.ports import FactsReader, GpuDriver
from sharer.flows.state import NodeState


def refresh(state: NodeState, driver: GpuDriver, facts: FactsReader) -> str | None:
    """Bring inventory and facts up to date. Returns what changed, or None.

    Raises NodeError while the driver does not answer; what was known stays, and the view says why it may be old.
    """
    before = state.view
    try:
        found = driver.discover()
    except NodeError as error:
        state.change(driver_problem=str(error))
        raise
    inventory = found if before.inventory is None else remember_lost(before.inventory, found)
    terms = make_terms(inventory, before.policy.policy, before.enforcers)
    found_facts = with_driver_limits(facts.read(inventory), terms)
    if before.facts is not None and before.facts.digest() == found_facts.digest() and before.facts == found_facts:
        found_facts = before.facts  # so that nobody works out again what follows from it
    state.change(inventory=inventory, facts=found_facts, driver_problem=None)
    if before.inventory is None:
        return _introduce(inventory)
    known, now = {gpu.uuid for gpu in before.inventory.gpus}, {gpu.uuid for gpu in inventory.gpus}
    new = sorted(now - known)
    warnings = [warning for warning in inventory.warnings if warning not in before.inventory.warnings]
    return "; ".join([*(f"found GPU {uuid}" for uuid in new), *warnings]) or None


def _introduce(inventory: Inventory) -> str:
    products: dict[str, int] = {}
    for gpu in inventory.gpus:
        name = gpu.product or "GPU of unknown product"
        products[name] = products.get(name, 0) + 1
    found = ", ".join(f"{count} × {name}" for name, count in products.items()) or "no GPU"
    return "; ".join([f"found {found}, driver {inventory.driver_version or 'of unknown version'}", *inventory.warnings])
