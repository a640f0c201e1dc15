"""Look at the node: which GPUs exist, and how they get into a container."""

from __future__ import annotations

from sharer.core.device_id import uuid_part
from sharer.core.errors import NodeError
from sharer.core.inventory import Inventory, remember_lost
from sharer.core.limits.limits import make_terms, with_driver_limits
from sharer.core.mps.service import keep_mps
from sharer.core.ports.driver import GpuDriver
from sharer.core.ports.injection import FactsReader
from sharer.flows.state import NodeState, NodeView


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
    inventory = found if before.inventory is None else remember_lost(before.inventory, found, devices_in_use(before))
    if before.inventory is not None and inventory == before.inventory:
        inventory = before.inventory  # so that nobody works out again what follows from it
    terms = make_terms(inventory, before.policy.policy, before.enforcers)
    found_facts = keep_mps(with_driver_limits(facts.read(inventory), terms), before.facts)
    if before.facts is not None and before.facts.digest() == found_facts.digest() and before.facts == found_facts:
        found_facts = before.facts
    state.change(inventory=inventory, facts=found_facts, driver_problem=None, paused=None)
    if before.inventory is None:
        return _introduce(inventory)
    known, now = {gpu.uuid for gpu in before.inventory.gpus}, {gpu.uuid for gpu in inventory.gpus}
    new = sorted(now - known)
    warnings = [warning for warning in inventory.warnings if warning not in before.inventory.warnings]
    return "; ".join([*(f"found {uuid}" for uuid in new), *warnings]) or None


def devices_in_use(view: NodeView) -> set[str]:
    """UUIDs of the GPUs and MIG devices of which slices are listed, or may be held."""
    listed = {one.id.uuid for offer in view.offers.values() for one in offer.slices.values()}
    return listed | {uuid_part(device_id) for _, device_id in view.ledger.entries}


def _introduce(inventory: Inventory) -> str:
    products: dict[str, int] = {}
    for gpu in inventory.gpus:
        name = gpu.product or "GPU of unknown product"
        products[name] = products.get(name, 0) + 1
    found = ", ".join(f"{count} × {name}" for name, count in products.items()) or "no GPU"
    return "; ".join([f"found {found}, driver {inventory.driver_version or 'of unknown version'}", *inventory.warnings])
