"""How people steer this node through the API: its own object, and the ConfigMap with the policies."""

from __future__ import annotations

from sharer.adapters.kube.wire import Bare, ConfigMap
from sharer.core.holders.observations import ConfigMapSeen, NodeSeen

ANNOTATION_PREFIX = "sharer.dev/"


def node_seen(node: Bare) -> NodeSeen:
    """A Node in the core's words."""
    metadata = node.metadata
    annotations = metadata.annotations or {}
    return NodeSeen(
        uid=metadata.uid,
        name=metadata.name,
        labels=metadata.labels or {},
        annotations={key: value for key, value in annotations.items() if key.startswith(ANNOTATION_PREFIX)},
    )


def config_map_seen(config_map: ConfigMap) -> ConfigMapSeen:
    """A ConfigMap in the core's words."""
    metadata = config_map.metadata
    return ConfigMapSeen(
        uid=metadata.uid,
        namespace=metadata.namespace,
        name=metadata.name,
        resource_version=metadata.resource_version,
        data=config_map.data or {},
        binary=config_map.binary_data or {},
    )
