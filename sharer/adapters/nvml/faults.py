"""Faults as the driver reports them: XID events as they happen, and a cheap look at each GPU.

NVML has one worker thread (DESIGN §1). Waiting for events has another, the listener, because that wait blocks: in the
worker it would delay every other question, or be cut into waits of 100 ms, and ten wake-ups per second cost more than
all the rest of an idle agent. The listener makes one NVML call only, `nvmlEventSetWait`, for a second at a time so that
it can be told to end. Everything else about events is done in the worker.

If several XIDs of a GPU come before the next wait, NVML reports the last one for all of them (so its header says).
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable

from sharer.adapters.nvml.calls import Calls, Handle, RawEvent, address_of
from sharer.adapters.nvml.errors import FUNCTION_NOT_FOUND, NvmlCallError
from sharer.adapters.nvml.session import FoundGpu, Session
from sharer.core.errors import NodeError
from sharer.core.ports.driver import GpuSigns, XidEvent

MAX_EMPTY_WAITS = 3  # waits in a row that end early without an event: the driver does not wait, and a loop would spin
JOIN_GRACE_S = 1.0  # for a wait that ends a little late

_ACTIONS = {
    0: "none",
    1: "GPU reset",
    2: "node reboot",
    3: "drain of peer-to-peer traffic",
    4: "drain and GPU reset",
    5: "recovery of the IMEX domain",
    6: "reset of the GPU's PCIe bus",
    7: "system reboot",
}  # nvmlDeviceGpuRecoveryAction_t


class Faults:
    """What is heard and seen of the GPUs' faults. Events outlive the session in which they came."""

    def __init__(self, *, listen_s: float, deadline_s: float) -> None:
        """The listener waits `listen_s` at a time, and is called stuck `deadline_s` after it should be back."""
        self._listen_s, self._deadline_s = listen_s, deadline_s
        self._changed = threading.Condition()
        self._events: deque[XidEvent] = deque()
        self._watch: Watch | None = None
        self._lost: dict[str, str] = {}  # by UUID: said to be lost when it last gave a clear answer

    def wait(self, timeout_s: float, start: Callable[[], object]) -> XidEvent | None:
        """The next event; None after the timeout, or when NVML is closed meanwhile.

        `start` lets the worker call `start_watch`. Raises NodeError if it cannot, and when the wait itself fails.
        """
        end_s = time.monotonic() + timeout_s
        if not self._events and (self._watch is None or self._watch.ended):
            start()
        with self._changed:
            while not self._events:
                watch, left_s = self._watch, end_s - time.monotonic()
                if watch is None or (watch.ended and watch.failure is None) or left_s <= 0:
                    return None
                problem = watch.failure or watch.stuck()
                if problem is not None:
                    raise NodeError(f"XIDs cannot be waited for: {problem}")
                self._changed.wait(min(left_s, watch.patience_s()))
            return self._events.popleft()

    def start_watch(self, session: Session) -> Watch:
        """Listen to all GPUs of this session, if nobody does. In the worker. Raises NodeError."""
        if self._watch is not None and not self._watch.ended:
            return self._watch
        self.end_watch()
        try:
            watch = Watch(session, self._hear, self._listen_s, self._deadline_s)
        except NvmlCallError as error:
            raise NodeError(f"XIDs cannot be waited for: {error}") from error
        for gpu in session.gpus():
            watch.register(gpu)
        watch.listen()
        self._watch = watch
        return watch

    def end_watch(self) -> None:
        """Stop listening, so that the session can be closed. In the worker. Raises NodeError while that is stuck."""
        if self._watch is not None:
            self._watch.end()
            self._watch = None

    def signs(self, session: Session) -> tuple[GpuSigns, ...]:
        """One look at every GPU of the session whose UUID is known. In the worker."""
        try:
            watch = self.start_watch(session)
        except NodeError:
            watch = None  # whoever waits for XIDs is told; the look goes on without
        signs = tuple(self._look(session, gpu, watch) for gpu in session.known() if gpu.uuid is not None)
        if watch is not None:
            watch.listen()
        return signs

    def _look(self, session: Session, gpu: FoundGpu, watch: Watch | None) -> GpuSigns:
        calls, uuid = session.calls, gpu.uuid or ""
        error, recovery_action = gpu.error, None
        if gpu.handle is not None:
            try:
                calls.memory(gpu.handle)
            except NvmlCallError as failure:
                error = None if failure.optional else failure
        if error is not None:
            session.forget()  # it may be that the driver is gone: the next look finds its GPUs anew, or says why not
        if error is None:
            self._lost.pop(uuid, None)
            recovery_action = None if gpu.handle is None else _recovery_action(calls, gpu.handle)
        elif error.gpu_lost:
            self._lost[uuid] = str(error)
        # Any other error is no clear answer: a GPU that was lost is not back for it, one that was not is not lost.
        if watch is not None:
            watch.register(gpu)
        monitored, problem = (None, None) if watch is None else watch.monitors(uuid)
        return GpuSigns(
            uuid=uuid,
            lost=self._lost.get(uuid),
            monitored=monitored,
            monitored_problem=problem,
            recovery_action=recovery_action,
        )

    def _hear(self, event: XidEvent | None) -> None:
        """An event, or (None) the end of a watch. In the listener. A storm of one XID waits as one event."""
        with self._changed:
            if event is not None and event not in self._events:
                self._events.append(event)
            self._changed.notify_all()


