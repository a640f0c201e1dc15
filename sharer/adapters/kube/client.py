"""What sharer asks of the API server, one method a purpose. Every method raises ApiError and leaves it at that."""

from __future__ import annotations

import contextlib
import datetime
from collections.abc import Callable, Iterator, Mapping
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, TypeVar

import msgspec

from sharer.adapters.kube.calls import APPLY, EVENTS, GPU_NODES, JSON, LEASES, MERGE, NODES, PODS, Call, Resource
from sharer.adapters.kube.counters import KubeCounters
from sharer.adapters.kube.errors import ApiError, unreadable
from sharer.adapters.kube.events import event_namespace, event_object
from sharer.adapters.kube.steering import node_seen
from sharer.adapters.kube.timings import KubeTimings
from sharer.adapters.kube.wire import Bare, ObjectMeta, Page
from sharer.core.holders.observations import NodeSeen
from sharer.core.ports.api import ApiEvent, Eviction
from sharer.core.values import replace

if TYPE_CHECKING:  # importing it imports the official client
    from sharer.adapters.kube.transport import Stream, Transport

FIELD_MANAGER = "sharer-agent"
LABEL_MANAGER = "sharer-agent-labels"  # of the Node: apart, so that no other apply takes its labels away
_BUDGET_CAUSE = "DisruptionBudget"

W = TypeVar("W")
T = TypeVar("T")


