"""Objects as their authors and controllers would write them, for tests and the simulation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sharer.simulation.apiserver.statuses import Object


def pod_object(
    name: str,
    *,
    namespace: str = "default",
    uid: str | None = None,
    node: str | None = None,
    phase: str = "Pending",
    limits: Mapping[str, int | str] | None = None,
    containers: Sequence[Object] = (),
    init_containers: Sequence[Object] = (),
    labels: Mapping[str, str] | None = None,
    annotations: Mapping[str, str] | None = None,
    deleting: bool = False,
    static_uid: str | None = None,
) -> Object:
    """A pod. `limits` is short for one container "main"; `static_uid` makes it the mirror of a static pod."""
    given = dict(annotations or {})
    if static_uid is not None:
        given |= {
            "kubernetes.io/config.hash": static_uid,
            "kubernetes.io/config.mirror": static_uid,
            "kubernetes.io/config.source": "file",
        }
    metadata: Object = {"name": name, "namespace": namespace}
    optional: Object = {
        "uid": uid,
        "labels": dict(labels or {}),
        "annotations": given,
        "deletionTimestamp": "2026-01-01T00:00:00Z" if deleting else None,
    }
    spec: Object = {"containers": [dict(one) for one in containers] or [container_object("main", limits or {})]}
    if init_containers:
        spec["initContainers"] = [dict(one) for one in init_containers]
    if node is not None:
        spec["nodeName"] = node
    return {
        "metadata": metadata | {key: value for key, value in optional.items() if value},
        "spec": spec,
        "status": {"phase": phase},
    }


def container_object(name: str, limits: Mapping[str, int | str], *, sidecar: bool = False) -> Object:
    """A container; as an init container, a `sidecar` keeps running."""
    resources = {key: str(value) for key, value in limits.items()}
    container: Object = {"name": name, "image": "registry.example/image:1"}
    if resources:
        container["resources"] = {"limits": resources, "requests": resources}
    if sidecar:
        container["restartPolicy"] = "Always"
    return container


def node_object(
    name: str,
    *,
    uid: str | None = None,
    labels: Mapping[str, str] | None = None,
    annotations: Mapping[str, str] | None = None,
    allocatable: Mapping[str, int | str] | None = None,
) -> Object:
    """A Node that is ready."""
    metadata: Object = {"name": name, "labels": {"kubernetes.io/hostname": name, **(labels or {})}}
    if uid is not None:
        metadata["uid"] = uid
    if annotations:
        metadata["annotations"] = dict(annotations)
    resources = {key: str(value) for key, value in (allocatable or {}).items()}
    return {
        "metadata": metadata,
        "spec": {},
        "status": {
            "allocatable": resources,
            "capacity": resources,
            "conditions": [{"type": "Ready", "status": "True", "reason": "KubeletReady"}],
        },
    }


def config_map_object(name: str, data: Mapping[str, str], *, namespace: str = "default") -> Object:
    """A ConfigMap."""
    return {"metadata": {"name": name, "namespace": namespace}, "data": dict(data)}