class Watch:
    """An event set of a session, the GPUs registered with it, and the thread that listens to it."""

    def __init__(
        self, session: Session, hear: Callable[[XidEvent | None], None], listen_s: float, deadline_s: float
    ) -> None:
        """With no GPU registered yet, and so not listening. Raises NvmlCallError if the driver gives no event set."""
        self.failure: str | None = None  # why listening ended, unless it was told to
        self._calls, self._listening = session.calls, session.calls.unhurried()
        self._hear, self._listen_s, self._deadline_s = hear, listen_s, deadline_s
        self._set = self._calls.create_event_set()
        self._registered: dict[str, tuple[bool | None, str | None]] = {}  # by UUID: monitored, and the problem
        self._uuids: dict[int, str] = {}  # by the handle's address
        self._told_to_end = threading.Event()
        self._thread = threading.Thread(target=self._listen, name="nvml-events", daemon=True)
        self._begun_s = time.monotonic()  # of the wait in progress

    @property
    def ended(self) -> bool:
        """Whether nothing more will be heard."""
        return self.failure is not None or self._told_to_end.is_set()

    @property
    def _started(self) -> bool:
        return self._thread.ident is not None

    def listen(self) -> None:
        """Begin to listen, if there is a GPU to listen to. What is registered later counts from the next wait on."""
        if not self._started and any(supported for supported, _ in self._registered.values()):
            self._begun_s = time.monotonic()
            self._thread.start()

    def register(self, gpu: FoundGpu) -> None:
        """Hear of this GPU's XIDs, if it can report them. Once; again only after a failure."""
        if gpu.uuid is None or gpu.handle is None or self.monitors(gpu.uuid)[0] is not None:
            return
        try:
            supported = self._calls.reports_xids(gpu.handle)
        except NvmlCallError as error:
            supported = not error.optional or error.code == FUNCTION_NOT_FOUND  # then registering will tell
        try:
            if supported:
                self._calls.register_xids(gpu.handle, self._set)
                self._uuids[address_of(gpu.handle)] = gpu.uuid
            self._registered[gpu.uuid] = (supported, None)
        except NvmlCallError as error:
            if not error.gpu_lost:
                self._registered[gpu.uuid] = (
                    (False, None) if error.optional else (None, f"XIDs cannot be watched: {error}")
                )

    def monitors(self, uuid: str) -> tuple[bool | None, str | None]:
        """Whether this GPU's XIDs are heard: yes, it cannot report any, or not known; and what went wrong if so."""
        return self._registered.get(uuid, (None, None))

    def patience_s(self) -> float:
        """How long until the listener should be back from NVML at the latest."""
        if not self._started:
            return threading.TIMEOUT_MAX
        return max(0.0, self._begun_s + self._listen_s + self._deadline_s - time.monotonic())

    def stuck(self) -> str | None:
        """Why nothing can be heard, always in the same words: the listener hangs in NVML. None: it does not."""
        if self.patience_s() > 0:
            return None
        waited_s = self._listen_s + self._deadline_s
        return f"nvmlEventSetWait_v2 has not returned for more than {waited_s:g} s. The driver hangs"

    def end(self) -> None:
        """Stop listening and free the event set. Raises NodeError while the listener is stuck in NVML."""
        self._told_to_end.set()
        self._hear(None)
        if self._started:
            self._thread.join(min(self._listen_s + JOIN_GRACE_S, self.patience_s()))
        if self._thread.is_alive():
            raise NodeError(f"NVML cannot be closed: {self.stuck() or 'nvmlEventSetWait_v2 does not return'}")
        with contextlib.suppress(NvmlCallError):  # it ends with the session in any case
            self._calls.free_event_set(self._set)

    def _listen(self) -> None:
        empty_waits = 0
        try:
            while not self.ended:
                self._begun_s = time.monotonic()
                event = self._listening.next_event(self._set, int(self._listen_s * 1000))
                if event is not None:
                    self._hear(self._named(event))
                early = event is None and time.monotonic() - self._begun_s < self._listen_s / 2
                empty_waits = empty_waits + 1 if early else 0
                if empty_waits >= MAX_EMPTY_WAITS:
                    self.failure = "nvmlEventSetWait_v2 does not wait: it returns at once without an event"
        except Exception as error:  # noqa: BLE001 - a thread's boundary: whoever waits for XIDs is told
            self.failure = str(error) or repr(error)
        self._hear(None)

    def _named(self, event: RawEvent) -> XidEvent:
        uuid = self._uuids.get(address_of(event.device))
        if uuid is None:
            # Not a handle that was registered: NVML does not promise to use the same one. No name is still an event.
            with contextlib.suppress(NvmlCallError):
                uuid = self._listening.uuid(event.device)
        return XidEvent(
            gpu_uuid=uuid,
            gpu_instance_id=event.gpu_instance_id,
            compute_instance_id=event.compute_instance_id,
            xid=event.xid,
        )


def _recovery_action(calls: Calls, handle: Handle) -> str | None:
    try:
        action = calls.recovery_action(handle)
    except NvmlCallError:
        return None  # an older driver, or a GPU that answers nothing: it does not say
    return _ACTIONS.get(action, f"action {action}")
