"""What the API server has to bear: one list and one watch a node, whatever happens on it (P33)."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable

from sharer.adapters.kube.access import Kubeconfig
from sharer.adapters.kube.watches import watch_pods
from sharer.core.holders.observations import PodsSeen
from sharer.simulation.apiserver import POD, ApiServer, pod_object
from tests.adapters.kube.lab import PATIENCE_S, KubeLab

AGENTS, PODS_A_NODE, ALLOCATIONS = 200, 100, 1000


class Fleet:
    """Counts, for each agent, how many pods it has seen run."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._running: Counter[str] = Counter()
        self._pods: Counter[str] = Counter()

    def listener(self, node: str) -> Callable[[PodsSeen], None]:
        def changed(seen: PodsSeen) -> None:
            with self._changed:
                self._pods[node] = len(seen.pods)
                self._running[node] = sum(pod.phase == "Running" for pod in seen.pods.values())
                self._changed.notify_all()

        return changed

    def wait(self, *, pods: int, running: int) -> None:
        with self._changed:
            assert self._changed.wait_for(
                lambda: (self._pods.total(), self._running.total()) == (pods, running), 2 * PATIENCE_S
            ), (self._pods.total(), self._running.total())


def test_200_agents_cost_one_list_and_one_watch_each_and_allocations_cost_nothing(
    lab: KubeLab, server: ApiServer
) -> None:
    """P33: 200 agents, 20,000 pods, 1,000 pods that start."""
    for number in range(AGENTS * PODS_A_NODE):
        server.put(POD, pod_object(f"p{number:05}", node=f"node-{number % AGENTS}"))
    access, fleet = Kubeconfig(path=lab.kubeconfig("t1")), Fleet()
    for number in range(AGENTS):
        node = f"node-{number}"
        lab.run(watch_pods(lab.connect(access), node, fleet.listener(node)))
    fleet.wait(pods=AGENTS * PODS_A_NODE, running=0)
    server.wait_watches(AGENTS, timeout_s=2 * PATIENCE_S)
    for number in range(ALLOCATIONS):
        server.put(POD, pod_object(f"p{number:05}", node=f"node-{number % AGENTS}", phase="Running"))
    fleet.wait(pods=AGENTS * PODS_A_NODE, running=ALLOCATIONS)
    assert server.counts() == {("list", "pods"): AGENTS, ("watch", "pods"): AGENTS}
