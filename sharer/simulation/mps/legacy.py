"""The fake daemon's commands of v2, and what it prints for each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sharer.simulation.mps.daemon import Daemon, Server

Answer = tuple[int, str]


def obey(daemon: Daemon, command: Sequence[str]) -> Answer:
    """Do a command. Returns the front end's exit status, and the text that it prints."""
    match list(command):
        case ["get_server_list"]:
            return 0, "\n".join(str(server.pid) for server in daemon.living_servers())
        case ["get_server_status", pid]:
            server = _server(daemon, pid)
            return 0, "Server not found" if server is None else str(daemon.manners["server_status"] or "ACTIVE")
        case ["start_server", "-uid", uid]:
            server = daemon.start_server("", int(uid), daemon.devices)
            server.shares = dict(daemon.defaults)
            return 0, ""
        case ["get_client_list", pid]:
            return 0, "\n".join(str(one.pid) for one in daemon.clients if str(one.server.pid) == pid)
        case ["ps"]:
            rows = [
                f"{one.pid} {number} {one.server.pid} {gpu[:22]} 4026531836 {one.command}"
                for number, one in enumerate(daemon.clients)
                for gpu in one.gpus
            ]
            return 0, "\n".join(["PID ID SERVER DEVICE NAMESPACE COMMAND", *rows])
        case ["terminate_client", _, pid]:
            return 0, "0" if daemon.end_client(int(pid)) else "1"
        case ["set_default_device_pinned_mem_limit", device, value]:
            daemon.defaults[f"limit {device}"] = value
            return 0, ""
        case ["get_default_device_pinned_mem_limit", device]:
            return 0, daemon.defaults.get(f"limit {device}", "no limit")
        case ["set_default_active_thread_percentage", percent]:
            daemon.defaults["percent"] = percent
            return 0, f"{float(percent):.1f}"
        case ["get_default_active_thread_percentage"]:
            return 0, f"{float(daemon.defaults.get('percent', '100')):.1f}"
        case ["set_device_pinned_mem_limit", pid, device, value]:
            return _share(daemon, pid, f"limit {device}", value)
        case ["set_active_thread_percentage", pid, percent]:
            return _share(daemon, pid, "percent", percent)
        case ["quit", *_]:
            for server in list(daemon.servers):
                daemon.end_server(server)
            daemon.ended.set()
            return 0, ""
        case _:
            return 0, f"Invalid command: {' '.join(command)}"


def _server(daemon: Daemon, pid: str) -> Server | None:
    return next((server for server in daemon.living_servers() if str(server.pid) == pid), None)


def _share(daemon: Daemon, pid: str, subject: str, value: str) -> Answer:
    server = _server(daemon, pid)
    if server is None:
        return 0, "Server not found"
    server.shares[subject] = value
    return 0, ""
