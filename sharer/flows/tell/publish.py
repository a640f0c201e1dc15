"""Publish this node: its GpuNode, when something about it has changed, and a Lease that says the agent is alive.

Two requests publish a change at most: apply the object (its owner is the Node, so it goes when the Node goes), then its
status. The first is sent once for each Node; afterwards a change is one request, and no change is none. What an idle
fleet of 5,000 nodes asks of the API server for all this (bug case P33):

* GpuNode: no write. A look at whether it is still there and as we left it, once in 15 to 18 minutes a node: 5 small
  reads a second.
* Lease: one write in 80 to 100 s a node: 56 a second, where the kubelets' own node leases are 500. It is valid for
  300 s, so two renewals may fail before an agent counts as silent. Readiness tells of a lost agent sooner.

A node publishes at most once in 10 s, whatever happens on it. What the whole fleet may say in the same moment, since a
policy or a driver has changed everywhere, is spread over 30 s.

Nothing depends on it: without the right, or without the CRD, one line says what is missing and the rest goes on. Needs
`create`, `patch` and `get` on gpunodes, `patch` on gpunodes/status, `get` on nodes; `create` and `patch` on leases.
"""

from __future__ import annotations

import datetime
import math
import random
from collections.abc import Callable, Mapping
from typing import Protocol

from sharer.core.api_error import ApiError
from sharer.core.holders.observations import NodeSeen
from sharer.core.known import About, Stamp
from sharer.core.report.gpu_node import GpuNode, make_gpu_node
from sharer.core.report.node import LEASE_ANNOTATION
from sharer.flows.state import NodeView
from sharer.flows.tell.announce import Connection
from sharer.flows.tell.report import known_of

APART_S = 10.0  # at least, between two changes that are published
FLEET_SPREAD_S = 30.0  # over which what a fleet says in the same moment is spread
CHECK_S = (900.0, 1080.0)  # between two looks at whether the object is as we left it
LEASE_S = 300
RENEW_S = (80.0, 100.0)

Uniform = Callable[[float, float], float]

_NO_CRD = (
    "this cluster has no GpuNodes ({error}): install deploy/crds/gpunodes.sharer.dev.yaml, which the chart does, or"
    " start the agent with --publish=off. Until then `kubectl get gpunodes` and `sharer report` lack this node; pods"
    " get their GPUs all the same"
)


class Written(Protocol):
    """An object as it is stored."""

    @property
    def uid(self) -> str:
        """Another one for another object of the same name."""
        ...

    @property
    def resource_version(self) -> str:
        """Another one after each change."""
        ...


class Publisher(Protocol):
    """What publishing asks of the API server. Every method raises ApiError."""

    def node(self, name: str) -> NodeSeen:
        """A Node, as it is now."""
        ...

    def gpu_node(self, name: str) -> Written | None:
        """A GpuNode, as it is now; None: there is none."""
        ...

    def put_gpu_node(self, name: str, owner_uid: str, annotations: Mapping[str, str]) -> Written:
        """Have a GpuNode of this name, owned by the Node of this name and UID. Its status is not touched."""
        ...

    def put_gpu_node_status(self, name: str, status: Mapping[str, object]) -> Written:
        """Replace a GpuNode's status. 404 if there is no such object."""
        ...

    def renew_lease(
        self, namespace: str, name: str, *, holder: str, duration_s: int, now: datetime.datetime, owner_uid: str
    ) -> None:
        """Say that the holder is alive at `now`. The Lease goes when the Node of this name and UID goes."""
        ...


