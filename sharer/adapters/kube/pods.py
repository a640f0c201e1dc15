"""Pods in the core's words."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache

from sharer.adapters.kube.wire import Container, ContainerStatus, Pod
from sharer.core.holders.observations import ContainerKind, ContainerSeen, PodPhase, PodSeen

# The kubelet runs a static pod under the hash of its manifest; the API's mirror of it has an UID of its own.
_MIRROR = "kubernetes.io/config.mirror"
_HASH = "kubernetes.io/config.hash"
_PHASES = {phase.value: phase for phase in PodPhase}
_COUNT = re.compile(r"([0-9]{1,12})(k|M|G|T|Ki|Mi|Gi|Ti)?")
_MULTIPLES = {"k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}


def pod_seen(pod: Pod, text: Callable[[str], str] = str) -> PodSeen:
    """A pod in the core's words. `text`: `sys.intern` where the kubelet and the cgroups name the same pods, too."""
    metadata, spec = pod.metadata, pod.spec
    annotations = metadata.annotations or {}
    static_uid = (annotations.get(_HASH) or annotations[_MIRROR]) if _MIRROR in annotations else ""
    return PodSeen(
        uid=text(metadata.uid),
        cgroup_uid=text(static_uid or metadata.uid),
        namespace=sys.intern(metadata.namespace),  # 50,000 pods of a cluster have few, and 6 MB of copies
        name=text(metadata.name),
        phase=_PHASES.get(pod.status.phase, PodPhase.UNKNOWN),
        is_deleting=metadata.deletion_timestamp is not None,
        node_name=None if spec.node_name is None else sys.intern(spec.node_name),
        containers=(
            *_seen(spec.init_containers or (), _ids(pod.status.init_container_statuses or (), text), init=True),
            *_seen(spec.containers or (), _ids(pod.status.container_statuses or (), text), init=False),
        ),
    )


def _ids(statuses: Iterable[ContainerStatus], text: Callable[[str], str]) -> Mapping[str, str]:
    """By container name; those that have never started are missing."""
    return {one.name: text(one.container_id.rpartition("://")[2]) for one in statuses if one.container_id}


def _seen(containers: Iterable[Container], ids: Mapping[str, str], *, init: bool) -> Iterable[ContainerSeen]:
    for one in containers:
        kind = ContainerKind.APP
        if init:
            kind = ContainerKind.SIDECAR if one.restart_policy == "Always" else ContainerKind.INIT
        limits = one.resources.limits or {}
        counts = {name: whole_number(amount) for name, amount in limits.items() if is_extended(name)}
        yield ContainerSeen(
            name=sys.intern(one.name),
            kind=kind,
            limits=_one_of_each(tuple((name, count) for name, count in counts.items() if count)),
            container_id=ids.get(one.name),
        )


@lru_cache(maxsize=256)
def _one_of_each(limits: tuple[tuple[str, int], ...]) -> Mapping[str, int]:
    """The same mapping for all containers that ask for the same, as most on a node do."""
    return dict(limits)


def is_extended(resource: str) -> bool:
    """Whether it is one that device plugins can offer: qualified by a domain that is not Kubernetes' own."""
    domain, slash, _ = resource.partition("/")
    return bool(slash) and not domain.endswith("kubernetes.io")


def whole_number(amount: str) -> int | None:
    """How many units of an extended resource; None: no whole number, which the API server does not take in a pod.

    >>> whole_number("8"), whole_number("1k"), whole_number("many")
    (8, 1000, None)
    """
    found = _COUNT.fullmatch(amount)
    return None if found is None else int(found[1]) * _MULTIPLES.get(found[2] or "", 1)
