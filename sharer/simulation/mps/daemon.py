"""The fake daemon: its sockets, its servers (real processes) and the clients that stay connected to it."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import struct
import subprocess
import threading
import time
import tomllib
from collections.abc import Sequence

from sharer.simulation.mps.manners import COMMANDS, SERVERS, STARTS, read_manners

NO_DEVICE = "no CUDA-capable device is detected"
GONE_AFTER_S = 0.3  # a server that cannot use a GPU is there for so long
POLL_S = 0.02


class Server:
    """A server of the daemon, and the process that stands for it."""

    def __init__(self, name: str, uid: int, devices: Sequence[str], process: subprocess.Popen[bytes]) -> None:
        self.name, self.uid, self.devices, self.process = name, uid, tuple(devices), process
        self.limits: dict[str, dict[str, str]] = {"default": {}}  # v3: by namespace
        self.shares: dict[str, str] = {}  # v2: by the command's subject

    @property
    def pid(self) -> int:
        """Its process."""
        return self.process.pid


class Client:
    """A process that was let in."""

    def __init__(self, pid: int, gpus: Sequence[str], server: Server, namespace: str, command: str) -> None:
        self.pid, self.gpus, self.server = pid, tuple(gpus), server
        self.namespace, self.command = namespace, command
        self.listed = True


class Daemon:
    """Everything that it knows. One lock around each step."""

    def __init__(self, folder: str, version: int, options: Sequence[str]) -> None:
        self.folder, self.version = folder, version
        self.pipe, self.log_dir = os.environ["CUDA_MPS_PIPE_DIRECTORY"], os.environ["CUDA_MPS_LOG_DIRECTORY"]
        self.devices = [one for one in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if one]
        self.many_users = any(word in options for word in ("--multiuser-server", "--multiuser", "-m", "-M"))
        self.lock = threading.RLock()
        self.defaults: dict[str, str] = {}
        self.servers: list[Server] = []
        self.clients: list[Client] = []
        self.connections: list[socket.socket] = []
        self.losing: list[Server] = []
        self.failures = self.manners["failures"]
        self.ended = threading.Event()

    @property
    def manners(self) -> dict[str, object]:
        """How it has to behave now."""
        return read_manners(self.folder)

    def log(self, text: str, file: str = "control.log") -> None:
        """A line in a log, as the real one writes it."""
        path = os.path.join(self.log_dir, file)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "a", encoding="utf-8") as out:
            out.write(f"[{time.strftime('%Y-%m-%d %H:%M:%S')}.000 Control {os.getpid()}] {text}\n")

    def listen(self, directory: str, server: str | None, namespace: str) -> None:
        """Take connections in a directory. `server`: None for the daemon's own socket."""
        os.makedirs(directory, mode=0o755, exist_ok=True)
        path = os.path.join(directory, "control")
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(path)
        os.chmod(path, 0o666)
        listener.listen(64)

        def accept() -> None:
            while True:
                connection, _ = listener.accept()
                threading.Thread(target=self._talk, args=(connection, server, namespace), daemon=True).start()

        threading.Thread(target=accept, daemon=True).start()

    def start_server(self, name: str, uid: int, devices: Sequence[str]) -> Server:
        """Have a server. One that is to use a GPU that does not exist is gone a moment later."""
        self.log(f"Starting new server for user {uid}")
        program = ["sleep", "60"] if self.manners["servers_stay"] else ["cat"]  # which ends with its input, with us
        process = subprocess.Popen(
            ["nvidia-cuda-mps-server", *program[1:]],
            executable=shutil.which(program[0]),
            stdin=subprocess.PIPE,
            user=uid if os.geteuid() == 0 and uid else None,
        )
        server = Server(name, uid, devices, process)
        with self.lock:
            self.servers.append(server)
        known, losing = self.manners["gpus"], self.manners["losing"]
        if isinstance(known, list) and set(devices) - set(known):
            if losing:
                self.losing.append(server)
            else:
                threading.Timer(GONE_AFTER_S, self._lose, (server, NO_DEVICE)).start()
        elif self._is_busy(server):
            threading.Timer(GONE_AFTER_S, self._lose, (server, "all CUDA-capable devices are busy")).start()
        else:
            self.log(f"NEW SERVER {server.pid}: Ready")
        return server

    def end_server(self, server: Server) -> None:
        """End a server and forget its clients."""
        with self.lock:
            if server in self.servers:
                self.servers.remove(server)
            self.clients = [client for client in self.clients if client.server is not server]
        server.process.kill()
        server.process.wait()

    def living_servers(self) -> list[Server]:
        """The servers whose processes have not ended."""
        for server in [one for one in self.servers if one.process.poll() is not None]:
            self.log(f"Server {server.pid} exited with status {server.process.returncode}")
            self.end_server(server)
        return self.servers

    def end_client(self, pid: int) -> bool:
        """Forget a client, unless it lingers for ever."""
        with self.lock:
            found = [client for client in self.clients if client.pid == pid]
            if self.manners["linger"] != "for ever":
                self.clients = [client for client in self.clients if client.pid != pid]
        return bool(found)

    def _is_busy(self, server: Server) -> bool:
        """Whether a server of another daemon has one of the GPUs, as it has in exclusive compute mode."""
        path = os.path.join(self.folder, SERVERS)
        with open(path, "a+", encoding="utf-8") as file:
            file.write(f"{server.pid} {','.join(server.devices)}\n")
            file.flush()
            file.seek(0)
            known = [line.split() for line in file]
        mine = {str(one.pid) for one in self.servers}
        return any(
            pid not in mine and {*devices.split(",")} & {*server.devices} and _runs(pid) for pid, devices in known
        )

    def _lose(self, server: Server, error: str) -> None:
        self.log(f"Failed to start : {error}", "server.log")
        self.end_server(server)
        self.log(f"Server {server.pid} exited with status 1")

    def _talk(self, connection: socket.socket, server: str | None, namespace: str) -> None:
        with connection, contextlib.suppress(OSError):
            kind, *words = connection.makefile("rb").readline().decode().rstrip("\n").split("\t")
            if kind == "client":
                self._serve_client(connection, words, server, namespace)
            else:
                status, text = self._answer([words] if kind == "arguments" else [one.split() for one in words])
                connection.sendall(f"{status}\n{text}".encode())
                if self.ended.is_set():
                    os._exit(0)

    def _answer(self, commands: Sequence[Sequence[str]]) -> tuple[int, str]:
        from sharer.simulation.mps.legacy import obey
        from sharer.simulation.mps.modules import obey_module

        texts, status = [], 0
        for command in commands:
            with open(os.path.join(self.folder, COMMANDS), "a", encoding="utf-8") as out:
                out.write(" ".join(command) + "\n")
            while self._hangs(command):
                time.sleep(POLL_S)
            self._fail_clients()
            if self.losing and " ".join(command).startswith(str(self.manners["losing"])):
                self._lose(self.losing.pop(), NO_DEVICE)
            with self.lock:
                status, text = (obey_module if self.version == 3 else obey)(self, command)
            texts.append(text)
        return status, "".join(text + "\n" for text in texts if text)

    def _hangs(self, command: Sequence[str]) -> bool:
        manners = self.manners
        named = manners["hangs_on"]
        assert isinstance(named, list)
        hang = str(manners["hang"])
        return (hang != "" and hang in self.pipe) or " ".join(command).startswith(tuple(named))

    def _fail_clients(self) -> None:
        failures = self.manners["failures"]
        if failures != self.failures:
            self.failures = failures
            self.log("Server encountered a fatal exception. Shutting down clients")
            for connection in list(self.connections):
                with contextlib.suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)

    def _serve_client(
        self, connection: socket.socket, hello: Sequence[str], server_name: str | None, namespace: str
    ) -> None:
        _, uid, _ = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
        pid, gpus, program = int(hello[0]), hello[1].split(","), hello[2]
        manners = self.manners
        self.log(f"NEW CLIENT {pid} from user {uid}: Server already exists")
        refused = manners["refused_users"]
        assert isinstance(refused, list)
        with self.lock:
            servers = [one for one in self.living_servers() if server_name in (None, one.name)]
            fits = [one for one in servers if self.many_users or one.uid == uid]
            if uid in refused or (servers and not fits):
                self.log(f"User {uid} is not permitted")
                connection.sendall(b"CUDA_ERROR_NOT_PERMITTED\n")
                return
            if manners["wedged"]:
                fits = []
            elif not servers:
                fits = [self.start_server("", 0 if self.many_users else uid, self.devices)]
            if fits:
                client = Client(pid, gpus, fits[0], namespace, program)
                self.clients.append(client)
                self.connections.append(connection)
        if not fits:
            connection.recv(1)  # it waits for ever
            return
        self.log(f"Client {{PID: {pid}, Context ID: 0}} connected", "server.log")
        connection.sendall(b"OK\n")
        with contextlib.suppress(OSError):
            connection.recv(1)
        self.connections.remove(connection)
        if self.manners["linger"] == "no":
            self.end_client(pid)