class Publishing:
    """Keeps the GpuNode as the view is. `publish` and `check` are steps of one announcing thread."""

    def __init__(
        self,
        api: Connection[Publisher],
        about: About,
        stamp: Stamp,
        *,
        lease: str | None,
        uniform: Uniform = random.uniform,
    ) -> None:
        """`lease`: namespace and name of the agent's Lease, for whoever reads the GpuNode; None: it has none."""
        self._api, self._about, self._stamp, self._uniform = api, about, stamp, uniform
        self._annotations = {} if lease is None else {LEASE_ANNOTATION: lease}
        self._made: GpuNode | None = None  # as the last view was
        self._due_s = math.inf  # when `_made` is to be told
        self._told_s = -math.inf
        self._owner_uid: str | None = None  # the Node's, under which the object was applied; None: it was not
        self._written: tuple[str, str] | None = None  # UID and version of the object as we left it
        self._check_s = math.inf  # when it is to be looked at

    def publish(self, view: NodeView, now_s: float) -> float | None:
        """Tell what has changed, when it is time. A step: see `flows/tell/announce`."""
        client, node = self._api.client, self._api.node
        if client is None:
            return None
        made = make_gpu_node(known_of(view), self._about, self._made, now_s, self._stamp)
        if node is not None and self._owner_uid not in (None, node.uid):
            self._owner_uid, self._due_s = None, now_s  # the Node was made anew, and ours is gone
        elif made is not self._made:
            self._due_s = min(self._due_s, self._when(made, self._made, now_s))
        self._made = made
        if now_s < self._due_s:
            return None if math.isinf(self._due_s) else self._due_s
        self._tell(client, made, now_s)
        return None

    def check(self, view: NodeView, now_s: float) -> float | None:
        """See that the object is there and as we left it, now and then; put it right if not. A step as well."""
        client = self._api.client
        if client is None or self._written is None:
            return now_s + self._uniform(*CHECK_S)
        if now_s < self._check_s:
            return self._check_s
        found = client.gpu_node(self._about.node_name)
        if found is None or (found.uid, found.resource_version) != self._written:
            assert self._made is not None, "what was written was made"
            self._owner_uid = None
            self._tell(client, self._made, now_s)
        else:
            self._check_s = now_s + self._uniform(*CHECK_S)
        return self._check_s

    def _when(self, made: GpuNode, before: GpuNode | None, now_s: float) -> float:
        due_s = max(now_s, self._told_s + APART_S)
        if before is not None and made.is_fleet_news(before):
            due_s += self._uniform(0.0, FLEET_SPREAD_S)
        return due_s

    def _tell(self, client: Publisher, made: GpuNode, now_s: float) -> None:
        """Raises ApiError; then all of it is due again."""
        self._told_s = now_s
        status = made.status_fields()
        if self._owner_uid is None:
            self._own(client)
        try:
            written = client.put_gpu_node_status(made.name, status)
        except ApiError as error:
            if error.code != 404:
                raise
            self._own(client)  # somebody deleted it
            written = client.put_gpu_node_status(made.name, status)
        self._written = (written.uid, written.resource_version)
        self._due_s, self._check_s = math.inf, now_s + self._uniform(*CHECK_S)

    def _own(self, client: Publisher) -> None:
        """Have the object, owned by the Node that there is now: under the UID of another it would be collected."""
        self._owner_uid = None
        name = self._about.node_name
        owner_uid = client.node(name).uid
        try:
            client.put_gpu_node(name, owner_uid, self._annotations)
        except ApiError as error:
            if error.code != 404:
                raise
            raise ApiError(_NO_CRD.format(error=error), kind=error.kind, code=error.code) from error
        self._owner_uid = owner_uid


class Living:
    """Keeps the agent's Lease. `renew` is a step of the announcing thread."""

    def __init__(
        self,
        api: Connection[Publisher],
        node_name: str,
        namespace: str,
        *,
        uniform: Uniform = random.uniform,
        now: Callable[[], datetime.datetime] = lambda: datetime.datetime.now(datetime.UTC),
    ) -> None:
        self._api, self._node_name, self._namespace, self._uniform, self._now = api, node_name, namespace, uniform, now
        self._due_s = -math.inf

    def renew(self, view: NodeView, now_s: float) -> float | None:
        """Renew the Lease when it is time, whatever has changed on the node."""
        client, node = self._api.client, self._api.node
        if client is None:
            return None
        if now_s >= self._due_s:
            client.renew_lease(
                self._namespace,
                self._node_name,
                holder=self._node_name,
                duration_s=LEASE_S,
                now=self._now(),
                owner_uid=client.node(self._node_name).uid if node is None else node.uid,
            )
            self._due_s = now_s + self._uniform(*RENEW_S)
        return self._due_s
