"""The three things that an agent follows: the pods of its node, its node, and the ConfigMap with the policies.

One list and one watch each, whatever happens on the node (P33).
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from functools import partial

import msgspec

from sharer.adapters.kube.calls import CONFIG_MAPS, NODES, PODS, Call
from sharer.adapters.kube.client import KubeClient
from sharer.adapters.kube.collection import Collection, Snapshot, T
from sharer.adapters.kube.pods import pod_seen
from sharer.adapters.kube.steering import config_map_seen, node_seen
from sharer.adapters.kube.watch import ObjectWatch
from sharer.adapters.kube.wire import Bare, ConfigMap, Page, Pod
from sharer.core.holders.observations import ConfigMapSeen, NodeSeen, PodSeen, PodsSeen

Pause = Callable[[float], bool]


def watch_pods(
    client: KubeClient,
    node_name: str,
    changed: Callable[[PodsSeen], None],
    *,
    clock: Callable[[], float] = time.monotonic,
    pause: Pause | None = None,
) -> ObjectWatch[Pod, PodSeen]:
    """The pods bound to a node; not started yet. Needs `list` and `watch` on pods in the whole cluster."""

    def told(snapshot: Snapshot[PodSeen]) -> None:
        changed(
            PodsSeen(
                pods=snapshot.objects,
                synced_at_s=snapshot.synced_at_s,
                resource_version=snapshot.resource_version,
            )
        )

    collection = Collection(
        call=Call(verb="list", resource=PODS, query={"fieldSelector": f"spec.nodeName={node_name}"}),
        one=msgspec.json.Decoder(Pod),
        page=msgspec.json.Decoder(Page[Pod]),
        seen=partial(pod_seen, text=sys.intern),
        missed="phases and deletions of pods are unknown, and slices come back on the kubelet's and the cgroups' word",
    )
    return ObjectWatch(client, collection, told, clock=clock, pause=pause)


def watch_node(
    client: KubeClient,
    node_name: str,
    changed: Callable[[NodeSeen | None], None],
    *,
    clock: Callable[[], float] = time.monotonic,
    pause: Pause | None = None,
) -> ObjectWatch[Bare, NodeSeen]:
    """A Node's labels and annotations; None: there is no such Node. Needs `list` and `watch` on nodes."""
    collection = Collection(
        call=Call(verb="list", resource=NODES, query={"fieldSelector": f"metadata.name={node_name}"}),
        one=msgspec.json.Decoder(Bare),
        page=msgspec.json.Decoder(Page[Bare]),
        seen=node_seen,
        missed="a changed choice of policy, a hold and a recovery of this node are not noticed",
    )
    return ObjectWatch(client, collection, lambda snapshot: changed(_only(snapshot)), clock=clock, pause=pause)


def watch_config_map(
    client: KubeClient,
    namespace: str,
    name: str,
    changed: Callable[[ConfigMapSeen | None], None],
    *,
    clock: Callable[[], float] = time.monotonic,
    pause: Pause | None = None,
) -> ObjectWatch[ConfigMap, ConfigMapSeen]:
    """A ConfigMap; None: there is none. `list` and `watch` with resourceNames are enough (api-server-facts §8)."""
    collection = Collection(
        call=Call(
            verb="list", resource=CONFIG_MAPS, namespace=namespace, query={"fieldSelector": f"metadata.name={name}"}
        ),
        one=msgspec.json.Decoder(ConfigMap),
        page=msgspec.json.Decoder(Page[ConfigMap]),
        seen=config_map_seen,
        missed="a changed policy is not noticed",
    )
    return ObjectWatch(client, collection, lambda snapshot: changed(_only(snapshot)), clock=clock, pause=pause)


def _only(snapshot: Snapshot[T]) -> T | None:
    return next(iter(snapshot.objects.values()), None)