def _runs(pid: str) -> bool:
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def serve(folder: str, version: int, options: Sequence[str]) -> int:
    """Be the daemon until it is told to quit. Returns the exit status."""
    daemon = Daemon(folder, version, options)
    with open(os.path.join(folder, STARTS), "a+", encoding="utf-8") as out:
        out.write(f"-p {version} {' '.join(options)} CUDA_VISIBLE_DEVICES={','.join(daemon.devices)}\n")
        out.flush()
        out.seek(0)
        count = len(out.readlines())
    crashes = daemon.manners["crashes"]
    assert isinstance(crashes, int)
    if count <= crashes or (version == 3 and daemon.manners["v3_breaks"]):
        daemon.log("Failed to start : out of memory")
        return 1
    daemon.log(f"Starting control daemon using socket {daemon.pipe}/control")
    daemon.listen(daemon.pipe, None, "default")
    if "-a" in options:
        from sharer.simulation.mps.modules import apply

        with open(options[options.index("-a") + 1], "rb") as file:
            apply(daemon, tomllib.load(file))
    pid_file = os.path.join(daemon.pipe, "nvidia-cuda-mps-control.pid")
    with open(pid_file, "w", encoding="utf-8") as out:
        out.write(f"{os.getpid()}\n")
    mode = daemon.manners["pipe_mode"]
    if isinstance(mode, int):
        os.chmod(daemon.pipe, mode)
    daemon.ended.wait()
    time.sleep(GONE_AFTER_S)  # the answer to `quit` goes out first
    return 0
