"""Keep one MPS control daemon as it is wanted, a step at a time, and say how it is."""

from __future__ import annotations

import logging
from typing import Protocol

from sharer.core.errors import NodeError
from sharer.core.mps import supervision
from sharer.core.mps.daemon import Launch, Look, MpsDaemon, launch_of
from sharer.core.mps.state import MpsInterface, MpsState, MpsWanted
from sharer.core.mps.supervision import Act, Watch

SOON_S, LATER_S, STEADY_S = 0.25, 1.0, 3.0  # between two looks: after a change, while it stays wrong, while all is well
RECENT_S = 5.0  # for so long after a change
ONE_USER_ONLY = (
    "this driver's MPS serves one user at a time, so clients of different users would block each other; name the one"
    " user whose pods may come in the policy, or use a driver with multi-user MPS"
)
ENDED = "sharer mps was told to end, and has ended its MPS control daemons; start it again"

log = logging.getLogger(__name__)


class StateWriter(Protocol):
    """Where a daemon's state is told."""

    def write(self, state: MpsState) -> None:
        """Tell it. Raises NodeError."""
        ...

    def remove(self, resource: str) -> None:
        """Say nothing of a daemon any more. Raises NodeError."""
        ...


class Keeper:
    """One daemon. For one thread."""

    def __init__(
        self, resource: str, daemon: MpsDaemon, states: StateWriter, *, settle_s: float = supervision.SETTLE_S
    ) -> None:
        """Nothing is looked at before the first step. `settle_s`: how long a server that has come up must stay."""
        self.resource, self._settle_s = resource, settle_s
        self._daemon, self._states = daemon, states
        self._watch = Watch()
        self._look = Look(running=False)
        self._wanted = MpsWanted(resource=resource, slices={}, limits_memory=False)
        self._legacy_reason: str | None = None
        self._said: str | None = None
        self._changed_s = 0.0  # when something else was said of it

    def step(
        self, wanted: MpsWanted | None, warnings: tuple[str, ...] = (), *, now_s: float, wall_s: float
    ) -> float | None:
        """Look, do the next thing, write the state. `wanted`: None, it is not wanted any more.

        Returns the seconds until the next step; None: it is gone, and nothing of it is left to keep.
        """
        self._wanted = wanted or self._wanted
        launch = launch_of(self._wanted, self._look.gpus)
        trouble, act = None, Act.NOTHING
        try:
            trouble, act = self._look_and_act(launch, wanted is not None, now_s)
        except NodeError as error:
            trouble = str(error)
        if wanted is None and not self._look.running:
            self._states.remove(self.resource)
            return None
        state = supervision.state_of(
            self._watch, self._look, launch,
            resource=self.resource, trouble=trouble, legacy_reason=self._legacy_reason, warnings=warnings,
            settle_s=self._settle_s, now_s=now_s, wall_s=wall_s,
        )  # fmt: skip
        self._states.write(state)
        self._say(state, now_s)
        if state.problem is None and act is Act.NOTHING:
            return STEADY_S
        return SOON_S if now_s - self._changed_s < RECENT_S else LATER_S

    def end(self, *, wall_s: float) -> None:
        """End the daemon, and say so; one that did not answer is not asked. Raises NodeError if it stays."""
        self._daemon.stop(at_once=self._look.silence is not None)
        self._states.write(MpsState(resource=self.resource, written_at_s=wall_s, problem=ENDED))

    def _look_and_act(self, launch: Launch, wanted: bool, now_s: float) -> tuple[str | None, Act]:
        self._look = self._daemon.look(launch)
        self._watch = supervision.seen(self._watch, self._look, wanted=wanted, now_s=now_s)
        abilities = self._daemon.abilities()
        self._legacy_reason = supervision.why_legacy(self._watch, abilities)
        interface = supervision.interface_for(self._watch, abilities)
        refused = ONE_USER_ONLY if launch.user_id is None and not abilities.many_users else None
        act = supervision.next_act(
            self._watch, self._look, launch, interface, wanted=wanted, refused=refused is not None, now_s=now_s
        )
        self._do(act, launch, interface, now_s)
        return refused, act

    def _do(self, act: Act, launch: Launch, interface: MpsInterface, now_s: float) -> None:
        match act:
            case Act.NOTHING:
                pass
            case Act.START:
                self._start(launch, interface, now_s)
            case Act.SERVE:
                self._serve(launch, now_s)
            case Act.END_CLIENTS:
                for client in supervision.to_end(self._watch, self._look, now_s):
                    log.warning("%s: has MPS end what is left of process %d", self.resource, client.pid)
                    came_back = self._daemon.end_client(client)
                    self._watch = supervision.asked(self._watch, client, came_back=came_back)
            case Act.STOP | Act.KILL:
                log.warning("%s: ends its MPS control daemon", self.resource)
                self._daemon.stop(at_once=act is Act.KILL)
                if act is Act.KILL:
                    self._watch = supervision.killed(self._watch, self._look, now_s)
                else:
                    self._watch = supervision.stopped(self._watch)
                self._look = Look(running=False)

    def _start(self, launch: Launch, interface: MpsInterface, now_s: float) -> None:
        self._watch = supervision.started(self._watch, interface)
        try:
            self._daemon.start(launch, interface, many_users=launch.user_id is None)
        except NodeError as error:
            self._watch = supervision.failed(supervision.stopped(self._watch), str(error), now_s)
            raise
        log.info("%s: started an MPS control daemon (%s) for %s", self.resource, interface, ", ".join(launch.gpus))

    def _serve(self, launch: Launch, now_s: float) -> None:
        try:
            self._daemon.serve(launch)
        except NodeError as error:
            refusal = str(error)
            self._look = self._daemon.look(launch)  # where the server went meanwhile, the log says why
            self._watch = supervision.failed(self._watch, self._look.signs.first_error or refusal, now_s)
            return
        self._watch = supervision.served(self._watch)
        self._look = self._daemon.look(launch)
        self._watch = supervision.seen(self._watch, self._look, wanted=True, now_s=now_s)

    def _say(self, state: MpsState, now_s: float) -> None:
        """Log what changed, once."""
        gpus = "1 GPU" if len(state.gpus) == 1 else f"{len(state.gpus)} GPUs"
        sentence = f"{state.resource}: {state.problem or f'serves {gpus} by MPS {state.interface}'}"
        if sentence != self._said:
            log.log(logging.INFO if state.problem is None else logging.WARNING, "%s", sentence)
            self._said, self._changed_s = sentence, now_s
