"""The kubelet that tests and the simulation drive: start it, kill it, run pods on it, look at what it saw."""

from __future__ import annotations

from sharer.simulation.kubelet.observer import Observer
from sharer.simulation.kubelet.workload import Workload


class FakeKubelet(Workload, Observer):
    """A kubelet on real unix sockets, under `root` (keep it short: a socket's path has at most 107 bytes).

    `with FakeKubelet(root).start() as kubelet: …` ends it, and raises the KubeletPanic that nobody expected.
    Every method may be called from any thread; none holds a lock while it waits for a plugin.
    """