class KubeClient:
    """The API server, for any number of threads. Made by `connect`. Implements `core.ports.api.ApiWriter`."""

    def __init__(self, transport: Transport, timings: KubeTimings) -> None:
        self._transport = transport
        self.timings = timings

    def counters(self) -> KubeCounters:
        """What was asked how often, and what failed."""
        return self._transport.counters()

    def close(self) -> None:
        """Close idle connections. Watches are stopped by whoever runs them."""
        self._transport.close()

    # -- reading

    def pages(self, call: Call, decoder: msgspec.json.Decoder[Page[W]]) -> Iterator[Page[W]]:
        """The pages of a list, as they come. A page that is too old to be continued is an ApiError (410)."""
        return pages_of(lambda token: self.page(call, decoder, limit=self.timings.page_limit, token=token))

    def page(self, call: Call, decoder: msgspec.json.Decoder[Page[W]], *, limit: int, token: str = "") -> Page[W]:
        """One page of a list: the first, or the one that a token of the page before continues with."""
        query = {**call.query, "limit": str(limit), **({"continue": token} if token else {})}
        return self._read(replace(call, query=query), decoder)

    def open_watch(self, call: Call, version: str) -> Stream:
        """A watch from a version on, which the server ends after a time. Its errors come in band as well as by HTTP."""
        seconds = self.timings.watch_s()
        query = {
            **call.query,
            "watch": "1",
            "resourceVersion": version,
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(seconds),
        }
        return self._transport.open(replace(call, query=query), seconds + self.timings.watch_slack_s)

    def server(self) -> str:
        """The API server's address, as the kubeconfig or the pod's environment has it."""
        return self._transport.server()

    def server_time(self) -> datetime.datetime | None:
        """What the API server's clock showed at its last answer, to a second; None: it does not say."""
        try:
            return None if self._transport.date is None else parsedate_to_datetime(self._transport.date)
        except ValueError:
            return None

    def get(self, resource: Resource, name: str, of: type[W], *, namespace: str | None = None) -> W:
        """One object, as it is now; `of` is how it is decoded."""
        call = Call(verb="get", resource=resource, namespace=namespace, name=name)
        return self._read(call, msgspec.json.Decoder(of))

    def ask(self, call: Call, decoder: msgspec.json.Decoder[T]) -> T:
        """The answer to a question that is no list."""
        return self._read(call, decoder)

    def node(self, name: str) -> NodeSeen:
        """A Node, as it is now."""
        return node_seen(self._read(Call(verb="get", resource=NODES, name=name), _BARE))

    # -- writing

    def apply(
        self,
        resource: Resource,
        name: str,
        fields: Mapping[str, object],
        *,
        namespace: str | None = None,
        subresource: str | None = None,
        manager: str = FIELD_MANAGER,
    ) -> ObjectMeta:
        """Server-side apply, by force: these fields are ours; those applied before and left out now are removed.

        `metadata.name` and the kind are filled in. The same fields again change nothing but cost the server the same.
        Returns the object's metadata as it is then.
        """
        metadata = fields.get("metadata", {})
        assert isinstance(metadata, Mapping)
        call = Call(
            verb="patch",
            resource=resource,
            namespace=namespace,
            name=name,
            subresource=subresource,
            query={"fieldManager": manager, "force": "true"},
            content_type=APPLY,
            body={
                "apiVersion": resource.api_version,
                "kind": resource.kind,
                **fields,
                "metadata": {**metadata, "name": name},
            },
        )
        return self._read(call, _BARE).metadata

    def merge(
        self, resource: Resource, name: str, fields: Mapping[str, object], *, namespace: str | None = None
    ) -> ObjectMeta:
        """Merge patch: these fields are set, those that are None removed, everything else stays.

        With `metadata.resourceVersion` among them it is an ApiError (409) if the object has changed since.
        """
        call = Call(
            verb="patch",
            resource=resource,
            namespace=namespace,
            name=name,
            query={"fieldManager": "sharer-cli"},
            content_type=MERGE,
            body=dict(fields),
        )
        return self._read(call, _BARE).metadata

    def tell(self, event: ApiEvent) -> None:
        """See `core.ports.api.ApiWriter`. By apply under a fixed name: the same news again updates one Event."""
        name, fields = event_object(event)
        self.apply(EVENTS, name, fields, namespace=event_namespace(event))

    def evict(self, namespace: str, name: str, uid: str) -> Eviction:
        """See `core.ports.api.ApiWriter`. The grace period is the pod's own."""
        call = Call(
            verb="create",
            resource=PODS,
            namespace=namespace,
            name=name,
            subresource="eviction",
            content_type=JSON,
            body={
                "apiVersion": "policy/v1",
                "kind": "Eviction",
                "metadata": {"name": name, "namespace": namespace},
                "deleteOptions": {"preconditions": {"uid": uid}},
            },
        )
        try:
            self._transport.send(call)
        except ApiError as error:
            if error.code in (404, 409):
                return Eviction.GONE
            if error.code == 429 and _BUDGET_CAUSE in error.causes:
                return Eviction.BLOCKED
            raise
        return Eviction.ACCEPTED

    def renew_lease(
        self,
        namespace: str,
        name: str,
        *,
        holder: str,
        duration_s: int,
        now: datetime.datetime,
        owner_uid: str | None = None,
    ) -> None:
        """Say that the holder is alive at `now` (which has a time zone) and will say so again within `duration_s`.

        With `owner_uid` the Lease is the Node's of the same name, and goes with it.
        """
        time = now.astimezone(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")  # six decimals, or it is refused with 500
        spec = {"holderIdentity": holder, "leaseDurationSeconds": duration_s, "renewTime": time}
        metadata = {} if owner_uid is None else {"metadata": {"ownerReferences": [_owner(name, owner_uid)]}}
        self.apply(LEASES, name, {"spec": spec, **metadata}, namespace=namespace)

    # -- the GpuNode: see `flows.tell.publish.Publisher`

    def gpu_node(self, name: str) -> ObjectMeta | None:
        """A GpuNode's metadata, as it is now; None: there is none."""
        try:
            return self._read(Call(verb="get", resource=GPU_NODES, name=name), _BARE).metadata
        except ApiError as error:
            if error.code == 404:
                return None
            raise

    def put_gpu_node(self, name: str, owner_uid: str, annotations: Mapping[str, str]) -> ObjectMeta:
        """Have a GpuNode of this name, owned by the Node of this name and UID."""
        metadata = {"ownerReferences": [_owner(name, owner_uid)], "annotations": dict(annotations)}
        return self.apply(GPU_NODES, name, {"metadata": metadata})

    def put_gpu_node_status(self, name: str, status: Mapping[str, object]) -> ObjectMeta:
        """Replace a GpuNode's status. 404 if there is no such object."""
        return self.apply(GPU_NODES, name, {"status": dict(status)}, subresource="status")

    def label_node(self, name: str, uid: str, labels: Mapping[str, str]) -> None:
        """See `flows.tell.label.NodeLabeller`. A Node that was made anew meanwhile is refused by its UID."""
        ours = {"labels": dict(labels)} if labels else {}  # what is left out is taken away
        self.apply(NODES, name, {"metadata": {"uid": uid, **ours}}, manager=LABEL_MANAGER)

    def _read(self, call: Call, decoder: msgspec.json.Decoder[T]) -> T:
        with readable(call):
            return decoder.decode(self._transport.send(call))


_BARE = msgspec.json.Decoder(Bare)


def pages_of(page: Callable[[str], Page[W]]) -> Iterator[Page[W]]:
    """The pages of a list, as they come. `page` asks for the one that a token continues with; "" is the first."""
    token = ""
    while True:
        found = page(token)
        yield found
        token = found.metadata.continue_
        if not token:
            return


def _owner(node_name: str, uid: str) -> dict[str, object]:
    """With an UID that is not the Node's, the object is collected within a second (api-server-facts §3)."""
    return {"apiVersion": "v1", "kind": "Node", "name": node_name, "uid": uid}


@contextlib.contextmanager
def readable(call: Call) -> Iterator[None]:
    """An answer that cannot be decoded becomes an ApiError."""
    try:
        yield
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise unreadable(call, error) from error
