"""A request by an agent to write an object, and what the chart's admission policy says of it."""

from __future__ import annotations

from collections.abc import Sequence

from tests.deploy.cel import Refused, judge
from tests.deploy.chart import Object, named, objects

AGENT = "system:serviceaccount:sharer:sharer-agent"
NODE_NAME = "authentication.kubernetes.io/node-name"
RESOURCES = {"gpunodes": ("sharer.dev", "v1alpha1"), "leases": ("coordination.k8s.io", "v1"), "nodes": ("", "v1")}


def judged(
    resource: str,
    name: str,
    new: Object | None = None,
    old: Object | None = None,
    *,
    operation: str = "UPDATE",
    sub: str = "",
    user: str = AGENT,
    node: Sequence[str] = ("n1",),
) -> list[Refused] | None:
    """What is said of a request by an agent; `node` is what its token says of where it is."""
    group, version = RESOURCES[resource]
    request = {
        "operation": operation,
        "name": name,
        "resource": {"group": group, "version": version, "resource": resource},
        "subResource": sub,
        "userInfo": {"username": user, "groups": [], "extra": {NODE_NAME: list(node)}},
    }
    policy = named("ValidatingAdmissionPolicy", "agents.sharer.sharer.dev", objects(of="full"))
    return judge(policy, request=request, new=new, old=old)
