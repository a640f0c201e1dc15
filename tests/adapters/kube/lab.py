"""A simulated API server, clients of it, and watches that wait only for the test."""

from __future__ import annotations

import contextlib
import queue
from collections.abc import Callable
from pathlib import Path
from typing import Generic, Protocol, TypeVar

from sharer.adapters.kube.access import KubeAccess, Kubeconfig
from sharer.adapters.kube.client import KubeClient
from sharer.adapters.kube.connect import connect
from sharer.adapters.kube.timings import KubeTimings
from sharer.adapters.kube.watch import ObjectWatch
from sharer.adapters.kube.watches import watch_pods
from sharer.adapters.kube.wire import Pod
from sharer.core.holders.observations import PodSeen, PodsSeen
from sharer.simulation.apiserver import ApiServer, Rule
from tests.fakes.clock import Clock

PATIENCE_S = 30.0
NODE_NAME = "node-1"
SETTLED = KubeTimings(settled_s=0.0)  # every watch that begins well counts as one that went well

T = TypeVar("T")


class Told(Generic[T]):
    """What a watch has told, in order."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[T] = queue.SimpleQueue()

    def __call__(self, news: T) -> None:
        self._queue.put(news)

    def next(self) -> T:
        return self._queue.get(timeout=PATIENCE_S)

    @property
    def nothing(self) -> bool:
        return self._queue.empty()


class Pauses:
    """Stands in for waiting: the watch waits until the test has looked at how long it wanted to, and lets it go on."""

    def __init__(self) -> None:
        self._asked: queue.SimpleQueue[float] = queue.SimpleQueue()
        self._answers: queue.SimpleQueue[bool] = queue.SimpleQueue()
        self._ended = False

    def __call__(self, delay_s: float) -> bool:
        self._asked.put(delay_s)
        return self._ended or self._answers.get(timeout=PATIENCE_S)

    def asked_s(self) -> float:
        """How long the watch wants to wait, once it does."""
        return self._asked.get(timeout=PATIENCE_S)

    def go_on(self) -> None:
        self._answers.put(False)

    def pass_by(self) -> float:
        """Let one pause go by; returns how long it would have been."""
        delay_s = self.asked_s()
        self.go_on()
        return delay_s

    @property
    def none(self) -> bool:
        """Whether nothing wants to wait."""
        return self._asked.empty()

    def end(self) -> None:
        self._ended = True
        self._answers.put(True)


class Runnable(Protocol):
    """Any watch."""

    def start(self) -> None: ...

    def stop(self) -> None: ...


class KubeLab:
    """Ends everything that was started in it, last first."""

    def __init__(self, folder: Path, server: ApiServer) -> None:
        self.folder = folder
        self.server = server
        self.pauses = Pauses()
        self.clock = Clock()
        self._ends = contextlib.ExitStack()

    def client(self, timings: KubeTimings | None = None, *, token: str = "t1") -> KubeClient:
        return self.connect(Kubeconfig(path=self.kubeconfig(token)), timings)

    def connect(self, access: KubeAccess, timings: KubeTimings | None = None) -> KubeClient:
        client = connect(access, timings)
        self._ends.callback(client.close)
        return client

    def kubeconfig(self, token: str) -> Path:
        """A kubeconfig for the server, with a token file beside it."""
        path = self.folder / "kubeconfig"
        self.put_token(token)
        path.write_text(
            f"""
            {{apiVersion: v1, kind: Config, current-context: here,
             contexts: [{{name: here, context: {{cluster: here, user: me}}}}],
             clusters: [{{name: here, cluster: {{server: "{self.server.url}"}}}}],
             users: [{{name: me, user: {{tokenFile: "{self.folder / "token"}"}}}}]}}
            """
        )
        return path

    def put_token(self, token: str) -> None:
        (self.folder / "token").write_text(token)

    def grant_policy_only(self, namespace: str, name: str) -> None:
        """As a Role with resourceNames does."""
        verbs = ("get", "list", "watch")
        rule = Rule(groups=("",), resources=("configmaps",), verbs=verbs, names=(name,), namespace=namespace)
        self.server.grant([rule])

    def run(self, watch: Runnable) -> None:
        """Start a watch, and stop it in the end."""
        self._ends.callback(watch.stop)
        watch.start()

    def watch_pods(
        self,
        timings: KubeTimings | None = None,
        *,
        client: KubeClient | None = None,
        changed: Callable[[PodsSeen], None] | None = None,
    ) -> tuple[ObjectWatch[Pod, PodSeen], Told[PodsSeen]]:
        """A started watch of this node's pods, at the lab's clock and pauses, and what it tells."""
        told: Told[PodsSeen] = Told()
        client = client or self.client(timings)
        watch = watch_pods(client, NODE_NAME, changed or told, clock=self.clock, pause=self.pauses)
        self.run(watch)
        return watch, told

    def close(self) -> None:
        self.pauses.end()
        self._ends.close()


def names(seen: PodsSeen) -> list[str]:
    """The pods' names, sorted."""
    return sorted(pod.name for pod in seen.pods.values())
