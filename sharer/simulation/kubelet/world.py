"""What a kubelet finds when it starts and leaves when it dies."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from sharer.simulation.kubelet.podresources import PodResourcesCall, PodResourcesFault
from sharer.simulation.kubelet.pods import Pod
from sharer.simulation.kubelet.records import Capacity, KubeletPanic, KubeletSettings


@dataclass(slots=True, kw_only=True)
class World:
    """What outlives a kubelet: the API server's objects, running containers, the tests' own log. One lock for all."""

    device_plugins: Path
    pod_resources: Path
    settings: KubeletSettings
    changed: threading.Condition = field(default_factory=lambda: threading.Condition(threading.RLock()))
    pods: dict[tuple[str, str], Pod] = field(default_factory=dict)  # by namespace and name, in order of creation
    node_status: dict[str, Capacity] = field(default_factory=dict)  # a key once there stays, as 0 (§2.5)
    podresources_calls: list[PodResourcesCall] = field(default_factory=list)
    podresources_faults: list[PodResourcesFault] = field(default_factory=list)
    hidden_from_list: dict[str, int] = field(default_factory=dict)  # pod name → for how many more `List` answers
    before_start: Callable[[], None] = lambda: None  # before a container starts: its pod's cgroup is made by then (§8)
    checkpoint_failure: str | None = None  # a text: every write of the checkpoint fails with it
    panics: list[KubeletPanic] = field(default_factory=list)
