"""MPS v3, from driver r615 on: named servers, and a namespace for each slice with a share of its own.

Known, from NVIDIA's documentation ("MPS v3 Interface", "Namespaces", "Configuration File") and from measurements that
others published on driver 615: commands are `module verb` arguments; names are of a-z, 0-9 and _, at most 64; a server
and a namespace each have a directory with a `control` socket below the pipe directory, and a client belongs to the
namespace whose directory it is given; a server's limits are those of its `default` namespace only, and a namespace
without limits has the whole GPU; amounts are binary, `5G`; a GPU in `allowed_devices` that does not exist is accepted,
and the server is gone a moment later; the TOML file is applied once, at the start; in multi-user mode a server's `uid`
must be 0.

Assumed, and to be tried on hardware: `--format=csv` prints the columns' names in its first line, spelt as in the
documentation's lists or in the tables, and `-` for what is not set; a server that serves is `Ready`; `namespace set`
takes effect for later clients; the directory of a namespace stays as long as the namespace.
"""

from __future__ import annotations

import csv
import io
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import tomli_w

from sharer.adapters.mps.control import Control, NoAnswerError
from sharer.adapters.mps.directories import MAX_SOCKET_PATH_BYTES, widen
from sharer.adapters.mps.files import write_whole
from sharer.adapters.mps.legacy import Answer, may_mean, number_in
from sharer.core.device_id import uuid_part
from sharer.core.errors import NodeError
from sharer.core.mps.daemon import Launch, MpsClient, MpsShare

SERVER = "slices"  # the one of each daemon
DEFAULT = "default"  # the namespace that every server has, and that no container is given
READY = "ready"
CONFIGURATION = "start.toml"
QUIT_S = 5.0


class Namespaces:
    """Speaks to a daemon in v3."""

    def __init__(self, control: Control, folder: Path, pipe: Path, is_alive: Callable[[int], bool]) -> None:
        """`folder` is the daemon's; its start configuration is written there."""
        self._control, self._folder, self._pipe, self._is_alive = control, folder, pipe, is_alive

    def configure(self, launch: Launch) -> Path:
        """Write what a daemon is to be started with. Raises NodeError."""
        longest = max((name for name, _ in launch.namespaces.values()), key=len, default="")
        socket = self._pipe / SERVER / longest / "control"
        if len(bytes(socket)) > MAX_SOCKET_PATH_BYTES:
            raise NodeError(f"{socket} is too long for a socket's path; MPS v3 needs a shorter --mps-dir")
        path = self._folder / CONFIGURATION
        try:
            write_whole(path, tomli_w.dumps(configuration(launch)).encode())
        except OSError as error:
            raise NodeError(f"{path} cannot be written: {error.strerror}") from error
        return path

    def ask(self, gpus: Sequence[str], launch: Launch) -> Answer:
        """How it is. Raises NoAnswerError, or NodeError for an answer that is none."""
        servers = {row.get("name"): row for row in self._table("server", "list")}
        server = servers.get(SERVER)
        if server is None:
            return Answer()
        found = {row.get("name", ""): row for row in self._table("namespace", "list", f"--server={SERVER}")}
        devices = {name: device_id for device_id, (name, _) in launch.namespaces.items()}
        clients = self._control.tell("client", "list", f"--server={SERVER}", "--format=csv,noheader")
        word = server.get("status") or "without a status"
        uid = server.get("uid", "")
        return Answer(
            server=word,
            ready=word.lower() == READY,
            user_id=int(uid) if uid.isdigit() else None,
            clients=tuple(self._clients(clients, devices)),
            namespaces=tuple(self._directories(found, launch)),
            unlike=_unlike(found, launch),
        )

    def serve(self, launch: Launch) -> None:
        """Have the server, and the namespaces that are wanted with their shares; take away others. Raises NodeError."""
        if SERVER not in {row.get("name") for row in self._table("server", "list")}:
            self._control.tell(
                "server", "create", SERVER, f"--allowed-devices={','.join(launch.gpus)}", f"--uid={launch.user_id or 0}"
            )
            if limits := _flags(_smallest(launch)):
                self._control.tell("server", "set", SERVER, *limits)
        found = {row.get("name", ""): row for row in self._table("namespace", "list", f"--server={SERVER}")}
        wanted = dict(launch.namespaces.values())
        for name, share in wanted.items():
            if name not in found:
                self._control.tell("namespace", "create", name, f"--server={SERVER}")
            if (name not in found or _difference(found[name], share)) and (limits := _flags(share)):
                self._control.tell("namespace", "set", name, f"--server={SERVER}", *limits)
        for name in found.keys() - wanted.keys() - {DEFAULT}:
            self._delete(name)

    def end_client(self, client: MpsClient) -> bool:
        """Have it end what is left of a client. False: it does not come back. Raises NodeError if it refuses."""
        try:
            self._control.tell("client", "terminate", str(client.pid), within_s=self._control.long_s)
        except NoAnswerError:
            return False
        return True

    def quit(self) -> None:
        """Ask it to end, with its servers. Raises NodeError."""
        self._control.tell("-q", within_s=QUIT_S)

    def _delete(self, name: str) -> None:
        """Without --force a namespace with clients stays, and is tried again when something else changes."""
        try:
            self._control.tell("namespace", "delete", name, f"--server={SERVER}")
        except NoAnswerError:
            raise
        except NodeError:
            return  # it has clients

    def _directories(self, found: Mapping[str, Mapping[str, str]], launch: Launch) -> Iterator[tuple[str, str]]:
        """The directories of slices whose namespaces are as they must be, and can be entered and connected to."""
        for device_id, (name, share) in launch.namespaces.items():
            if name not in found or _difference(found[name], share) is not None:
                continue
            directory = Path(found[name].get("pipe-directory") or self._pipe / SERVER / name)
            if not directory.is_relative_to(self._pipe) or not _has_socket(directory):
                continue
            widen(directory)
            yield device_id, str(directory)

    def _clients(self, listed: str, devices: Mapping[str, str]) -> Iterator[MpsClient]:
        """PID, server, device, namespace, command; a line for each client and device."""
        gpus: dict[int, set[str]] = {}
        for row in csv.reader(io.StringIO(listed)):
            if len(row) >= 4 and row[0].strip().isdigit():
                device_id = devices.get(row[3].strip())
                gpus.setdefault(int(row[0]), set()).update(() if device_id is None else {uuid_part(device_id)})
        for pid, found in gpus.items():
            yield MpsClient(pid=pid, gpus=tuple(sorted(found)), server=None, alive=self._is_alive(pid))

    def _table(self, *arguments: str) -> list[dict[str, str]]:
        """The rows of a list, by the columns' names in lower case with dashes."""
        rows = [row for row in csv.reader(io.StringIO(self._control.tell(*arguments, "--format=csv"))) if row]
        if not rows:
            return []
        names = [name.strip().lower().replace(" ", "-") for name in rows[0]]
        if "name" not in names:
            raise NodeError(f"{' '.join(arguments)!r} answered {','.join(rows[0])!r}, and not a table with names")
        return [dict(zip(names, (cell.strip() for cell in row), strict=False)) for row in rows[1:]]


