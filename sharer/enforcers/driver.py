"""The driver's own memory limit, per cgroup (r615 and newer; gpu-limits §2).

It is set twice. By NVIDIA's container toolkit before a container's first instruction: a hook of its CDI specs reads two
variables. That spares the container an unlimited moment and no more, since the hook knows one value for all GPUs, and
an image can forge the variables. And by us: on the pod's cgroup as soon as it is there, then on the container's own,
without which the container would take the whole GPU for its own. Only what is read back counts.

A soft limit is a reservation. The kernel adds it to every cgroup above and does not take it back when the container's
own is removed, so it is set only where the policy asks for a guarantee, and is looked after when a container has ended.

Whether every version of the hook takes a request of 0 is not known; `tests/hardware` is to ask one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from sharer.core.edits import ContainerEdits, DeviceFacts, Injection, NodeFacts
from sharer.core.enforcer import LimitAnswer, LimitChange, LimitQuestion, MemoryLimit, Reach, Verdict, Verdicts
from sharer.core.errors import NodeError
from sharer.core.grant import Grant
from sharer.core.limits.limits import MemoryBound, PromiseKey, Tenant
from sharer.core.limits.usage import NOT_KNOWN, Usage
from sharer.core.policy.enforcers import DRIVER, Promise
from sharer.core.quantities import GIB, MIB, format_bytes, round_down
from sharer.core.slices.cut import Target
from sharer.core.values import dataclass, replace

CHECK_WITHIN_S = 2.0  # a driver that takes longer to set a limit is of no use before a container's start
BATCH = 64  # questions at once: who waits for the driver meanwhile waits for some milliseconds
_UNKNOWN = DeviceFacts()


@dataclass(frozen=True, slots=True)
class _Place:
    """One cgroup of a tenant and one GPU."""

    tenant: Tenant
    bound: MemoryBound
    cgroup: str

    @property
    def question(self) -> LimitQuestion:
        return LimitQuestion(gpu_uuid=self.bound.uuid, cgroup=self.cgroup)

    @property
    def soft_bytes(self) -> int | None:
        """What should be reserved; None: what is, for it belongs to the cgroups below."""
        if self.tenant.container is None or self.cgroup != self.tenant.cgroups[-1]:
            return None
        return self.bound.at_most_bytes if self.bound.policy.guarantee else 0

    @property
    def change(self) -> LimitChange:
        """What makes it right. A pod's limit may be higher, so that it is never lowered."""
        bound = self.bound
        return LimitChange(hard_bytes=bound.at_least_bytes, up_to_bytes=bound.at_most_bytes, soft_bytes=self.soft_bytes)

    def is_right(self, limit: MemoryLimit) -> bool:
        return self.change.made_of(limit) == limit


