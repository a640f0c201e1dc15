"""Simulated API servers that know the kinds of the chart's objects."""

from __future__ import annotations

from collections.abc import Iterable

from sharer.simulation.apiserver.kinds import KINDS, Kind
from tests.deploy.chart import objects

CLUSTER_SCOPED = (
    "ClusterRole", "ClusterRoleBinding", "CustomResourceDefinition", "Namespace", "ValidatingAdmissionPolicy",
    "ValidatingAdmissionPolicyBinding",
)  # fmt: skip
HELM_KEEPS = ("v1", "Secret")  # its releases


def kind_of(api_version: str, kind: str) -> Kind:
    """A kind by its usual names."""
    group, _, version = api_version.rpartition("/")
    plural = f"{kind.lower()[:-1]}ies" if kind.endswith("y") else f"{kind.lower()}s"
    return Kind(group=group, version=version, kind=kind, plural=plural, namespaced=kind not in CLUSTER_SCOPED)


def cluster_kinds() -> Iterable[Kind]:
    """Those that every simulated server has, and those of the chart with everything on."""
    made = {(one["apiVersion"], one["kind"]) for one in objects({"namespace": {"create": True}}, of="full")}
    kinds = [*(kind_of(*one) for one in sorted({*made, HELM_KEEPS})), *KINDS]
    return {(kind.group, kind.version, kind.plural): kind for kind in kinds}.values()
