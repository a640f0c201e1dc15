"""ControlDaemon: one daemon, whichever interface it has and whoever started it."""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Callable
from pathlib import Path

from sharer.adapters.mps import directories, logs, process
from sharer.adapters.mps.control import ANSWER_S, Control, Executable, NoAnswerError, environment_for
from sharer.adapters.mps.legacy import Answer, Legacy
from sharer.adapters.mps.namespaces import SERVER, Namespaces
from sharer.core.errors import NodeError
from sharer.core.mps.daemon import Abilities, Launch, LogSigns, Look, MpsClient
from sharer.core.mps.state import MpsInterface, folder_name

STOP_S = 5.0
OUTPUT = "output.log"  # what the daemon prints before it has a log
_MANY_USERS = re.compile(r"--?multi-?user(?:-server)?\b")


class ControlDaemon:
    """Implements core.mps.daemon.MpsDaemon."""

    def __init__(
        self,
        mps_dir: Path,
        resource: str,
        executable: Executable,
        *,
        on_host: Callable[[Path], str] = str,
        is_alive: Callable[[int], bool] = process.is_alive,
        answer_s: float = ANSWER_S,
    ) -> None:
        """`on_host`: how the host calls a path that we see. `is_alive`: whether a client's process is there."""
        self._folder = mps_dir / folder_name(resource)
        self._pipe, self._log = self._folder / "pipe", self._folder / "log"
        self._executable, self._on_host, self._is_alive = executable, on_host, is_alive
        self._control = Control(executable, self._pipe, self._log, answer_s=answer_s)
        self._legacy = Legacy(self._control, is_alive)
        self._namespaces = Namespaces(self._control, self._folder, self._pipe, is_alive)
        self._logs = logs.LogReader(  # the servers' first: they say why, the daemon only that one is gone
            [self._log / name for name in (OUTPUT, "server.log", f"{SERVER}/server.log", "control.log")]
        )
        self._found: process.Found | None = None
        self._last_pid: int | None = None  # of the last daemon, which may have left servers
        self._first_error: str | None = None
        self._fatal: str | None = None
        self._knocked: set[int] = set()  # clients that asked to be let in, and were not as far as is known
        self._flags: dict[MpsInterface, str | None] = {}  # the option for many users
        self._abilities: tuple[object, Abilities] | None = None  # of which executable

    def abilities(self) -> Abilities:
        """What the executable can do; asked once for each version of it. Raises NodeError if it cannot be run."""
        mark = _mark(self._executable.find())
        if self._abilities is None or self._abilities[0] != mark:
            of_v2, of_v3 = self._control.help(), self._control.help("-p", "3")
            has_v3 = "namespace" in of_v3 and "server" in of_v3
            self._flags = {MpsInterface.LEGACY: _option(of_v2), MpsInterface.NAMESPACES: _option(of_v3)}
            reason = None if has_v3 else "this driver has no MPS v3, which came with r615"
            used = tuple(MpsInterface) if has_v3 else (MpsInterface.LEGACY,)
            many_users = all(self._flags[interface] is not None for interface in used)
            self._abilities = mark, Abilities(namespaces=has_v3, no_namespaces_reason=reason, many_users=many_users)
        return self._abilities[1]

    def look(self, launch: Launch) -> Look:
        """How it is now. Raises NodeError if its directories cannot be used."""
        directories.make(self._folder, owner=launch.user_id)
        found = self._process()
        self._read_logs()
        if found is None:
            return Look(running=False, signs=LogSigns(first_error=self._first_error))
        interface = _interface(found)
        many = any(_MANY_USERS.fullmatch(word) for word in found.arguments)
        try:
            answer = self._ask(interface, found, launch)
        except NodeError as error:
            return Look(running=True, silence=str(error), interface=interface, gpus=found.gpus, signs=self._signs(()))
        served = launch.user_id if answer.user_id is None else answer.user_id
        return Look(
            running=True,
            interface=interface,
            gpus=found.gpus,
            user_id=None if many else served,
            server=answer.server,
            ready=answer.ready,
            clients=answer.clients,
            namespaces={device_id: self._on_host(Path(path)) for device_id, path in answer.namespaces},
            unlike=answer.unlike,
            signs=self._signs(answer.clients),
        )

    def start(self, launch: Launch, interface: MpsInterface, *, many_users: bool) -> None:
        """Start its process. Raises NodeError."""
        pipe, log = directories.make(self._folder, owner=launch.user_id)
        for pid in {self._last_pid, process.from_pid_file(pipe)}:
            if pid is not None:
                process.end_servers(pid)
        try:
            directories.clear(pipe)
        except OSError as error:
            raise NodeError(f"{pipe} cannot be cleared: {error.strerror}") from error
        arguments = ["-f"]
        if interface is MpsInterface.NAMESPACES:
            arguments += ["-p", "3", "-a", str(self._namespaces.configure(launch))]
        if many_users and (flag := self._flags.get(interface)) is not None:
            arguments.append(flag)
        self._logs.skip()
        self._first_error, self._fatal, self._knocked = None, None, set()
        self._legacy.forget()
        environment = environment_for(pipe, log, launch.gpus)
        self._found = process.spawn(self._executable.find(), arguments, environment, log / OUTPUT)
        self._last_pid = self._found.pid

    def serve(self, launch: Launch) -> None:
        """Have the running daemon serve this. Raises NodeError."""
        found = self._running()
        self._first_error = None
        if _interface(found) is MpsInterface.NAMESPACES:
            self._namespaces.serve(launch)
        else:
            self._legacy.serve(found.gpus, launch)

    def end_client(self, client: MpsClient) -> bool:
        """Have it end what is left of a client. False: it does not come back from that. Raises NodeError."""
        return self._speaker(self._running()).end_client(client)

    def stop(self, *, at_once: bool = False) -> None:
        """End it, its servers and so its clients. Raises NodeError if it stays."""
        found = self._process()
        if found is None:
            return
        if not at_once:
            try:
                self._speaker(found).quit()
            except NodeError:  # it does not listen, so it is not waited for
                at_once = True
        if at_once or not process.wait_end(found, STOP_S):
            process.kill(found)
        process.end_servers(found.pid)
        self._found = None

    def _ask(self, interface: MpsInterface, found: process.Found, launch: Launch) -> Answer:
        if interface is MpsInterface.NAMESPACES:
            return self._namespaces.ask(found.gpus, launch)
        return self._legacy.ask(found.gpus, launch)

    def _speaker(self, found: process.Found) -> Legacy | Namespaces:
        return self._namespaces if _interface(found) is MpsInterface.NAMESPACES else self._legacy

    def _running(self) -> process.Found:
        found = self._process()
        if found is None:
            raise NoAnswerError("the MPS control daemon has ended")
        return found

    def _process(self) -> process.Found | None:
        """The daemon's process: the one we know, or one that an earlier supervisor left."""
        if self._found is not None and not process.lives(self._found):
            self._found = None
        if self._found is None and (pid := process.from_pid_file(self._pipe)) is not None:
            self._found = process.find(pid, self._pipe)
            if self._found is not None:
                self._last_pid = self._found.pid
                self._logs.skip()
                self._legacy.forget()
        return self._found

    def _read_logs(self) -> None:
        lines = self._logs.lines()
        self._first_error = self._first_error or logs.first_error(lines)
        self._fatal = logs.fatal(lines)
        self._knocked = self._knocked.union(logs.newcomers(lines)) - set(logs.let_in(lines))

    def _signs(self, clients: tuple[MpsClient, ...]) -> LogSigns:
        self._knocked = {pid for pid in self._knocked if self._is_alive(pid)} - {one.pid for one in clients}
        return LogSigns(first_error=self._first_error, fatal=self._fatal, newcomers=tuple(sorted(self._knocked)))


def _interface(found: process.Found) -> MpsInterface:
    words = found.arguments
    v3 = any(pair in (("-p", "3"), ("--protocol", "3")) for pair in itertools.pairwise(words))
    return MpsInterface.NAMESPACES if v3 or "--protocol=3" in words else MpsInterface.LEGACY


def _option(text: str) -> str | None:
    """How an executable's help calls the mode in which users share a server; None: it has none."""
    found = _MANY_USERS.search(text)
    return None if found is None else found[0]


def _mark(executable: Path) -> object:
    status = os.stat(executable)
    return executable, status.st_ino, status.st_mtime_ns
