"""What to do with an MPS control daemon, from what is wanted, what was seen and the time; and what is said of it.

A daemon's end is the end of its clients. So one that answers is left alone, also by a new supervisor and while nobody
says what is wanted; it is restarted only when it is gone, silent or of no use, and for other GPUs only when idle.

The known wedge (gpu-limits §3): a client that was killed with work in flight orphans that work; then other clients of
the GPU fail and new ones hang in CUDA's initialisation, while the daemon looks healthy. Having the daemon end what is
left of a client avoids it, only a restart clears it. Restarting kills those that still live, so a wedge with living
clients is reported with that cure, and restarted as soon as they have ended.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from enum import Enum, auto

from sharer.core.mps.daemon import Abilities, Launch, Look, MpsClient
from sharer.core.mps.state import SHARED_MEMORY, MpsGpu, MpsInterface, MpsState
from sharer.core.values import dataclass, replace

BACK_OFF_S, MAX_BACK_OFF_S = 1.0, 60.0  # doubled with each start that comes to nothing
SETTLE_S = 2.0  # a server that cannot use its GPU is there for a moment before it is gone
STAYS_UP_S = 60.0  # then earlier failures are over
HANG_S = 20.0  # without an answer; a busy daemon answers in milliseconds
INIT_PATIENCE_S = 120.0  # a server wakes every GPU, up to 4 s each without the persistence daemon
STOP_AFTER_S = 30.0  # not wanted for so long: an agent that starts may not know its slices yet
IDLE_S = 10.0  # without clients, before a restart that nothing forces
LINGER_S = 5.0  # a process that ended is gone from the daemon's list in a moment
WEDGED_S = 60.0
SIGN_LASTS_S = 600.0
V3_TRIES = 2  # of MPS v3 that come to nothing, before the legacy interface is tried, and if that fails too v3 again

CURE = "only a restart of the daemon clears that: end the pods on it, and it is restarted at once"


class Act(Enum):
    """What is done next. One at a time, then the daemon is looked at again."""

    NOTHING = auto()
    START = auto()
    SERVE = auto()  # tell it its limits and start its server
    END_CLIENTS = auto()  # have it end what is left of dead ones
    STOP = auto()
    KILL = auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class Watch:
    """What is remembered of a daemon from look to look. Times are seconds on one clock; None: it is not so now."""

    failures: int = 0  # in a row
    retry_at_s: float = 0.0
    last_error: str | None = None  # why the last of them
    legacy_reason: str | None = None  # why MPS v3 is not used though it is there; None: it is
    interface: MpsInterface | None = None  # that it was started with last
    served_by: MpsInterface | None = None  # that clients were served by last: containers were given its directory
    was_running: bool = False
    serving: bool = False  # it was told to serve, so it should have a server
    silent_since_s: float | None = None
    unready_since_s: float | None = None
    ready_since_s: float | None = None
    unwanted_since_s: float | None = None
    idle_since_s: float | None = None
    dead_since_s: Mapping[int, float] = field(default_factory=dict)  # by PID, clients that are dead and still listed
    asked: frozenset[int] = frozenset()  # dead clients that the daemon was asked to end
    stuck_on: int | None = None  # the dead client that it did not come back from ending
    waiting_since_s: Mapping[int, float] = field(default_factory=dict)  # by PID, who asked to be let in and was not
    fatal: str | None = None
    fatal_at_s: float | None = None


def seen(watch: Watch, look: Look, *, wanted: bool, now_s: float) -> Watch:
    """The memory after one more look."""
    watch = replace(watch, unwanted_since_s=None if wanted else _since(watch.unwanted_since_s, now_s))
    if not look.running:
        fresh = Watch(
            failures=watch.failures,
            retry_at_s=watch.retry_at_s,
            last_error=watch.last_error,
            legacy_reason=watch.legacy_reason,
            interface=watch.interface,
            served_by=watch.served_by,
            unwanted_since_s=watch.unwanted_since_s,
        )
        return failed(fresh, look.signs.first_error or "it ended", now_s) if watch.was_running else fresh
    taken_over = not watch.was_running  # it served before we came, so nothing has to settle
    watch = replace(watch, was_running=True, interface=look.interface or watch.interface)
    if look.silence is not None:
        return replace(watch, silent_since_s=_since(watch.silent_since_s, now_s), ready_since_s=None)
    watch = replace(watch, silent_since_s=None)
    if look.server is None and (watch.serving or watch.ready_since_s is not None):
        watch = failed(watch, look.signs.first_error or "its server ended", now_s)
    watch = replace(
        watch,
        serving=look.server is not None,
        ready_since_s=_since(watch.ready_since_s, now_s - taken_over * SETTLE_S) if look.ready else None,
        unready_since_s=None if look.ready else _since(watch.unready_since_s, now_s),
    )
    if watch.ready_since_s is not None and now_s - watch.ready_since_s >= SETTLE_S:
        watch = replace(watch, served_by=watch.interface)
    if watch.ready_since_s is not None and now_s - watch.ready_since_s >= STAYS_UP_S:
        watch = replace(watch, failures=0, retry_at_s=0.0, last_error=None)
    return _with_clients(watch, look, now_s)


def started(watch: Watch, interface: MpsInterface) -> Watch:
    """Its process was started."""
    return replace(watch, was_running=True, interface=interface)


def stopped(watch: Watch) -> Watch:
    """It was ended on purpose, which is no failure."""
    return replace(watch, was_running=False)


def killed(watch: Watch, look: Look, now_s: float) -> Watch:
    """It was ended because it was of no use; a failure too, unless it served until then."""
    if look.silence is not None:
        return failed(stopped(watch), f"it did not answer for {HANG_S:g} s: {look.silence}", now_s)
    if not look.ready:
        return failed(stopped(watch), f"its server was not ready within {INIT_PATIENCE_S:g} s", now_s)
    return stopped(watch)


def failed(watch: Watch, error: str, now_s: float) -> Watch:
    """A start came to nothing, or what ran is gone: the next one waits."""
    failures = watch.failures + 1
    legacy_reason = watch.legacy_reason
    if watch.interface is not watch.served_by:  # else it is not the interface that is to blame
        if watch.interface is MpsInterface.LEGACY:
            legacy_reason = None  # the older one fares no better, as where a GPU is gone
        elif failures % (V3_TRIES + 1) == V3_TRIES:
            legacy_reason = f"MPS v3 did not come up: {error}"
    return replace(
        watch,
        failures=failures,
        last_error=error,
        retry_at_s=now_s + min(MAX_BACK_OFF_S, BACK_OFF_S * 2 ** min(failures - 1, 10)),
        legacy_reason=legacy_reason,
        serving=False,
        ready_since_s=None,
    )


def served(watch: Watch) -> Watch:
    """It was told to serve, and took it."""
    return replace(watch, serving=True)


def asked(watch: Watch, client: MpsClient, *, came_back: bool) -> Watch:
    """It was asked to end what is left of a client."""
    return replace(watch, asked=watch.asked | {client.pid}, stuck_on=watch.stuck_on if came_back else client.pid)


def why_legacy(watch: Watch, abilities: Abilities) -> str | None:
    """Why a daemon is started with the legacy interface; None: it is not."""
    if not abilities.namespaces:
        return abilities.no_namespaces_reason
    if watch.legacy_reason is None and watch.served_by is MpsInterface.LEGACY:
        return "a daemon of the legacy interface was there, and containers were given its directory"
    return watch.legacy_reason


def interface_for(watch: Watch, abilities: Abilities) -> MpsInterface:
    """The one to start a daemon with."""
    return MpsInterface.NAMESPACES if why_legacy(watch, abilities) is None else MpsInterface.LEGACY


def next_act(
    watch: Watch, look: Look, launch: Launch, interface: MpsInterface, *, wanted: bool, refused: bool, now_s: float
) -> Act:
    """What to do now. `interface`: the one to start with. `refused`: no daemon may serve these slices on this node."""
    if not look.running:
        return Act.START if wanted and not refused and now_s >= watch.retry_at_s else Act.NOTHING
    lives = _living(look)
    if not wanted:
        over = _for(watch.unwanted_since_s, now_s) >= STOP_AFTER_S
        return Act.STOP if over and not lives else Act.NOTHING
    if look.silence is not None:
        return Act.KILL if _for(watch.silent_since_s, now_s) >= HANG_S else Act.NOTHING
    if not lives:
        idle = _for(watch.idle_since_s, now_s) >= IDLE_S
        unready = _for(watch.unready_since_s, now_s) >= INIT_PATIENCE_S
        if wedge(watch, now_s) is not None or _overdue(watch, now_s) or unready:
            return Act.KILL
        if look.server is None and look.interface is not interface:
            return Act.STOP
        if refused or set(launch.gpus) - set(look.gpus) or look.user_id != launch.user_id:
            return Act.STOP
        if idle and set(look.gpus) - set(launch.gpus):
            return Act.STOP
    if _lingering(watch, now_s) - watch.asked:
        return Act.END_CLIENTS
    if (look.server is None or look.unlike is not None) and now_s >= watch.retry_at_s:
        return Act.SERVE
    return Act.NOTHING


def to_end(watch: Watch, look: Look, now_s: float) -> tuple[MpsClient, ...]:
    """The dead clients that the daemon is to be asked to end."""
    pids = _lingering(watch, now_s) - watch.asked
    return tuple(client for client in look.clients or () if client.pid in pids)


def wedge(watch: Watch, now_s: float) -> str | None:
    """By which signs it can serve no new clients on any GPU, whatever it says of itself; None: there are none."""
    if watch.stuck_on is not None:
        return f"it does not come back from ending what is left of process {watch.stuck_on}"
    hanging = _hanging(watch, now_s)
    if hanging and watch.fatal is not None:
        return f"clients failed together ({watch.fatal}), and process {hanging[0]} was not let in since"
    return None


def state_of(
    watch: Watch,
    look: Look,
    launch: Launch,
    *,
    resource: str,
    trouble: str | None,
    legacy_reason: str | None = None,
    warnings: tuple[str, ...] = (),
    settle_s: float = SETTLE_S,
    now_s: float,
    wall_s: float,
) -> MpsState:
    """What is said of a daemon.

    `trouble`: why none can be run, or be looked at; None: nothing stands in the way. `legacy_reason`: see `why_legacy`.
    `warnings`: what else is to be said. `settle_s`: how long a server that has come up must stay.
    """
    return MpsState(
        resource=resource,
        written_at_s=wall_s,
        problem=trouble or _problem(watch, look, settle_s, now_s),
        interface=look.interface,
        interface_reason=legacy_reason if look.interface is MpsInterface.LEGACY else None,
        gpus={uuid: _gpu(watch, look, uuid, now_s) for uuid in launch.gpus},
        namespaces=look.namespaces,
        shared_memory=SHARED_MEMORY if look.interface is MpsInterface.LEGACY else None,
        warnings=(*warnings, *launch.warnings, *_signs(watch, look, launch, now_s)),
    )


def _problem(watch: Watch, look: Look, settle_s: float, now_s: float) -> str | None:
    """In words that stay the same for as long as the reason does: the agent compares them."""
    again = f" ({watch.last_error})" if watch.last_error else ""
    if not look.running:
        if not watch.failures:
            return "its MPS control daemon is being started"
        return f"its MPS control daemon has failed {_times(watch.failures)}{again}; it is started again after a pause"
    if look.silence is not None:
        return f"its MPS control daemon does not answer: {look.silence}"
    if (signs := wedge(watch, now_s)) is not None:
        return f"its MPS control daemon is wedged: {signs}; {CURE}"
    if look.server is None:
        if not watch.failures:
            return "its MPS server is being started"
        return f"its MPS server has failed {_times(watch.failures)}{again}; the log beside its pipes says more"
    if not look.ready:
        return f"its MPS server says that it is {look.server}: it takes no new clients until those it has have ended"
    if look.unlike is not None:
        return f"its MPS control daemon does not hold what it was told: {look.unlike}{again}"
    if _for(watch.ready_since_s, now_s) < settle_s:
        return f"its MPS server has just come up, and must stay for {settle_s:g} s{again}"
    return None


def _gpu(watch: Watch, look: Look, uuid: str, now_s: float) -> MpsGpu:
    clients = None if look.clients is None else [client for client in look.clients if uuid in client.gpus]
    problem = None
    if look.running and look.silence is None:
        if uuid not in look.gpus:
            problem = (
                "its MPS control daemon was started without this GPU, and is restarted with it when its clients on"
                " other GPUs have ended"
            )
        elif dead := sorted({client.pid for client in clients or ()} & _lingering(watch, now_s)):
            overdue = _overdue(watch, now_s) & set(dead)
            problem = (
                f"its MPS server still lists processes that have ended ({', '.join(map(str, dead))}), so what they left"
                f" is still in the way; {CURE if overdue else 'the daemon was asked to end them'}"
            )
    return MpsGpu(problem=problem, clients=None if clients is None else sum(client.alive for client in clients))


def _signs(watch: Watch, look: Look, launch: Launch, now_s: float) -> list[str]:
    found = []
    if watch.fatal is not None:
        found.append(f"a fault took the clients of a GPU with it: {watch.fatal}; if new ones hang, {CURE}")
    if hanging := _hanging(watch, now_s):
        found.append(f"process {hanging[0]} asked to be let in {WEDGED_S:.0f} s ago or more, and was not; {CURE}")
    if extra := sorted(set(look.gpus) - set(launch.gpus)):
        found.append(f"it still has a context on {', '.join(extra)}, which it need not serve; until it is idle")
    if watch.unwanted_since_s is not None and _living(look):
        found.append("nothing of it is wanted any more, and clients still live on it; it is stopped when they end")
    return found


def _with_clients(watch: Watch, look: Look, now_s: float) -> Watch:
    if look.clients is None:
        return watch
    dead = {client.pid for client in look.clients if not client.alive}
    fatal_at_s = now_s if look.signs.fatal is not None else watch.fatal_at_s
    lasts = fatal_at_s is not None and now_s - fatal_at_s < SIGN_LASTS_S
    return replace(
        watch,
        idle_since_s=None if _living(look) else _since(watch.idle_since_s, now_s),
        dead_since_s={pid: watch.dead_since_s.get(pid, now_s) for pid in dead},
        asked=watch.asked & dead,
        waiting_since_s={pid: watch.waiting_since_s.get(pid, now_s) for pid in look.signs.newcomers},
        fatal=(look.signs.fatal or watch.fatal) if lasts else None,
        fatal_at_s=fatal_at_s if lasts else None,
    )


def _living(look: Look) -> bool:
    """Whether a client lives, or might: a daemon that does not tell may have some."""
    return look.running and (look.clients is None or any(client.alive for client in look.clients))


def _lingering(watch: Watch, now_s: float) -> set[int]:
    return {pid for pid, since_s in watch.dead_since_s.items() if now_s - since_s >= LINGER_S}


def _overdue(watch: Watch, now_s: float) -> set[int]:
    """Dead clients that are still listed though the daemon was asked to end them."""
    return {pid for pid, since_s in watch.dead_since_s.items() if now_s - since_s >= WEDGED_S}


def _hanging(watch: Watch, now_s: float) -> list[int]:
    return [pid for pid, since_s in watch.waiting_since_s.items() if now_s - since_s >= WEDGED_S]


def _since(since_s: float | None, now_s: float) -> float:
    return now_s if since_s is None else since_s


def _for(since_s: float | None, now_s: float) -> float:
    return 0.0 if since_s is None else now_s - since_s


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times in a row"
