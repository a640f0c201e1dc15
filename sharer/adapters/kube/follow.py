"""Everything that one agent follows in the API, from the moment it is told to: a silent link until then."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from sharer.adapters.kube.access import KubeAccess
from sharer.adapters.kube.connect import connect
from sharer.core.holders.observations import ApiSync, ApiTrouble, ApiTroubleKind, ConfigMapSeen, NodeSeen, PodsSeen

if TYPE_CHECKING:  # imported when it begins to follow: an agent registers first
    from sharer.adapters.kube.client import KubeClient
    from sharer.adapters.kube.watch import ObjectWatch

log = logging.getLogger(__name__)

_NOT_YET = ApiSync(synced_at_s=None, trouble=None)


class FollowedApi:
    """The pods of a node, the Node, and the ConfigMap with the policies. Its properties may be read on any thread."""

    def __init__(
        self,
        access: KubeAccess,
        node_name: str,
        config_map: tuple[str, str] | None,
        *,
        connect: Callable[[KubeAccess], KubeClient] = connect,
    ) -> None:
        """`config_map`: namespace and name; None: there are no policies in the API."""
        self._access = access
        self._node_name = node_name
        self._config_map = config_map
        self._connect = connect
        self._lock = threading.Lock()
        self._closed = False
        self._watches: dict[str, ObjectWatch[Any, Any]] = {}  # of every kind
        self._failure: ApiSync | None = None
        self.client: KubeClient | None = None  # None: not connected
        self.node: NodeSeen | None = None
        self.policies: ConfigMapSeen | None = None

    def start(self, pods_changed: Callable[[PodsSeen], None], steering_changed: Callable[[], None]) -> None:
        """Connect and follow, on threads of its own; returns at once. Importing the official client takes a while.

        Once. The listeners are called on those threads, and return at once; `steering_changed` is for `node` and
        `policies`.
        """
        threading.Thread(target=self._begin, args=(pods_changed, steering_changed), name="api", daemon=True).start()

    def close(self) -> None:
        """Stop following, wherever it is just now. Waits a moment for what hangs, for all of it together."""
        with self._lock:
            self._closed = True
            watches, client = tuple(self._watches.values()), self.client
        if watches:
            with ThreadPoolExecutor(len(watches), thread_name_prefix="api-end") as pool:
                list(pool.map(lambda watch: watch.stop(), watches))
        if client is not None:
            client.close()

    @property
    def sync(self) -> ApiSync:
        """How current the pods are."""
        return self.sync_of("pods")

    def followed(self) -> tuple[str, ...]:
        """Everything that is followed, or will be as soon as the API server is connected."""
        return ("pods", "node") if self._config_map is None else ("pods", "node", "policies")

    def sync_of(self, what: str) -> ApiSync:
        """How current `pods`, `node` or `policies` are."""
        watch = self._watches.get(what)
        return self._failure or (_NOT_YET if watch is None else watch.sync)

    def _begin(self, pods_changed: Callable[[PodsSeen], None], steering_changed: Callable[[], None]) -> None:
        def node_changed(node: NodeSeen | None) -> None:
            self.node = node
            steering_changed()

        def policies_changed(config_map: ConfigMapSeen | None) -> None:
            self.policies = config_map
            steering_changed()

        try:
            from sharer.adapters.kube.watches import watch_config_map, watch_node, watch_pods

            client = self._connect(self._access)
        except Exception as error:  # a broken installation of the client; no reason to stop sharing
            log.exception("the API server's client cannot be loaded; the agent goes on without it")
            message = f"the API server's client cannot be loaded ({type(error).__name__}: {error}); reinstall sharer"
            trouble = ApiTrouble(kind=ApiTroubleKind.UNREACHABLE, message=message, since_s=time.monotonic())
            self._failure = ApiSync(synced_at_s=None, trouble=trouble)
            steering_changed()
            return
        watches: dict[str, ObjectWatch[Any, Any]] = {
            "pods": watch_pods(client, self._node_name, pods_changed),
            "node": watch_node(client, self._node_name, node_changed),
        }
        if self._config_map is not None:
            watches["policies"] = watch_config_map(client, *self._config_map, policies_changed)
        with self._lock:
            if self._closed:
                client.close()
                return
            self.client, self._watches = client, watches
            for watch in watches.values():
                watch.start()
