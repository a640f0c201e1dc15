"""The interface that every driver's control daemon has (v2): commands on standard input.

As NVIDIA documents it (Multi-Process Service, "Legacy MPS v2 Interface"): one default for each device and one share of
SMs for all clients of a server, counted per client process; defaults are for servers that start later, `set_device_…`
and `set_active_…` for later clients of one that runs; devices are not checked, a limit for one that does not exist is
ignored. `ps` prints PID, ID, SERVER, DEVICE (the beginning of a UUID), NAMESPACE, COMMAND; `terminate_client` prints 0.
What `get_default_device_pinned_mem_limit` prints is not documented: any number that can mean what was set is taken.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from sharer.adapters.mps.control import Control, NoAnswerError
from sharer.core.errors import NodeError
from sharer.core.mps.daemon import Launch, MpsClient

READY = "ACTIVE"
START_S = 3.0  # `start_server` may wait for a server that wakes eight GPUs; we need not
QUIT_S = 3  # then the daemon ends servers that still have clients
_UNITS_MIB = {"G": 1024.0, "M": 1.0, "K": 1 / 1024, "": 1 / 2**20}
_AMOUNT = re.compile(r"(\d+(?:\.\d+)?)\s*([GMK]?)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a daemon said, in either interface."""

    server: str | None = None
    ready: bool = False
    user_id: int | None = None  # of the server's process; None: there is none
    clients: tuple[MpsClient, ...] = ()
    namespaces: tuple[tuple[str, str], ...] = ()  # device ID, directory as we see it
    unlike: str | None = None


class Legacy:
    """Speaks to a daemon in v2."""

    def __init__(self, control: Control, is_alive: Callable[[int], bool]) -> None:
        """`is_alive`: whether a client's process is there."""
        self._control, self._is_alive = control, is_alive
        self._told: object = None  # the limits that this daemon was told

    def forget(self) -> None:
        """Another daemon is spoken to from now on."""
        self._told = None

    def ask(self, gpus: Sequence[str], launch: Launch) -> Answer:
        """How it is. Raises NoAnswerError."""
        servers = self._servers()
        if not servers:
            return Answer(unlike=self._unlike(gpus, launch))
        words = [self._control.say(f"get_server_status {pid}") for pid in servers]
        worst = next((word for word in words if word.upper() != READY), READY)
        return Answer(
            server=worst,
            ready=worst == READY,
            user_id=_owner(servers[0]),
            clients=self._clients(self._control.say("ps"), gpus),
            unlike=self._unlike(gpus, launch),
        )

    def serve(self, gpus: Sequence[str], launch: Launch) -> None:
        """Tell it the limits, read them back, and have a server if there is none. Raises NodeError."""
        wrong = []
        for number, uuid in enumerate(gpus):
            limit_mib = launch.limits_mib.get(uuid)
            if limit_mib is not None:
                self._order(f"set_default_device_pinned_mem_limit {number} {limit_mib}M")
                answer = self._control.say(f"get_default_device_pinned_mem_limit {number}")
                if may_mean(answer, limit_mib) is False:
                    wrong.append(f"device {number} ({uuid}) has the limit {answer!r}, and was given {limit_mib}M")
        if launch.percent is not None:
            self._order(f"set_default_active_thread_percentage {launch.percent}")
            answer = self._control.say("get_default_active_thread_percentage")
            if (found := number_in(answer)) is not None and found != launch.percent:
                wrong.append(f"the share of SMs is {answer!r}, and was given {launch.percent}")
        if wrong:
            raise NodeError("its limits are not those that it was told: " + "; ".join(wrong))
        servers = self._servers()
        for server in servers:
            self._adjust(server, gpus, launch)
        if not servers:
            self._start_server(launch.user_id or 0)
        self._told = _limits(gpus, launch)

    def end_client(self, client: MpsClient) -> bool:
        """Have it end what is left of a client. False: it does not come back. Raises NodeError if it refuses."""
        try:
            answer = self._control.say(f"terminate_client {client.server} {client.pid}", within_s=self._control.long_s)
        except NoAnswerError:
            return False
        if number_in(answer) not in (0, None) or "not" in answer:
            raise NodeError(f"the daemon does not end what is left of process {client.pid}: {answer!r}")
        return True

    def quit(self) -> None:
        """Ask it to end, with its servers. Raises NodeError."""
        self._control.say(f"quit -t {QUIT_S}", within_s=QUIT_S + 2.0)

    def _adjust(self, server: int, gpus: Sequence[str], launch: Launch) -> None:
        for number, uuid in enumerate(gpus):
            if (limit_mib := launch.limits_mib.get(uuid)) is not None:
                self._order(f"set_device_pinned_mem_limit {server} {number} {limit_mib}M")
        if launch.percent is not None:
            self._order(f"set_active_thread_percentage {server} {launch.percent}")

    def _start_server(self, user_id: int) -> None:
        try:
            self._order(f"start_server -uid {user_id}", within_s=START_S)
        except NoAnswerError:
            return  # it goes on in the daemon; the next look sees what became of it

    def _order(self, command: str, within_s: float | None = None) -> None:
        answer = self._control.say(command, within_s=within_s)
        if answer and number_in(answer) is None:  # those that were done print nothing, or the value
            raise NodeError(f"{command!r} was refused: {answer}")

    def _servers(self) -> list[int]:
        answer = self._control.say("get_server_list")
        return [int(word) for word in answer.split() if word.isdigit()]

    def _clients(self, listed: str, gpus: Sequence[str]) -> tuple[MpsClient, ...]:
        """Those in `ps`'s table: a line for each client and device."""
        found: dict[int, tuple[int | None, set[str]]] = {}
        for line in listed.splitlines():
            words = line.split(maxsplit=5)
            if len(words) >= 4 and words[0].isdigit():
                server = int(words[2]) if words[2].isdigit() else None
                on = found.setdefault(int(words[0]), (server, set()))[1]
                on |= {uuid for uuid in gpus if uuid.startswith(words[3])}
        return tuple(
            MpsClient(pid=pid, gpus=tuple(sorted(on)), server=server, alive=self._is_alive(pid))
            for pid, (server, on) in found.items()
        )

    def _unlike(self, gpus: Sequence[str], launch: Launch) -> str | None:
        return None if self._told == _limits(gpus, launch) else "it has not been told these limits yet"


def may_mean(answer: str, limit_mib: int) -> bool | None:
    """Whether an answer can mean so many MiB; None: there is no number in it.

    >>> may_mean("20G", 20480), may_mean("20480M", 20480), may_mean("10G", 20480), may_mean("none set", 20480)
    (True, True, False, None)
    """
    found = _AMOUNT.search(answer.upper())
    return None if found is None else abs(float(found[1]) * _UNITS_MIB[found[2]] - limit_mib) < 1


def number_in(answer: str) -> float | None:
    """The number that an answer is; None: it is none.

    >>> number_in("25.0"), number_in("Invalid command 3")
    (25.0, None)
    """
    words = answer.split()
    try:
        return float(words[0]) if len(words) == 1 else None
    except ValueError:
        return None


def _limits(gpus: Sequence[str], launch: Launch) -> object:
    return tuple(launch.limits_mib.get(uuid) for uuid in gpus), launch.percent


def _owner(pid: int) -> int | None:
    try:
        return os.stat(f"/proc/{pid}").st_uid
    except OSError:
        return None