def configuration(launch: Launch) -> dict[str, object]:
    """The start configuration as the tables of its TOML file."""
    server: dict[str, object] = {"allowed_devices": ",".join(launch.gpus), "uid": launch.user_id or 0}
    server |= _keys(_smallest(launch))
    server["namespaces"] = {name: _keys(share) for name, share in launch.namespaces.values()}
    return {"schema_version": "1.0", "servers": {SERVER: server}}


def _smallest(launch: Launch) -> MpsShare:
    """For the namespace that nobody is given: whoever gets there all the same has no more than the least slice."""
    shares = [share for _, share in launch.namespaces.values()]
    return MpsShare(
        limit_mib=min((share.limit_mib for share in shares if share.limit_mib is not None), default=None),
        percent=min((share.percent for share in shares if share.percent is not None), default=None),
    )


def _keys(share: MpsShare) -> dict[str, object]:
    keys: dict[str, object] = {}
    if share.limit_mib is not None:
        keys["pinned_memory_limit"] = f"{share.limit_mib}M"
    if share.percent is not None:
        keys["active_thread_percentage"] = str(share.percent)
    return keys


def _flags(share: MpsShare) -> list[str]:
    return [f"--{key.replace('_', '-')}={value}" for key, value in _keys(share).items()]


def _unlike(found: Mapping[str, Mapping[str, str]], launch: Launch) -> str | None:
    for device_id, (name, share) in launch.namespaces.items():
        if name not in found:
            return f"there is no namespace {name} for the slice {device_id}"
        if (difference := _difference(found[name], share)) is not None:
            return f"the namespace {name} of the slice {device_id} {difference}"
    return None


def _difference(row: Mapping[str, str], share: MpsShare) -> str | None:
    """What a namespace's row says that is not its share; None: nothing."""
    limit, percent = row.get("pinned-memory-limit", ""), row.get("active-thread-percentage", "")
    if share.limit_mib is not None and may_mean(limit, share.limit_mib) is not True:
        return f"has the memory limit {limit or '-'}, not {share.limit_mib}M"
    if share.percent is not None and number_in(percent.rstrip("%")) != share.percent:
        return f"has {percent or '-'} % of the SMs, not {share.percent}"
    return None


def _has_socket(directory: Path) -> bool:
    try:
        return stat.S_ISDIR(directory.lstat().st_mode) and stat.S_ISSOCK((directory / "control").lstat().st_mode)
    except OSError:
        return False
