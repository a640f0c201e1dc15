"""What the fake control executable refuses, so that whoever speaks to it wrongly is found out."""

from __future__ import annotations

import contextlib
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from sharer.adapters.mps.control import environment_for
from sharer.simulation.mps.steering import FakeMps

UUID = "GPU-a"


class Daemon:
    """A daemon of the fake, and its front end."""

    def __init__(self, root: Path, *options: str, **manners: object) -> None:
        self.fake = FakeMps(root / "fake", **manners)
        for folder in ("pipe", "log"):
            (root / folder).mkdir()
        self.environment = dict(environment_for(root / "pipe", root / "log", [UUID]))
        self.process = subprocess.Popen([self.fake.executable, "-f", *options], env=self.environment)
        for _ in range(1500):
            if (root / "pipe/nvidia-cuda-mps-control.pid").exists():
                return
            threading.Event().wait(0.02)
        raise AssertionError("the fake daemon does not start")

    def ask(self, *arguments: str, commands: str = "") -> tuple[int, str]:
        """Exit status and output."""
        done = subprocess.run(
            [self.fake.executable, *arguments], input=commands, capture_output=True, text=True, check=False,
            env=self.environment,
        )  # fmt: skip
        return done.returncode, done.stdout.strip()

    def close(self) -> None:
        self.process.kill()
        self.process.wait()


@pytest.fixture
def root() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="s-", dir="/tmp") as folder:
        yield Path(folder)


def test_v2_answers_several_commands_in_their_order_and_says_what_it_does_not_know(root: Path) -> None:
    with contextlib.closing(Daemon(root)) as daemon:
        status, text = daemon.ask(commands="start_server -uid 0\nget_server_list\nfrobnicate\n")
        pid, unknown = text.splitlines()
        assert (status, unknown) == (0, "Invalid command: frobnicate")
        assert daemon.ask(commands=f"get_server_status {pid}") == (0, "ACTIVE")


def test_v3_refuses_names_users_and_commands_that_the_real_one_would(root: Path) -> None:
    with contextlib.closing(Daemon(root, "-p", "3", "--multiuser")) as daemon:
        of = f"--allowed-devices={UUID}"
        assert daemon.ask("server", "create", "Upper", of)[0] == 1
        assert daemon.ask("server", "create", "x", of, "--uid=1000") == (1, "in multiuser mode only --uid=0 is allowed")
        assert daemon.ask("server", "create", "x", of, "--uid=0")[0] == 0
        assert daemon.ask("namespace", "create", "a-b", "--server=x")[0] == 1
        assert daemon.ask("namespace", "create", "a_b", "--server=x")[0] == 0
        assert daemon.ask("namespace", "frobnicate")[0] == 1
        status, text = daemon.ask("namespace", "list", "--server=x", "--format=csv,noheader")
        assert status == 0
        assert [line.split(",")[0] for line in text.splitlines()] == ["default", "a_b"]


def test_without_a_daemon_the_front_end_says_so_with_its_status(root: Path) -> None:
    daemon = Daemon(root)
    daemon.close()
    assert daemon.ask(commands="ps") == (1, "Cannot find MPS control daemon process")


def test_an_old_driver_knows_no_v3(root: Path) -> None:
    with contextlib.closing(Daemon(root, protocols=[2], many_users=False)) as daemon:
        status, text = daemon.ask("-p", "3", "-h")
        assert (status, "namespace" in text) == (1, False)
        assert "multiuser" not in daemon.ask("-h")[1]


def test_a_start_configuration_with_a_key_that_it_does_not_know_is_refused(root: Path) -> None:
    configuration = root / "start.toml"
    configuration.write_text('schema_version = "1.0"\n[servers.x]\nallowed_devices = "GPU-a"\nlimit = "1G"\n')
    with contextlib.closing(Daemon(root)) as daemon:
        status, _ = daemon.ask("-f", "-p", "3", "-a", str(configuration))
    assert status != 0
