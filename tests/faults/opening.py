"""A node with everything beside it that a sequence needs."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from sharer.simulation.apiserver import POD, ApiServer
from sharer.simulation.kubelet import KubeletSettings
from sharer.simulation.memory_limits import LimitBackend
from tests.e2e.node import open_node
from tests.fakes.fast_clock import JumpingClock
from tests.faults.driver import DriverSide
from tests.faults.mirror import Mirror
from tests.faults.mps import MpsKind, MpsSide
from tests.faults.node_api import NodeApi
from tests.faults.places import Places
from tests.faults.policies import GPUS, MPS_FIRST, C
from tests.faults.world import World

NOT_READY_S = 0.3  # from a kubelet's start until it knows its pods; `List` is empty until then


@contextlib.contextmanager
def open_world(
    seed: int,
    *,
    with_api: bool,
    backend: LimitBackend = LimitBackend.DMEM,
    clock_jumps: bool = False,
    with_cdi: bool = False,
    mps: MpsKind = MpsKind.NONE,
) -> Iterator[World]:
    """A node on which nothing runs yet; at the end nothing of it is left. Raises what nobody expected of it."""
    settings = KubeletSettings(
        podresources_lead_s=0.05, sources_ready_after_s=NOT_READY_S, seed=seed, numa_nodes=(0, 1)
    )
    gpus = GPUS if mps is MpsKind.NONE else (*GPUS, C)
    with contextlib.ExitStack() as closing:
        node = closing.enter_context(open_node(*gpus, settings=settings, limit_backend=backend))
        driver = DriverSide(node, gpus, has_cdi=with_cdi)
        api = mirror = None
        if with_api:
            server = closing.enter_context(ApiServer().start())
            api, mirror = NodeApi(server, node.root, settings.node_name), Mirror(server, node.kubelet, POD)
        clock = JumpingClock(node.root / "clock") if clock_jumps else None
        places = Places(node, clock)
        world = World(node=node, api=api, mirror=mirror, driver=driver, places=places, has_cdi=with_cdi, clock=clock)
        if mps is not MpsKind.NONE:
            world.wanted = world.in_force = MPS_FIRST
            side = MpsSide(node, has_v3=mps is MpsKind.V3, variables=places.variables)
            world.mps = closing.enter_context(contextlib.closing(side))
        yield world
