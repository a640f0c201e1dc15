"""One resource's life, in one thread: wait for the kubelet, serve, register, notice the end, begin again.

Two habits of the kubelet shape it (kubelet-contract §2.4, §2.7):

* When an *old* ListAndWatch stream ends, the kubelet kills whatever is registered under that name *now*. So a server is
  never registered twice: it is ended, streams first, and a new one on a new file is registered once.
* A starting kubelet deletes every socket before its own appears. So nothing is bound before somebody listens on
  kubelet.sock, and our own file is looked after from then on.

A registration is given up when its stream has ended, or when a better one can be had: the kubelet's socket is another,
ours is gone, the options have changed, somebody else has registered the name. One thread for each resource, so that a
slow Register delays no other.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Sequence
from enum import Enum
from pathlib import Path
from typing import TypeVar

import grpc

from sharer.adapters.kubelet import sockets, wire
from sharer.adapters.kubelet.counters import Tally
from sharer.adapters.kubelet.feed import DeviceFeed
from sharer.adapters.kubelet.repeats import Repeats
from sharer.adapters.kubelet.server import PluginServer
from sharer.adapters.kubelet.sockets import FileIdentity
from sharer.adapters.kubelet.timings import KubeletTimings
from sharer.core.errors import NodeError
from sharer.core.ports.kubelet import ListedDevice, ResourceAnswers, ResourceOptions
from sharer.kubeletapi import deviceplugin_pb2 as api
from sharer.kubeletapi import deviceplugin_pb2_grpc as api_grpc

log = logging.getLogger(__name__)

_Found = TypeVar("_Found")


class End(Enum):
    """Why a registration ended."""

    STOPPED = "it was withdrawn"
    KUBELET_RESTARTED = "the kubelet has restarted"
    SOCKET_GONE = "its socket was deleted"
    OPTIONS_CHANGED = "its options have changed"
    DISPLACED = "another plugin has registered this name since; remove one of the two from this node"
    STREAM_ENDED = "the kubelet stopped reading its list, and still runs"
    KUBELET_GONE = "the kubelet has ended"
    FAILED = "it could not be registered"


_EXPECTED = (End.KUBELET_RESTARTED, End.KUBELET_GONE, End.OPTIONS_CHANGED)


class ServedResource:
    """A resource that is served and kept registered from `start` until `begin_stop`."""

    def __init__(
        self,
        name: str,
        directory: Path,
        *,
        options: ResourceOptions,
        devices: Sequence[ListedDevice],
        answers: ResourceAnswers,
        timings: KubeletTimings,
        tally: Tally,
        others_are_told: Callable[[], bool],
    ) -> None:
        self._name = name
        self._directory = directory
        self._kubelet_socket = directory / sockets.KUBELET_SOCKET
        self._options = options
        self._feed = DeviceFeed(devices, burst_s=timings.burst_s)
        self._answers = answers
        self._timings = timings
        self._tally = tally
        self._others_are_told = others_are_told
        self._repeats = Repeats()
        self._news = threading.Condition()  # notified after anything changes that the thread may be waiting for
        self._stopping = False
        self._accepted: PluginServer | None = None  # the server of the registration that the kubelet has accepted
        self._displaced: PluginServer | None = None  # the kubelet reads its list still, and asks another
        self._thread = threading.Thread(target=self._live, name=f"sharer-{name}", daemon=True)

    def start(self) -> None:
        """Begin to serve."""
        self._thread.start()

    def update(self, options: ResourceOptions, devices: Sequence[ListedDevice], answers: ResourceAnswers) -> None:
        """Offer something else under this name. It is registered again only if the options differ."""
        self._feed.replace(devices)
        self._options, self._answers = options, answers
        self.look()

    def look(self) -> None:
        """Something may have changed: a file, a stream, a wish. Returns at once."""
        with self._news:
            self._news.notify_all()

    @property
    def registered(self) -> bool:
        """Whether the kubelet has accepted this resource and reads its list."""
        server = self._accepted
        return server is not None and server.kubelet_reads is True

    @property
    def is_told(self) -> bool:
        """Whether the kubelet has been sent the present list, or reads none."""
        server = self._accepted
        return server is None or server.readers_are_told()

    def renew(self) -> None:
        """Register again: the kubelet has another plugin in the place of this one. Returns at once."""
        self._displaced = self._accepted
        self.look()

    def begin_stop(self) -> None:
        """End the stream, remove the socket, register no more. Returns at once."""
        self._stopping = True
        self.look()

    def join(self, timeout_s: float) -> bool:
        """Wait for the end that `begin_stop` began. False: it has not come in time."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _live(self) -> None:
        failures = 0
        previous = None
        self._let_others_be_told()
        while (kubelet := self._await_kubelet()) is not None:
            if kubelet != previous:  # a new kubelet knows nothing of what the one before refused
                failures = 0
            previous = kubelet
            try:
                end, held_s = self._serve_once(kubelet)
            except Exception:  # the thread's boundary: reported in full, and tried again
                log.exception("serving %s failed; it is tried again", self._name)
                end, held_s = End.FAILED, 0.0
            if end is End.STOPPED:
                break
            failures = 0 if held_s >= self._timings.settled_s else failures + 1
            if end in (End.STREAM_ENDED, End.KUBELET_GONE, End.DISPLACED, End.FAILED):
                failures = max(failures, 1)
            delay_s = self._timings.retry_delay_s(failures) if failures else self._timings.handover_s
            self._pause(delay_s, kubelet)

    def _let_others_be_told(self) -> None:
        """An ID that moves to this name from another one must not be Healthy under both: two pods could be given it."""
        until_s = time.monotonic() + self._timings.others_told_s
        while not self._others_are_told() and not self._stopping and time.monotonic() < until_s:
            self._wait_for(lambda: self._stopping, self._timings.others_look_s)

    def _await_kubelet(self) -> FileIdentity | None:
        """Wait until somebody listens on kubelet.sock, and return which file that is. None: stop."""
        since_s = time.monotonic()
        while not self._stopping:
            found = self._wait_for(
                lambda: self._stopping or sockets.listening(self._kubelet_socket), self._timings.probe_s
            )
            if isinstance(found, FileIdentity):
                return found
            why = f"nobody listens on {self._kubelet_socket}"
            if time.monotonic() - since_s < self._timings.away_s:
                self._say(logging.INFO, f"{why}; {self._name} is registered as soon as the kubelet does")
            else:
                long = f"{why} for {self._timings.away_s:g} s now, and {self._name} is not registered"
                self._say(logging.WARNING, f"{long}. Does the kubelet run, and is its directory mounted at this path?")
        return None

    def _serve_once(self, kubelet: FileIdentity) -> tuple[End, float]:
        """One registration on a server of its own. Returns why it ended, and how long it was accepted in seconds."""
        server = PluginServer(
            path=self._directory / sockets.new_name(self._name),
            options=self._options,
            feed=self._feed,
            answers=lambda: self._answers,
            tally=self._tally,
            stream_changed=self.look,
        )
        accepted_s = None
        try:
            end = self._register(server, kubelet)
            if end is None:
                accepted_s = time.monotonic()
                self._accepted = server
                self._repeats.forget()
                log.info("registered %s: %d slices, socket %s", self._name, len(self._feed), server.path.name)
                end = self._hold(server, kubelet)
            reason = end.value
        except NodeError as error:
            end, reason = End.FAILED, str(error)
        finally:
            self._accepted = None
            server.end(self._timings.grace_s)
        if end is End.STREAM_ENDED and sockets.listening(self._kubelet_socket) is None:
            end, reason = End.KUBELET_GONE, End.KUBELET_GONE.value
        if end is End.STOPPED:
            log.info("withdrew %s from the kubelet", self._name)
        else:
            self._say(
                logging.INFO if end in _EXPECTED else logging.WARNING, f"registering {self._name} again: {reason}"
            )
        return end, 0.0 if accepted_s is None else time.monotonic() - accepted_s

    def _register(self, server: PluginServer, kubelet: FileIdentity) -> End | None:
        """Serve, see that it serves, register. None: the kubelet has accepted. Raises NodeError."""
        server.start()
        serves = sockets.serves_grpc(server.path, self._timings.own_socket_deadline_s)
        if (end := self._ending(server, kubelet)) is not None:
            return end
        if not serves:
            raise NodeError(f"its own socket {server.path} does not answer")
        request = api.RegisterRequest(
            version=wire.VERSION,
            endpoint=server.path.name,
            resource_name=self._name,
            options=wire.options_message(server.options),
        )
        try:
            with _channel(self._kubelet_socket) as channel:
                register = api_grpc.RegistrationStub(channel).Register
                deadline_s = self._timings.register_deadline_s
                end = self._await_call(register.future(request, timeout=deadline_s), server, kubelet)
        except grpc.RpcError as error:
            self._tally.registration(self._name, error.code().name)
            raise NodeError(f"the kubelet did not accept it ({_described(error)})") from error
        if end is None:
            self._tally.registration(self._name, "OK")
        return end

    def _hold(self, server: PluginServer, kubelet: FileIdentity) -> End:
        """Wait for the end of an accepted registration. Raises NodeError if the kubelet never reads the list."""
        deadline_s = self._timings.first_read_deadline_s
        if not self._wait_for(lambda: server.kubelet_reads or self._ending(server, kubelet), deadline_s):
            raise NodeError(f"the kubelet accepted it, and did not ask for its list within {deadline_s:g} s")
        end = self._wait_for(lambda: self._ending(server, kubelet))
        assert end is not None  # without a deadline there is no other way out
        return end

    def _ending(self, server: PluginServer, kubelet: FileIdentity) -> End | None:
        """Why the registration of this server with this kubelet should end now; None: it stands."""
        if self._stopping:
            return End.STOPPED
        if server.kubelet_reads is False:
            return End.STREAM_ENDED
        if self._is_another(kubelet):
            return End.KUBELET_RESTARTED
        if not os.path.lexists(server.path) and self._kubelet_socket.exists():
            return End.SOCKET_GONE  # while kubelet.sock is gone too, nothing better than the open stream can be had
        if server.options != self._options:
            return End.OPTIONS_CHANGED
        if server is self._displaced:
            return End.DISPLACED
        return None

    def _is_another(self, kubelet: FileIdentity) -> bool:
        """Whether kubelet.sock is there and is not that file any more."""
        return sockets.identify(self._kubelet_socket) not in (None, kubelet)

    def _await_call(self, call: grpc.Future[_Found], server: PluginServer, kubelet: FileIdentity) -> End | None:
        """Wait for a call. None: it succeeded; an End: that came first, and the call is cancelled. Raises RpcError."""
        call.add_done_callback(lambda _: self.look())
        found = self._wait_for(lambda: call.done() or self._ending(server, kubelet))
        if isinstance(found, End):
            call.cancel()
            return found
        call.result()
        return None

    def _pause(self, delay_s: float, kubelet: FileIdentity) -> None:
        """Let this kubelet rest; a new one is asked at once."""
        self._wait_for(lambda: self._stopping or self._is_another(kubelet), delay_s)

    def _wait_for(self, found: Callable[[], _Found], timeout_s: float | None = None) -> _Found:
        """Wait until something is found, looking again at all news. Returns it, or what was found at the deadline."""
        with self._news:
            return self._news.wait_for(found, timeout_s)

    def _say(self, level: int, sentence: str) -> None:
        log.log(self._repeats.level(level, sentence), "%s", sentence)


def _channel(path: Path) -> grpc.Channel:
    """A fresh one for each call. Without a pool of its own it would inherit the back-off of earlier ones (§16.5)."""
    return grpc.insecure_channel(f"unix:{path}", options=(("grpc.use_local_subchannel_pool", 1),))


def _described(error: grpc.RpcError) -> str:
    return f"{error.code().name}: {error.details()}"
