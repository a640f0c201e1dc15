"""Whether a pod may be put on a node with a taint."""

from __future__ import annotations

from collections.abc import Mapping


def tolerates(toleration: Mapping[str, str], taint: Mapping[str, str]) -> bool:
    """As the scheduler decides it."""
    if toleration.get("effect") not in (None, "", taint["effect"]) or toleration.get("key") not in (None, taint["key"]):
        return False
    return toleration.get("operator") == "Exists" or toleration.get("value", "") == taint["value"]
