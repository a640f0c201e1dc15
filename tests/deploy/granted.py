"""The rights that the chart gives to the agent, as a simulated API server takes them."""

from __future__ import annotations

from sharer.simulation.apiserver import Rule
from tests.deploy.chart import Object, objects, of_kind
from tests.e2e.api import CONFIG_MAP_NAME, NAMESPACE


def rules(found: tuple[Object, ...], names: dict[str, str]) -> list[Rule]:
    """The agent's rules, as an API server has them. `names`: what the chart's are called in the test's cluster."""

    def here(name: str) -> str:
        return names.get(name, name)

    roles = [one for kind in ("ClusterRole", "Role") for one in of_kind(kind, found)]
    return [
        Rule(
            groups=tuple(rule["apiGroups"]),
            resources=tuple(rule["resources"]),
            verbs=tuple(rule["verbs"]),
            names=tuple(map(here, rule.get("resourceNames", ()))),
            namespace=None if role["kind"] == "ClusterRole" else here(role["metadata"]["namespace"]),
        )
        for role in roles
        if role["metadata"]["name"] == "sharer-agent"
        for rule in role["rules"]
    ]


def granted(features: dict[str, bool]) -> list[Rule]:
    """Those of the agent with these features on or off, in the cluster of `tests/e2e/api.py`."""
    made = objects({"features": features})
    return rules(made, {"sharer-policies": CONFIG_MAP_NAME, "sharer": NAMESPACE})
