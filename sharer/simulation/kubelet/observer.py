"""Looking at the kubelet: what it knows, what it was told, waiting for it, and trouble on demand."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from sharer.simulation.kubelet.journal import RegisterFault
from sharer.simulation.kubelet.life import Life
from sharer.simulation.kubelet.podresources import PodResourcesCall, PodResourcesFault
from sharer.simulation.kubelet.records import Capacity, RegisterCall, Stream

PATIENCE_S = 30.0  # of who waits, beside whatever else the machine does


class Observer(Life):
    """Reads what is so, waits until it is, and plans faults."""

    # -- what the kubelet knows

    def capacity(self, resource: str) -> Capacity | None:
        """The Node object's numbers after a status update now. None: the node does not name the resource.

        While the kubelet is down: as it left them.
        """
        with self._changed:
            status = self._world.node_status if self._process is None else self._process.node_status()
            return status.get(resource)

    def unrequested(self, resource: str) -> int:
        """What the scheduler would still place here: allocatable less the requests of pods that have not ended."""
        with self._changed:
            numbers = self.capacity(resource)
            pods = (pod for pod in self._world.pods.values() if not pod.phase.terminal)
            return (0 if numbers is None else numbers.allocatable) - sum(p.requests().get(resource, 0) for p in pods)

    def records(self) -> dict[tuple[str, str, str], frozenset[str]]:
        """The allocations in the kubelet's memory: (pod UID, container, resource) → IDs. Stale ones included."""
        with self._changed:
            if self._process is None:
                return {}
            return {key: frozenset(record.ids) for key, record in self._process.manager.records.items()}

    def allocated(self, resource: str) -> frozenset[str]:
        """The IDs that the kubelet counts as taken, leaked ones included."""
        with self._changed:
            return frozenset(self._process.manager.allocated.get(resource, ()) if self._process is not None else ())

    def healthy(self, resource: str) -> frozenset[str]:
        """The IDs that it counts as healthy."""
        with self._changed:
            return frozenset(self._process.manager.healthy.get(resource, ()) if self._process is not None else ())

    def resource_health(self, name: str, container: str = "main", namespace: str = "default") -> dict[str, str]:
        """`allocatedResourcesStatus` of an app container: ID → health; an ID that is not listed reads Healthy (§13)."""
        with self._changed:
            manager = self._running().manager
            held = self._pod(name, namespace).container(container).ids
            listed = {i: manager.listed.get(resource, {}).get(i) for resource, ids in held.items() for i in ids}
            return {i: "Healthy" if d is None or d.health == "Healthy" else "Unhealthy" for i, d in listed.items()}

    def plugin_socket(self, resource: str) -> Path:
        """The socket of the plugin that is registered now. Raises KeyError if there is none."""
        with self._changed:
            client = self._running().manager.endpoints[resource].client
            if client is None:
                raise KeyError(resource)
            return Path(client.path)

    def register_calls(self, resource: str | None = None) -> list[RegisterCall]:
        """Every Register call so far, refused ones too, over all restarts."""
        return self._journal.calls(resource)

    def streams(self, resource: str | None = None) -> list[Stream]:
        """Every ListAndWatch stream so far, with its messages, over all restarts."""
        return self._journal.streams(resource)

    def live_streams(self, resource: str | None = None) -> list[Stream]:
        """The streams that are open now."""
        return [stream for stream in self._journal.streams(resource) if stream.live]

    def podresources_calls(self) -> list[PodResourcesCall]:
        """Every podresources call so far, rate-limited ones too, over all restarts."""
        with self._changed:
            return list(self._world.podresources_calls)

    def forget_history(self) -> None:
        """Drop the log of what is over: for runs so long that it would fill the memory, and slow down every look."""
        with self._changed:
            self._journal.forget()
            self._world.podresources_calls.clear()

    # -- trouble on demand

    def on_next_register(self, *faults: RegisterFault, resource: str | None = None) -> None:
        """Meet the next Register calls (of one resource, or of any) with these faults, one each."""
        self._journal.plan(resource, faults)

    def cut_stream(self, resource: str) -> None:
        """Drop the connection to a resource's plugin from this side; kubelet.sock stays as it is."""
        self._running().registration.cut(resource)

    def fail_checkpoint_writes(self, text: str | None) -> None:
        """From now on every write of the checkpoint fails with this text. None: works again."""
        with self._changed:
            self._world.checkpoint_failure = text

    def on_next_podresources_call(self, *faults: PodResourcesFault) -> None:
        """Meet the next podresources calls with these faults, one each."""
        with self._changed:
            self._world.podresources_faults.extend(faults)

    def hide_from_list(self, name: str, times: int = 1) -> None:
        """Leave a pod out of the next `List` answers."""
        with self._changed:
            self._world.hidden_from_list[name] = times

    def make_before_starts(self, make: Callable[[], None]) -> None:
        """Have this called before a container is started, on the thread that starts it: for what a kubelet has made."""
        self._world.before_start = make

    # -- waiting

    def wait_for(
        self, predicate: Callable[[], bool], timeout_s: float = PATIENCE_S, what: str = "the condition"
    ) -> None:
        """Block until `predicate()` holds, looked at on every change. Raises TimeoutError saying what is so instead."""
        with self._changed:
            if not self._changed.wait_for(predicate, timeout_s):
                raise TimeoutError(f"{what} did not come true within {timeout_s:g} s; {self._describe()}")

    def wait_registered(self, resource: str, count: int = 1, timeout_s: float = PATIENCE_S) -> RegisterCall:
        """Block until `count` Register calls of the resource were accepted, over all restarts. Returns that one."""

        def accepted() -> list[RegisterCall]:
            return [c for c in self._journal.calls(resource) if c.took_s is not None and c.error is None]

        self.wait_for(lambda: len(accepted()) >= count, timeout_s, f"registration {count} of {resource}")
        return accepted()[count - 1]

    def wait_capacity(
        self, resource: str, capacity: int, allocatable: int | None = None, timeout_s: float = PATIENCE_S
    ) -> None:
        """Block until the node shows these numbers (`allocatable` None: the same as capacity)."""
        wanted = Capacity(capacity, capacity if allocatable is None else allocatable)
        self.wait_for(lambda: self.capacity(resource) == wanted, timeout_s, f"{resource} at {wanted}")

    def wait_stream(
        self,
        resource: str,
        predicate: Callable[[Stream], bool],
        timeout_s: float = PATIENCE_S,
        what: str = "a stream's state",
    ) -> Stream:
        """Block until the resource's latest stream is as asked. Returns it."""
        self.wait_for(
            lambda: bool(self.streams(resource)) and predicate(self.streams(resource)[-1]),
            timeout_s,
            f"{resource}: {what}",
        )
        return self.streams(resource)[-1]

    def _describe(self) -> str:
        calls = [f"{c.resource} via {c.endpoint}: {c.error or 'accepted'}" for c in self.register_calls()[-4:]]
        status = {} if self._process is None else self._process.node_status()
        return (
            f"the kubelet {'runs' if self.running else 'is down'}, node {status},"
            f" {len(self.live_streams())} live streams, last registrations {calls}"
        )
