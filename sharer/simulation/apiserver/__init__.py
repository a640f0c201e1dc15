"""A Kubernetes API server on 127.0.0.1 that behaves as api-server-facts.md says, and fails where a real one fails.

    with ApiServer().start() as server:
        server.put(POD, pod_object("train", node="node-1", limits={"nvidia.com/gpu.shared": 1}))
        server.forbid("watch", "pods")
        server.fail_next(Fail(code=429, retry_after_s=2), verb="list", times=3)
        server.wait_requests(4, verb="list", resource="pods")

Read it in this order: `records` (what one sees), `server` (how it is driven), `http` over `api` over `store` with
`watcher`, `pages`, `tables`, `selectors`, `fields`, `writes`, `identity`, `rules`, `definitions` with `schemas`; beside
them `kinds`, `statuses`, `authorization`, `faults`, `journal`, `discovery` with `openapi`.

Not there: protobuf, strategic merge and JSON patch, collection deletes, tables in watches, CEL and defaults in the
schemas of custom resources, schemas of built-in kinds, garbage collection, priority and fairness, admission. Known to
differ: a list of a version in the future is refused at once (not after 3 s), a pod's deletion never ends by itself (its
kubelet is elsewhere), lists in objects are not merged.
"""

from __future__ import annotations

from sharer.simulation.apiserver.faults import Fail, Fault, Hang, Reset
from sharer.simulation.apiserver.kinds import (
    BUDGET,
    CONFIG_MAP,
    DAEMON_SET,
    EVENT,
    GPU_NODE,
    KINDS,
    LEASE,
    NAMESPACE,
    NODE,
    POD,
    POLICY_BINDING,
    RUNTIME_CLASS,
    Kind,
)
from sharer.simulation.apiserver.objects import config_map_object, container_object, node_object, pod_object
from sharer.simulation.apiserver.records import Request, Rule, ServerSettings, WatchInfo
from sharer.simulation.apiserver.server import ApiServer
from sharer.simulation.apiserver.statuses import Object
from sharer.simulation.apiserver.watcher import Ending

__all__ = [
    "BUDGET",
    "CONFIG_MAP",
    "DAEMON_SET",
    "EVENT",
    "GPU_NODE",
    "KINDS",
    "LEASE",
    "NAMESPACE",
    "NODE",
    "POD",
    "POLICY_BINDING",
    "RUNTIME_CLASS",
    "ApiServer",
    "Ending",
    "Fail",
    "Fault",
    "Hang",
    "Kind",
    "Object",
    "Request",
    "Reset",
    "Rule",
    "ServerSettings",
    "WatchInfo",
    "config_map_object",
    "container_object",
    "node_object",
    "pod_object",
]
