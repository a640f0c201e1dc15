"""Values with which the chart is rendered, so that each two of its switches meet in every way that can work."""

from __future__ import annotations

from functools import cache
from typing import Any

from tests.deploy.pairs import Choice, pairwise

FACTORS: dict[str, tuple[object, ...]] = {
    "distribution": ("generic", "k3s", "rke2", "k0s", "microk8s", "talos", "bottlerocket"),
    "driver.access": ("envvar", "volume-mounts", "nri", "privileged"),
    "policy.source": ("api", "mount"),
    "policy.check": (True, False),
    "kubernetes.enabled": (True, False),
    "features.hostPids": (True, False),
    "features.publish": (True, False),
    "features.evict": (True, False),
    "features.nodeLabels": (True, False),
    "features.driverLimits": (True, False),
    "features.mig": (True, False),
    "features.mps": (True, False),
    "http.port": (9465, 0),
}


def can_work(choice: Choice) -> bool:
    """The combinations that the chart does not refuse."""
    needs_api = ("features.publish", "features.evict", "features.nodeLabels")
    if not choice["kubernetes.enabled"] and (choice["policy.source"] == "api" or any(choice[one] for one in needs_api)):
        return False
    if choice["driver.access"] in ("privileged", "envvar") and choice["distribution"] == "bottlerocket":
        return False
    if choice["driver.access"] == "privileged" and choice["features.mps"]:
        return False
    return bool(choice["features.hostPids"]) or not (choice["features.evict"] or choice["features.driverLimits"])


def nested(choice: Choice) -> dict[str, Any]:
    """As values."""
    values: dict[str, Any] = {}
    for path, value in choice.items():
        *folders, name = path.split(".")
        place = values
        for folder in folders:
            place = place.setdefault(folder, {})
        place[name] = value
    return values


@cache
def choices() -> list[Choice]:
    """Few, and the same ones each time."""
    return pairwise(FACTORS, can_work)