class DriverEnforcer:
    """Holds every kind of device memory, at allocation time. Way out: managed memory."""

    name = DRIVER
    escapes = ("managed memory, which is counted as the host's",)

    def __init__(self, reach: Reach) -> None:
        self._limits, self._cgroups = reach.limits, reach.cgroups
        self._able = frozenset[str]()  # GPUs that were seen to take limits; another thread may be checking one
        self._clean = frozenset[str]()  # GPUs of which nothing was reserved for any pod when last looked at

    @staticmethod
    def edits(grant: Grant, facts: NodeFacts) -> ContainerEdits:
        """Both variables or neither, in whole MiB; only where a check has shown the driver to hold limits."""
        limits = {share.memory_bytes for share in grant.shares}
        limit_bytes = limits.pop() if len(limits) == 1 else None
        held = all(facts.devices.get(share.uuid, _UNKNOWN).driver_limit for share in grant.shares)
        if limit_bytes is None or not held or Injection.CDI not in facts.injection:
            return ContainerEdits()
        pair = (("NVIDIA_GPU_MEMORY_LIMIT", str(limit_bytes // MIB)), ("NVIDIA_GPU_MEMORY_REQUEST", "0"))
        return ContainerEdits(env=pair)

    def available(self, target: Target) -> str | None:
        """Set a limit on a cgroup that nobody is in, and read it back. Nothing else tells (gpu-limits §2)."""
        self._able -= {target.uuid}
        if target.mig is not None:
            return "the driver takes no limits for MIG devices"
        if target.gpu.mig_enabled:
            return "the GPU is in MIG mode, in which the driver takes no limits"
        if target.gpu.lost is not None:
            return f"the GPU is lost: {target.gpu.lost}"
        try:
            with self._cgroups.scratch() as cgroup:
                problem = self._try_limit(target, cgroup)
        except NodeError as error:
            return str(error)
        if problem is None:
            self._able |= {target.uuid}
        self._clean -= {target.uuid}  # an image may have had something reserved by the hook, for a moment
        return problem

    def apply(self, tenants: Sequence[Tenant], *, within_s: float | None = None) -> Verdicts:
        """Set what is not right yet; pods first, so that no container is without any limit meanwhile."""
        places = sorted(_places(tenants), key=lambda place: place.tenant.container is not None)
        self._clean -= {place.bound.uuid for place in places if place.soft_bytes}
        answers = self._ask([replace(place.question, change=place.change) for place in places], within_s=within_s)
        return _unplaced(tenants) | {key: _judge_limit(found) for key, found in _by_promise(places, answers)}

    def verify(self, tenants: Sequence[Tenant], usage: Usage) -> Verdicts:
        """A container is held if its limit is read back from each of its cgroups, and it keeps to it, and to its GPUs.

        A pod as a whole is held if its limit is read back.
        """
        places = list(_places(tenants))
        answers = self._ask([place.question for place in places])
        return _unplaced(tenants) | {key: _judge(found, usage) for key, found in _by_promise(places, answers)}

    def release(self, tenants: Sequence[Tenant]) -> str | None:
        """Lift limits of those that live on, and take back what ended containers had reserved."""
        returned: dict[str, int] = {}  # by GPU
        if not_clean := self._able - self._clean:
            self._sweep(not_clean, returned)
        places = list(_places(tenants))
        lifts = [
            replace(place.question, change=LimitChange(hard_bytes=None, soft_bytes=place.soft_bytes and 0))
            for place in places
        ]
        for place, answer in zip(places, self._ask(lifts), strict=True):
            if answer.gone and place.soft_bytes:
                ancestor = self._nearest_ancestor(place.cgroup)
                if ancestor is not None:
                    taken_bytes = self._take_back(place.bound.uuid, ancestor, place.soft_bytes)
                    self._count(returned, place.bound.uuid, taken_bytes)
        told = [f"{format_bytes(amount)} of {uuid}" for uuid, amount in sorted(returned.items())]
        return f"took back {', '.join(told)} that ended containers had reserved" if told else None

    def _try_limit(self, target: Target, cgroup: str) -> str | None:
        """Why a limit does not take hold; None: it does."""
        total_bytes = target.gpu.memory_bytes or GIB
        wanted_bytes = max(round_down(total_bytes // 2, MIB), MIB)
        change = LimitChange(hard_bytes=wanted_bytes, soft_bytes=0)
        (answer,) = self._ask_once(LimitQuestion(gpu_uuid=target.uuid, cgroup=cgroup, change=change))
        if answer.problem is not None or answer.limit is None:
            return answer.problem or "a limit that was set cannot be read back"
        self._ask_once(LimitQuestion(gpu_uuid=target.uuid, cgroup=cgroup, change=LimitChange(hard_bytes=None)))
        if answer.limit.hard_bytes != wanted_bytes:
            read_back = "none" if answer.limit.hard_bytes is None else format_bytes(answer.limit.hard_bytes)
            return f"a limit of {format_bytes(wanted_bytes)} was set, and {read_back} was read back"
        return None

    def _sweep(self, uuids: Iterable[str], returned: dict[str, int]) -> None:
        """Take back what nobody has below it any more: of pods that ended without us, or that the kubelet forgot."""
        roots = self._cgroups.roots()
        for uuid in sorted(uuids):
            found = self._ask([LimitQuestion(gpu_uuid=uuid, cgroup=root) for root in roots])
            if any(answer.limit is not None and answer.limit.soft_bytes > 0 for answer in found):
                # What is reserved anywhere, the outermost have as well. All pods: one may be of an agent before us.
                below = {pod for root in roots for pod in self._cgroups.below(root) or ()} - {*roots}
                pods = {pod: self._cgroups.below(pod) or () for pod in sorted(below)}
                for cgroup in (*self._with_surplus(uuid, pods), *reversed(roots)):
                    self._count(returned, uuid, self._take_back(uuid, cgroup, None))
            elif all(answer.limit is not None for answer in found):
                self._clean |= {uuid}

    def _with_surplus(self, uuid: str, pods: Mapping[str, Sequence[str]]) -> list[str]:
        """Those of these cgroups that have reserved more than those below them, as far as that can be read."""
        cgroups = [cgroup for pod, containers in pods.items() for cgroup in (pod, *containers)]
        answers = self._ask([LimitQuestion(gpu_uuid=uuid, cgroup=cgroup) for cgroup in cgroups])
        soft_bytes = {
            cgroup: answer.limit.soft_bytes
            for cgroup, answer in zip(cgroups, answers, strict=True)
            if answer.limit is not None
        }
        return [
            pod
            for pod, containers in pods.items()
            if soft_bytes.get(pod, 0) > sum(soft_bytes.get(one, 0) for one in containers)
        ]

    def _take_back(self, uuid: str, cgroup: str, at_most_bytes: int | None) -> int:
        """Lower what a cgroup has reserved to what those below it have. Returns by how much.

        Its own is read first: one that starts below meanwhile makes the rest smaller, never larger.
        """
        (own,) = self._ask([LimitQuestion(gpu_uuid=uuid, cgroup=cgroup)])
        if own.limit is None or own.limit.soft_bytes == 0:
            return 0
        below = self._ask([LimitQuestion(gpu_uuid=uuid, cgroup=path) for path in self._cgroups.below(cgroup) or ()])
        if any(answer.limit is None and not answer.gone for answer in below):
            return 0  # what is not known is not taken
        used_bytes = sum(answer.limit.soft_bytes for answer in below if answer.limit is not None)
        surplus_bytes = own.limit.soft_bytes - used_bytes
        taken_bytes = surplus_bytes if at_most_bytes is None else min(surplus_bytes, at_most_bytes)
        if taken_bytes <= 0:
            return 0
        change = LimitChange(hard_bytes=own.limit.hard_bytes, soft_bytes=own.limit.soft_bytes - taken_bytes)
        (after,) = self._ask([LimitQuestion(gpu_uuid=uuid, cgroup=cgroup, change=change)])
        return taken_bytes if after.problem is None else 0

    def _nearest_ancestor(self, cgroup: str) -> str | None:
        """The lowest cgroup above that exists; None: there is none that only pods are below."""
        roots = self._cgroups.roots()
        above = cgroup.rpartition("/")[0]
        while any(above == root or above.startswith(f"{root}/") for root in roots):
            if self._cgroups.below(above) is not None:
                return above
            above = above.rpartition("/")[0]
        return None

    def _count(self, returned: dict[str, int], uuid: str, taken_bytes: int) -> None:
        if taken_bytes:
            returned[uuid] = returned.get(uuid, 0) + taken_bytes

    def _ask_once(self, question: LimitQuestion) -> list[LimitAnswer]:
        return self._limits.limits([question], within_s=CHECK_WITHIN_S)

    def _ask(self, questions: Sequence[LimitQuestion], *, within_s: float | None = None) -> list[LimitAnswer]:
        answers: list[LimitAnswer] = []
        for first in range(0, len(questions), BATCH):
            answers += self._limits.limits(questions[first : first + BATCH], within_s=within_s)
        return answers


_Found = Sequence[tuple[_Place, LimitAnswer]]
"""What was read of all cgroups of a tenant on one GPU, the outermost first."""


def _places(tenants: Sequence[Tenant]) -> Iterator[_Place]:
    for tenant in tenants:
        for bound in tenant.memory:
            for cgroup in tenant.cgroups:
                yield _Place(tenant, bound, cgroup)


def _by_promise(places: Sequence[_Place], answers: Sequence[LimitAnswer]) -> Iterator[tuple[PromiseKey, _Found]]:
    found: dict[PromiseKey, list[tuple[_Place, LimitAnswer]]] = {}
    for place, answer in zip(places, answers, strict=True):
        found.setdefault((place.tenant.key, Promise.MEMORY, place.bound.uuid), []).append((place, answer))
    yield from found.items()


def _unplaced(tenants: Sequence[Tenant]) -> dict[PromiseKey, Verdict]:
    verdicts: dict[PromiseKey, Verdict] = {}
    for tenant in tenants:
        if not tenant.cgroups:
            no_pod, no_leaf = "the pod has no cgroup", f"{NOT_KNOWN}, so only its pod as a whole is held"
            verdict = Verdict(problem=no_pod if tenant.container is None else no_leaf)
            verdicts |= {key: verdict for key, _ in tenant.promises()}
    return verdicts


def _judge_limit(found: _Found) -> Verdict:
    """Whether the limit is in force."""
    for number, (place, answer) in enumerate(found):
        if answer.limit is None or answer.problem is not None:
            if number > 0 and not answer.gone:
                continue  # no limit can be set there, and the outer one holds everything below it
            return Verdict(problem=answer.problem or "its limit cannot be read", curable=not answer.gone)
        if not place.is_right(answer.limit):
            return Verdict(problem=_difference(place, answer.limit), curable=True)
    return Verdict()


def _judge(found: _Found, usage: Usage) -> Verdict:
    """Whether the limit is in force and the container keeps to it, and to its GPUs."""
    place, answer = found[0]
    tenant, bound = place.tenant, place.bound
    limit = _judge_limit(found)
    if limit.problem is not None or tenant.container is None:
        return limit
    use = usage.of(tenant.uid, tenant.container_id, bound.uuid)
    used_bytes = max(answer.used_bytes or 0, use.known_bytes)
    if used_bytes > bound.at_most_bytes:
        promised = format_bytes(bound.at_most_bytes)  # the same words at every reading: this is published
        return Verdict(problem=f"it uses more than the {promised} it was promised")
    if answer.used_bytes is None and use.unknown is not None:
        return Verdict(problem=f"what it uses is not known: {use.unknown}")
    return Verdict(problem=usage.why_not_confined(tenant))


def _difference(place: _Place, limit: MemoryLimit) -> str:
    if place.soft_bytes is not None and limit.soft_bytes != place.soft_bytes:
        return f"{format_bytes(limit.soft_bytes)} is reserved for it, and {format_bytes(place.soft_bytes)} should be"
    found = "no limit" if limit.hard_bytes is None else f"a limit of {format_bytes(limit.hard_bytes)}"
    return f"{found} is in force, and {format_bytes(place.bound.at_least_bytes)} should be"
