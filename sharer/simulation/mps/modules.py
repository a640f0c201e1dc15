"""The fake daemon's commands of v3 (`module verb`), its TOML configuration, and what it prints."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sharer.simulation.mps.daemon import Daemon, Server

Answer = tuple[int, str]
_NAME = re.compile(r"[a-z0-9_]{1,64}")
_SERVER_KEYS = {"allowed_devices", "pinned_memory_limit", "active_thread_percentage", "client_priority", "uid"}
_LIMIT_KEYS = {"pinned_memory_limit", "active_thread_percentage", "client_priority"}
_TABLES = {
    "server": ("name", "uid", "pid", "status", "pipe-directory", "allowed-devices", "context-ids"),
    "namespace": (
        "name", "server", "server-status", "pinned-memory-limit", "active-thread-percentage", "client-priority",
        "pipe-directory",
    ),
}  # fmt: skip


def obey_module(daemon: Daemon, command: Sequence[str]) -> Answer:
    """Do a command. Returns the front end's exit status, and the text that it prints."""
    words = [word for word in command if not word.startswith("--")]
    flags = dict(word[2:].partition("=")[::2] for word in command if word.startswith("--"))
    match words:
        case ["-q"]:
            for server in list(daemon.servers):
                daemon.end_server(server)
            daemon.ended.set()
            return 0, ""
        case ["server", "create", name]:
            return _create_server(daemon, name, flags)
        case ["server", "set", name]:
            return _set(daemon, name, "default", flags)
        case ["server", "list"]:
            rows = [_server_row(daemon, server) for server in daemon.living_servers()]
            return 0, _table("server", rows, flags)
        case ["namespace", "create", name]:
            return _create_namespace(daemon, name, flags["server"])
        case ["namespace", "set", name]:
            return _set(daemon, flags["server"], name, flags)
        case ["namespace", "delete", name]:
            return _delete_namespace(daemon, name, flags["server"])
        case ["namespace", "list"]:
            servers = [one for one in daemon.living_servers() if one.name == flags.get("server", one.name)]
            rows = [_namespace_row(daemon, one, name) for one in servers for name in one.limits]
            return 0, _table("namespace", rows, flags)
        case ["client", "list"]:
            rows = [
                [str(one.pid), one.server.name, str(one.server.devices.index(gpu)), one.namespace, one.command]
                for one in daemon.clients
                for gpu in one.gpus
                if gpu in one.server.devices
            ]
            return 0, "\n".join(",".join(row) for row in rows)
        case ["client", "terminate", pid]:
            return (0, "") if daemon.end_client(int(pid)) else (1, "no such client")
        case _:
            return 1, f"unknown command: {' '.join(command)}"


def apply(daemon: Daemon, configuration: Mapping[str, Any]) -> None:
    """Do what a start configuration says. Raises ValueError for a key that the real one would not know."""
    if configuration.get("schema_version") != "1.0":
        raise ValueError("schema_version must be 1.0")
    for name, server in configuration["servers"].items():
        spaces = server.pop("namespaces", {})
        if unknown := server.keys() - _SERVER_KEYS:
            raise ValueError(f"unknown keys {sorted(unknown)} of server {name}")
        _create_server(
            daemon, name, {"allowed-devices": server.pop("allowed_devices"), "uid": str(server.pop("uid", 0))}
        )
        _set(daemon, name, "default", {key.replace("_", "-"): value for key, value in server.items()})
        for space, limits in spaces.items():
            if unknown := limits.keys() - _LIMIT_KEYS:
                raise ValueError(f"unknown keys {sorted(unknown)} of namespace {space}")
            _create_namespace(daemon, space, name)
            _set(daemon, name, space, {key.replace("_", "-"): value for key, value in limits.items()})


def _create_server(daemon: Daemon, name: str, flags: Mapping[str, str]) -> Answer:
    uid = int(flags.get("uid") or 0)
    if _NAME.fullmatch(name) is None:
        return 1, f"invalid name {name}"
    if daemon.many_users and uid != 0:
        return 1, "in multiuser mode only --uid=0 is allowed"
    daemon.start_server(name, uid, flags["allowed-devices"].split(","))
    daemon.listen(os.path.join(daemon.pipe, name), name, "default")
    daemon.listen(os.path.join(daemon.pipe, name, "default"), name, "default")
    return 0, ""


def _create_namespace(daemon: Daemon, name: str, server_name: str) -> Answer:
    server = _server(daemon, server_name)
    if server is None or _NAME.fullmatch(name) is None:
        return 1, f"no server {server_name}, or invalid name {name}"
    server.limits.setdefault(name, {})
    daemon.listen(os.path.join(daemon.pipe, server_name, name), server_name, name)
    return 0, ""


def _delete_namespace(daemon: Daemon, name: str, server_name: str) -> Answer:
    server = _server(daemon, server_name)
    if server is None or name not in server.limits:
        return 1, f"no namespace {name}"
    if any(one.server is server and one.namespace == name for one in daemon.clients):
        return 1, "the namespace has active clients"
    del server.limits[name]
    shutil.rmtree(os.path.join(daemon.pipe, server_name, name), ignore_errors=True)
    return 0, ""


def _set(daemon: Daemon, server_name: str, namespace: str, flags: Mapping[str, str]) -> Answer:
    server = _server(daemon, server_name)
    if server is None or namespace not in server.limits:
        return 1, f"no namespace {namespace} of {server_name}"
    server.limits[namespace] |= {key: value for key, value in flags.items() if key.replace("-", "_") in _LIMIT_KEYS}
    return 0, ""


def _server(daemon: Daemon, name: str) -> Server | None:
    return next((server for server in daemon.living_servers() if server.name == name), None)


def _status(daemon: Daemon) -> str:
    return str(daemon.manners["server_status"] or "Ready")


def _server_row(daemon: Daemon, server: Server) -> list[str]:
    directory = os.path.join(daemon.pipe, server.name)
    devices = '"' + ",".join(server.devices) + '"'
    return [server.name, str(server.uid), str(server.pid), _status(daemon), directory, devices, "-"]


def _namespace_row(daemon: Daemon, server: Server, name: str) -> list[str]:
    limits = server.limits[name]
    percent = limits.get("active-thread-percentage")
    return [
        name,
        server.name,
        _status(daemon),
        limits.get("pinned-memory-limit", "-"),
        "-" if percent is None else f"{float(percent):.2f}",
        limits.get("client-priority", "0"),
        os.path.join(daemon.pipe, server.name, name),
    ]


def _table(kind: str, rows: Sequence[Sequence[str]], flags: Mapping[str, str]) -> str:
    lines = [] if "noheader" in flags.get("format", "") else [",".join(_TABLES[kind])]
    return "\n".join([*lines, *(",".join(row) for row in rows)])
