"""From a seed to a sequence. All chance is here, and none of it depends on what the agent does: a seed replays exactly.

The steps come in bursts: what is in one burst happens without waiting in between, and after it everything must settle.
A rough model of the node says what can sensibly happen next.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field, replace

from sharer.simulation.kubelet import ContainerSpec, Phase
from sharer.simulation.memory_limits import LimitBackend
from tests.faults import steps
from tests.faults.mps import MpsKind
from tests.faults.mps_sequence import MpsModel
from tests.faults.policies import CUTS, FIRST, GPUS, MISTAKES, MPS, MPS_COUNTS, MPS_FIRST, Cut
from tests.faults.steps import ApiTrouble, CheckpointHarm, ListTrouble, Place, Step

BURSTS = 12
_MANY_PODS = 10
LASTING = (ApiTrouble.AWAY, ApiTrouble.UNKNOWN, ApiTrouble.FORBIDDEN)  # until it is back
LIMITS_CALL = "nvmlDeviceGetMemoryLimits_v1"
DRIVER_FUNCTIONS = (
    "nvmlDeviceGetMemoryInfo_v2", "nvmlDeviceGetName", "nvmlDeviceGetMigMode", "nvmlDeviceGetFieldValues",
    "nvmlDeviceGetComputeRunningProcesses_v3", LIMITS_CALL, "nvmlDeviceGetUUID",
)  # fmt: skip
DRIVER_ERRORS = (2, 3, 4, 10, 17, 999)  # those that say nothing about the GPU itself

Burst = tuple[Step, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sequence:
    """What a seed means."""

    seed: int
    with_api: bool
    waits_for_drops: bool  # at the end also for IDs of earlier cuts to be dropped, which takes half a minute
    bursts: tuple[Burst, ...]
    backend: LimitBackend = LimitBackend.DMEM  # where the driver keeps its limits
    clock_jumps: bool = False  # whether the agent's wall clock can be set
    with_cdi: bool = False  # whether GPUs come into containers by CDI
    mps: MpsKind = MpsKind.NONE

    @property
    def steps(self) -> int:
        """How many there are."""
        return sum(map(len, self.bursts))

    def only(self, kept: Collection[int]) -> Sequence:
        """The same with only these of its steps, counted from 1 over all bursts."""
        numbers = itertools.count(1)
        bursts = (tuple(step for step in burst if next(numbers) in kept) for burst in self.bursts)
        return replace(self, bursts=tuple(burst for burst in bursts if burst))


def sequence(seed: int, bursts: int = BURSTS) -> Sequence:
    """The sequence of a seed. With fewer bursts it is the beginning of the longer one."""
    rng = random.Random(seed)
    with_api = rng.random() < 0.3
    waits_for_drops = rng.random() < 0.25
    backend = rng.choice((LimitBackend.DMEM, LimitBackend.DMEM, LimitBackend.MISC))
    clock_jumps = rng.random() < 0.2
    with_cdi = rng.random() < 0.3
    mps = rng.choice((MpsKind.LEGACY, MpsKind.V3)) if rng.random() < 0.3 else MpsKind.NONE
    model = _Model(rng=rng, with_api=with_api, with_cdi=with_cdi, clock_jumps=clock_jumps)
    if mps is not MpsKind.NONE:
        model.mps, model.cut = MpsModel(rng=rng), MPS_FIRST
    return Sequence(
        seed=seed,
        with_api=with_api,
        waits_for_drops=waits_for_drops,
        bursts=tuple(model.burst() for _ in range(bursts)),
        backend=backend,
        clock_jumps=clock_jumps,
        with_cdi=with_cdi,
        mps=mps,
    )


@dataclass(slots=True, kw_only=True)
class _Model:
    """What there is, as far as the next step depends on it."""

    rng: random.Random
    with_api: bool
    with_cdi: bool
    clock_jumps: bool
    pods: dict[str, int] = field(default_factory=dict)  # name -> slices asked for
    ended: set[str] = field(default_factory=set)
    remnants: bool = False
    count: int = 0
    kubelet: bool = True
    agent: bool = True
    settled: bool = True  # the last policy was seen by an agent that ran on
    cut: Cut = FIRST
    spoiled: bool = False
    trouble: int | None = None  # number of the GPU that is lost, broken or in MIG mode
    api: bool = True
    hangs: bool = False  # the driver
    disk: bool = True  # is writable
    held: bool = False  # the policy, by a label
    refusing: set[Place] = field(default_factory=set)  # what cannot be written
    mps: MpsModel | None = None  # None: the node has none

    def burst(self) -> Burst:
        """The next burst."""
        wanted = self.rng.choice((1, 1, 2, 3))
        burst: list[Step] = []
        keeps = self.disk and Place.RUN not in self.refusing  # the last good policy
        self.settled = self.settled or (self.agent and self.kubelet and keeps)
        while len(burst) < wanted:
            burst.extend(self._next())
        if not self.agent and self.rng.random() < 0.7:
            burst.extend(self._start_agent())
        if not self.kubelet and self.rng.random() < 0.6:
            burst.extend(self._start_kubelet())
        if self.hangs and self.rng.random() < 0.5:
            burst.extend(self._free_driver())
        return tuple(burst)

    def _next(self) -> list[Step]:
        weights: list[tuple[Callable[[], Iterator[Step]], float]] = [
            (self._start_pod, 6.0 if len(self.pods) < _MANY_PODS else 0.0),
            (self._end_pod, 2.0),
            (self._delete_pod, 2.5),
            (self._force_delete_pod, 1.5),
            (self._end_remnants, 1.0 if self.remnants else 0.0),
            (self._restart_container, 0.7),
            (self._kill_kubelet, 0.6),
            (self._start_kubelet, 3.0 if not self.kubelet else 0.0),
            (self._restart_kubelet, 0.8),
            (self._harm_checkpoint, 0.8),
            (self._trouble_list, 0.8),
            (self._hide_pod, 0.5),
            (self._end_agent, 1.3),
            (self._start_agent, 3.0 if not self.agent else 0.0),
            (self._lift_limits, 0.7),
            (self._kill_agent_at_a_limit, 1.5),
            (self._edit_policy, 1.5),
            (self._spoil_policy, 0.5),
            (self._hold_policy, 0.6 if self.with_api and self.api else 0.0),
            (self._fill_disk, 0.5 if self.disk else 1.5),
            (self._refuse_writes, 0.8 if not self.refusing else 2.0),
            (self._lose_specs, 0.6 if self.with_cdi else 0.0),
            (self._jump_clock, 1.5 if self.clock_jumps else 0.0),
            (self._fail_driver, 1.0),
            (self._hang_driver, 0.4 if not self.hangs else 0.0),
            (self._free_driver, 2.0 if self.hangs else 0.0),
            (self._trouble_gpu, 0.8),
            (self._repair_gpu, 1.5 if self.trouble is not None else 0.0),
            (self._xid, 0.5),
            (self._trouble_api, 1.5 if self.with_api else 0.0),
            *([] if self.mps is None else self.mps.moves([name for name in self.pods if name not in self.ended])),
        ]
        moves, chances = zip(*weights, strict=True)
        move = self.rng.choices(moves, chances)[0]
        return list(move())

    # -- pods

    def _start_pod(self) -> Iterator[Step]:
        self.count += 1
        name = f"p{self.count}"
        sizes = [self.rng.choice((1, 1, 2, 3)) for _ in range(self.rng.choice((1, 1, 1, 2)))]
        resource = self.cut.resource
        left = sum(self.cut.counts) - sum(count for pod, count in self.pods.items() if pod not in self.ended)
        if sum(sizes) > left and self.rng.random() < 0.8:
            sizes = [1]
        if self.cut.mps and self.rng.random() < 0.35:
            resource, sizes = MPS, [1]
        containers = [
            ContainerSpec(name="main" if number == 0 else f"more{number}", limits={resource: size})
            for number, size in enumerate(sizes)
        ]
        init: list[ContainerSpec] = []
        if self.rng.random() < 0.25:
            init.append(ContainerSpec(name="init", limits={resource: self.rng.choice((1, 2))}))
        if self.rng.random() < 0.2:
            init.append(ContainerSpec(name="side", limits={resource: 1}, sidecar=True))
            sizes.append(1)
        if self.rng.random() < 0.3:
            containers.append(ContainerSpec(name="logger"))
        if self.rng.random() < 0.1:
            containers, init, sizes = [ContainerSpec(name="main")], [], [0]  # a stranger
        self.pods[name] = max([sum(sizes), *(sum(one.limits.values()) for one in init)])
        yield steps.StartPod(
            name, tuple(containers), tuple(init), static=not self.with_api and self.rng.random() < 0.08
        )

    def _some_pod(self, *, alive: bool = True) -> str | None:
        names = [name for name in self.pods if not alive or name not in self.ended]
        return self.rng.choice(names) if names else None

    def _end_pod(self) -> Iterator[Step]:
        if (name := self._some_pod()) is not None:
            self.ended.add(name)
            yield steps.EndPod(name, self.rng.choice((Phase.SUCCEEDED, Phase.FAILED)))

    def _delete_pod(self) -> Iterator[Step]:
        if (name := self._some_pod(alive=False)) is not None:
            del self.pods[name]
            yield steps.DeletePod(name)

    def _force_delete_pod(self) -> Iterator[Step]:
        if (name := self._some_pod()) is not None:
            del self.pods[name]
            self.remnants = True
            yield steps.ForceDeletePod(name)

    def _end_remnants(self) -> Iterator[Step]:
        self.remnants = False
        yield steps.EndRemnants()

    def _restart_container(self) -> Iterator[Step]:
        if self.kubelet and (name := self._some_pod()) is not None:
            yield steps.RestartContainer(name, cgroup_goes=self.rng.random() < 0.5)

    # -- kubelet

    def _kill_kubelet(self) -> Iterator[Step]:
        if self.kubelet:
            self.kubelet = False
            yield steps.KillKubelet()

    def _start_kubelet(self) -> Iterator[Step]:
        if not self.kubelet:
            self.kubelet = True
            yield steps.StartKubelet()

    def _restart_kubelet(self) -> Iterator[Step]:
        if self.kubelet:
            yield steps.RestartKubelet(self.rng.choice((0.0, 0.0, 0.3)))

    def _harm_checkpoint(self) -> Iterator[Step]:
        yield steps.HarmCheckpoint(self.rng.choice(tuple(CheckpointHarm)))

    def _trouble_list(self) -> Iterator[Step]:
        yield steps.TroubleList(tuple(self.rng.choices(tuple(ListTrouble), (3, 3, 1), k=self.rng.randint(1, 3))))

    def _hide_pod(self) -> Iterator[Step]:
        if (name := self._some_pod()) is not None:
            yield steps.HidePod(name)

    # -- agent

    def _end_agent(self) -> Iterator[Step]:
        if not self.agent:
            return
        self.agent = False
        if self.rng.random() < 0.7:
            yield steps.KillAgent(self.rng.choice((0.0, 0.01, 0.05, 0.2, 0.6)))
        else:
            yield steps.StopAgent()
        if self.rng.random() < 0.5:
            yield from self._start_agent()

    def _start_agent(self) -> Iterator[Step]:
        if not self.agent:
            self.agent = True
            yield steps.StartAgent()

    def _fill_disk(self) -> Iterator[Step]:
        self.disk = not self.disk
        yield steps.FillDisk(full=not self.disk)

    def _refuse_writes(self) -> Iterator[Step]:
        if self.refusing and self.rng.random() < 0.8:
            place = self.rng.choice(sorted(self.refusing))
            self.refusing.remove(place)
        else:
            place = self.rng.choice([one for one in Place if one is not Place.STATE or self.mps is not None])
            self.refusing.add(place)
        yield steps.RefuseWrites(place, refused=place in self.refusing)

    def _lose_specs(self) -> Iterator[Step]:
        yield steps.LoseSpecs()

    def _jump_clock(self) -> Iterator[Step]:
        yield steps.JumpClock(self.rng.choice((-86400.0, -3600.0, -30.0, 0.0, 30.0, 3600.0, 86400.0)))

    # -- limits

    def _lift_limits(self) -> Iterator[Step]:
        if (name := self._some_pod()) is not None:
            yield steps.LiftLimits(name)

    def _kill_agent_at_a_limit(self) -> Iterator[Step]:
        """SIGKILL in the middle of holding a pod, or of letting it go, at one of the first changes that this takes."""
        if not self.agent:
            return
        yield steps.HangLimits(self.rng.randrange(6))
        begins = self.rng.random() < 0.6
        yield from self._start_pod() if begins else self._delete_pod()
        self.agent = False
        yield steps.KillAgent(0.4)

    # -- policy, GPUs, API

    def _edit_policy(self) -> Iterator[Step]:
        if self.spoiled and self.rng.random() < 0.3:
            cut = self.cut
        else:
            cut = self.rng.choice([one for one in CUTS if not self.cut.name.startswith(one.name)])
            if self.mps is not None:
                cut = cut.with_mps(self.cut.mps if self.rng.random() < 0.5 else self.rng.choice(MPS_COUNTS))
        self.cut, self.spoiled, self.settled = cut, False, False
        yield steps.EditPolicy(cut)

    def _spoil_policy(self) -> Iterator[Step]:
        """Only where it is sure that the good one before is in force: else another one than the last may be."""
        if self.settled and self.agent and self.api and not self.held and Place.RUN not in self.refusing:
            self.spoiled = True
            yield steps.SpoilPolicy(self.rng.choice(MISTAKES))

    def _hold_policy(self) -> Iterator[Step]:
        self.held, self.settled = not self.held, False
        yield steps.HoldPolicy(self.held)

    def _fail_driver(self) -> Iterator[Step]:
        function, code = self.rng.choice(DRIVER_FUNCTIONS), self.rng.choice(DRIVER_ERRORS)
        times = self.rng.choice((1, 2) if function == LIMITS_CALL else (1, 2, 5))  # it is asked ever more rarely
        yield steps.FailDriver(function, code, self.rng.randrange(len(GPUS)), times)

    def _hang_driver(self) -> Iterator[Step]:
        self.hangs = True
        yield steps.HangDriver(self.rng.choice(DRIVER_FUNCTIONS))

    def _free_driver(self) -> Iterator[Step]:
        if self.hangs:
            self.hangs = False
            yield steps.FreeDriver()

    def _trouble_gpu(self) -> Iterator[Step]:
        if self.trouble is None:
            self.trouble = self.rng.randrange(len(GPUS))
            yield self.rng.choice((steps.LoseGpu, steps.BreakGpu, steps.CutGpu))(self.trouble)

    def _repair_gpu(self) -> Iterator[Step]:
        if self.trouble is not None:
            number, self.trouble = self.trouble, None
            yield steps.RepairGpu(number)

    def _xid(self) -> Iterator[Step]:
        yield steps.Xid(self.rng.randrange(len(GPUS)), self.rng.choice((31, 94)))

    def _trouble_api(self) -> Iterator[Step]:
        troubles = [one for one in ApiTrouble if (one is ApiTrouble.BACK) != self.api]
        trouble = self.rng.choice(troubles)
        self.api = trouble not in LASTING
        yield steps.TroubleApi(trouble)
