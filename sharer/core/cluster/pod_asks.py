"""What a pod asks of its node, counted by one rule wherever pods are counted.

A pod counts while it is bound to a node and its phase is neither Succeeded nor Failed (bug case P31): one that waits
for its image counts, one in deletion counts, a finished Job does not. How much it counts for is Kubernetes' formula:
the most that its containers need at one time. Regular init containers run one after the other, beside the sidecars
that were started before them; the app containers run beside all sidecars.

`running` is what its app containers and sidecars ask for. That is all that the kubelet's podresources ever list
(kubelet-contract §5, "Init containers and sidecars"); what init containers asked for above it stays taken for the pod's
whole life, and nobody uses it.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable

from sharer.core.holders.observations import ContainerKind, ContainerSeen, PodSeen
from sharer.core.values import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """How many units of one resource a pod counts for."""

    resource: str
    requested: int  # by Kubernetes' formula: what the scheduler reserves
    running: int  # of these, what app containers and sidecars ask for


@dataclass(frozen=True, slots=True, kw_only=True)
class PodAsk:
    """A pod that counts, with what it asks of its node."""

    node: str
    namespace: str
    name: str
    uid: str  # as the node knows it: a static pod's is the hash of its manifest
    phase: str
    deleting: bool
    asks: tuple[Ask, ...]


def counts(pod: PodSeen) -> bool:
    """Whether a pod takes something of its node."""
    return pod.node_name is not None and not pod.phase.is_terminal


def pod_ask(pod: PodSeen) -> PodAsk | None:
    """What a pod takes of its node; None: it does not count, or asks for no extended resource."""
    if pod.node_name is None or not counts(pod):
        return None
    resources = dict.fromkeys(name for container in pod.containers for name in container.limits)
    if not resources:
        return None
    return PodAsk(
        node=pod.node_name,
        namespace=pod.namespace,
        name=pod.name,
        uid=pod.cgroup_uid,
        phase=pod.phase.value,
        deleting=pod.is_deleting,
        asks=_asks(tuple((name, *_amounts(pod.containers, name)) for name in resources)),
    )


@functools.lru_cache(maxsize=4096)  # a fleet's 50,000 pods ask for few different things
def _asks(amounts: tuple[tuple[str, int, int], ...]) -> tuple[Ask, ...]:
    return tuple(Ask(resource=name, requested=requested, running=running) for name, requested, running in amounts)


def _amounts(containers: Iterable[ContainerSeen], resource: str) -> tuple[int, int]:
    """What they ask for of a resource: by the formula, and of it by app containers and sidecars."""
    sidecars = apps = most = 0
    for one in containers:
        amount = one.limits.get(resource, 0)
        match one.kind:
            case ContainerKind.SIDECAR:
                sidecars += amount
            case ContainerKind.INIT:
                most = max(most, sidecars + amount)
            case ContainerKind.APP:
                apps += amount
    running = sidecars + apps
    return max(most, running), running


def is_gpu_resource(name: str) -> bool:
    """Whether a resource is, by its name, one of GPUs: NVIDIA's, or of anybody who says "gpu".

    >>> is_gpu_resource("nvidia.com/mig-1g.10gb"), is_gpu_resource("amd.com/gpu"), is_gpu_resource("a.b/eni")
    (True, True, False)
    """
    return name.startswith("nvidia.com/") or "gpu" in name
