"""The supervisor's own thread, with daemons that are only objects."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from sharer.adapters.mps import MpsStateFiles
from sharer.adapters.mps.modes import ModeFile
from sharer.core.errors import NodeError
from sharer.core.mps.compute_modes import EXCLUSIVE_PROCESS
from sharer.core.mps.daemon import Abilities, Launch, Look, MpsClient
from sharer.core.mps.state import MpsInterface, MpsState, MpsWanted, folder_name
from sharer.flows.supervise.compute_modes import ModeKeeper
from sharer.flows.supervise.supervisor import Supervisor

GPU, OTHER = "nvidia.com/gpu.mps", "nvidia.com/gpu.other"
WANTED = {GPU: MpsWanted(resource=GPU, slices={"GPU-a": ("GPU-a::mps-0",)}, limits_memory=True)}
PATIENCE_S = 30.0


class Daemon:
    """Serves as soon as it is started."""

    def __init__(self, changed: threading.Condition) -> None:
        self.changed = changed
        self.now = Look(running=False)
        self.calls: list[str] = []
        self.fault: BaseException | None = None
        self.answers = threading.Event()
        self.answers.set()

    def abilities(self) -> Abilities:
        return Abilities(namespaces=False, no_namespaces_reason="too old", many_users=True)

    def look(self, launch: Launch) -> Look:
        self.note("look")
        self.answers.wait()
        if self.fault is not None:
            raise self.fault
        return self.now

    def start(self, launch: Launch, interface: MpsInterface, *, many_users: bool) -> None:
        self.now = Look(running=True, interface=interface, gpus=launch.gpus, server="ACTIVE", ready=True, clients=())
        self.note("start")

    def serve(self, launch: Launch) -> None:
        self.note("serve")

    def end_client(self, client: MpsClient) -> bool:
        return True

    def stop(self, *, at_once: bool = False) -> None:
        self.note("stop")
        if isinstance(self.fault, NodeError):
            raise self.fault
        self.now = replace(self.now, running=False)

    def note(self, call: str) -> None:
        with self.changed:
            self.calls.append(call)
            self.changed.notify_all()


class Modes:
    """The driver, of which GPU-a is in default mode."""

    def __init__(self) -> None:
        self.modes = {"GPU-a": 0, "GPU-b": 0}

    def compute_mode(self, uuid: str) -> int:
        return self.modes[uuid]

    def set_compute_mode(self, uuid: str, mode: int) -> None:
        self.modes[uuid] = mode


class World:
    """A supervisor in a thread, and what it works on."""

    def __init__(self, root: Path) -> None:
        self.root, self.changed = root, threading.Condition()
        self.daemons: dict[str, Daemon] = {}
        self.wanted: Mapping[str, MpsWanted] | None = WANTED
        self.reads = 0
        self.driver, self.states, self.stop = Modes(), MpsStateFiles(root), threading.Event()
        for resource in (GPU, OTHER):
            (root / folder_name(resource)).mkdir(parents=True)
        modes = ModeKeeper(self.driver, ModeFile(root))
        self.supervisor = Supervisor(self, self.states, modes, self.make, earlier=(OTHER,))
        self.thread = threading.Thread(target=self.supervisor.run, args=(self.stop,))

    def read(self) -> Mapping[str, MpsWanted] | None:
        with self.changed:
            self.reads += 1
            self.changed.notify_all()
        return self.wanted

    def make(self, resource: str) -> Daemon:
        return self.daemons.setdefault(resource, Daemon(self.changed))

    def wait(self, holds: Callable[[], bool]) -> None:
        with self.changed:
            assert self.changed.wait_for(holds, PATIENCE_S)

    def state(self, resource: str = GPU) -> MpsState | None:
        return self.states.read().get(resource)

    def end(self) -> None:
        self.stop.set()
        self.thread.join(PATIENCE_S)
        assert not self.thread.is_alive()


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def test_nothing_is_done_before_anything_is_known(world: World) -> None:
    world.wanted = None
    world.thread.start()
    world.wait(lambda: world.reads >= 2)
    world.end()
    assert world.daemons == {}
    assert world.driver.modes["GPU-a"] == 0


def test_the_mode_is_set_before_a_daemon_starts_and_put_back_after_it_has_ended(world: World) -> None:
    world.thread.start()
    world.wait(lambda: GPU in world.daemons and "start" in world.daemons[GPU].calls)
    assert world.driver.modes["GPU-a"] == EXCLUSIVE_PROCESS
    world.end()
    assert world.daemons[GPU].calls[-1] == "stop"
    assert world.driver.modes["GPU-a"] == 0
    assert "told to end" in ((world.state() or MpsState(resource="", written_at_s=0, problem=None)).problem or "")


def test_a_daemon_of_an_earlier_run_is_looked_after_until_it_is_gone(world: World) -> None:
    world.thread.start()
    world.wait(lambda: OTHER in world.daemons and "look" in world.daemons[OTHER].calls)
    world.end()
    assert "start" not in world.daemons[OTHER].calls
    assert world.state(OTHER) is None


def test_a_daemon_that_hangs_holds_up_no_other(world: World) -> None:
    world.wanted = WANTED | {OTHER: MpsWanted(resource=OTHER, slices={"GPU-b": ("GPU-b::mps-0",)}, limits_memory=True)}
    hanging = world.make(GPU)
    hanging.answers.clear()
    world.thread.start()
    world.wait(lambda: "look" in hanging.calls and world.make(OTHER).calls.count("look") >= 2)
    assert world.state() is None
    other = world.state(OTHER)
    assert other is not None
    assert other.gpus.keys() == {"GPU-b"}
    hanging.answers.set()
    world.wait(lambda: "start" in hanging.calls)
    world.end()


def test_a_bug_in_the_handling_of_one_daemon_stops_neither_it_nor_others(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    broken = world.make(GPU)
    broken.fault = ZeroDivisionError()
    world.thread.start()
    world.wait(lambda: broken.calls.count("look") >= 2)
    broken.fault = None
    world.wait(lambda: "start" in broken.calls)
    world.end()
    assert "a step failed" in caplog.text


def test_a_state_that_cannot_be_written_is_logged_once(world: World, caplog: pytest.LogCaptureFixture) -> None:
    """P40: a directory that is read-only, or on a full disk."""
    folder = world.root / folder_name(GPU)
    folder.rmdir()
    folder.write_text("in the way")
    world.thread.start()
    world.wait(lambda: GPU in world.daemons and world.daemons[GPU].calls.count("look") >= 3)
    folder.unlink()
    folder.mkdir()
    looks = world.daemons[GPU].calls.count("look")
    world.wait(lambda: world.daemons[GPU].calls.count("look") >= looks + 2)
    world.end()
    assert caplog.text.count("state.json cannot be written: Not a directory") == 1


def test_a_daemon_that_does_not_end_keeps_no_mode_from_being_put_back(world: World) -> None:
    world.thread.start()
    world.wait(lambda: GPU in world.daemons and "start" in world.daemons[GPU].calls)
    world.daemons[GPU].fault = NodeError("the driver holds it")
    world.end()
    assert world.driver.modes["GPU-a"] == 0
