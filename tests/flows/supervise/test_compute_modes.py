from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from sharer.adapters.mps.modes import ModeFile
from sharer.core.errors import NodeError
from sharer.core.mps.compute_modes import EXCLUSIVE_PROCESS
from sharer.flows.supervise.compute_modes import ModeKeeper

A, B = "GPU-a", "GPU-b"
DEFAULT, PROHIBITED = 0, 2


class Modes:
    """The driver. Writes down, at each change, what was remembered then."""

    def __init__(self, memory: ModeFile) -> None:
        self.modes = {A: DEFAULT, B: DEFAULT}
        self.memory = memory
        self.remembered_at_change: list[Mapping[str, int]] = []
        self.broken: set[str] = set()

    def compute_mode(self, uuid: str) -> int:
        if uuid in self.broken:
            raise NodeError("it is lost")
        return self.modes[uuid]

    def set_compute_mode(self, uuid: str, mode: int) -> None:
        self.remembered_at_change.append(self.memory.read())
        self.modes[uuid] = mode


@pytest.fixture
def memory(tmp_path: Path) -> ModeFile:
    return ModeFile(tmp_path / "mps")


@pytest.fixture
def driver(memory: ModeFile) -> Modes:
    return Modes(memory)


def test_only_gpus_under_mps_are_exclusive_and_the_others_get_theirs_back(driver: Modes, memory: ModeFile) -> None:
    """P24: change to another strategy."""
    keeper = ModeKeeper(driver, memory)
    assert keeper.hold({A, B}) == {}
    assert driver.modes == {A: EXCLUSIVE_PROCESS, B: EXCLUSIVE_PROCESS}
    assert keeper.hold({B}) == {}
    assert driver.modes == {A: DEFAULT, B: EXCLUSIVE_PROCESS}
    assert memory.read() == {B: DEFAULT}


def test_what_was_there_is_remembered_before_it_is_changed(driver: Modes, memory: ModeFile) -> None:
    driver.modes[A] = PROHIBITED
    ModeKeeper(driver, memory).hold({A})
    assert driver.remembered_at_change == [{A: PROHIBITED}]


def test_after_a_kill_the_next_run_puts_back_what_is_not_under_mps_any_more(driver: Modes, memory: ModeFile) -> None:
    """P24: SIGKILL and a restart."""
    ModeKeeper(driver, memory).hold({A, B})
    ModeKeeper(driver, memory).hold(set())
    assert driver.modes == {A: DEFAULT, B: DEFAULT}
    assert memory.read() == {}


def test_a_gpu_that_was_exclusive_before_stays_so(driver: Modes, memory: ModeFile) -> None:
    driver.modes[A] = EXCLUSIVE_PROCESS
    keeper = ModeKeeper(driver, memory)
    keeper.hold({A})
    keeper.hold(set())
    assert driver.modes[A] == EXCLUSIVE_PROCESS
    assert driver.remembered_at_change == []


def test_a_mode_that_somebody_else_has_set_meanwhile_stays(driver: Modes, memory: ModeFile) -> None:
    keeper = ModeKeeper(driver, memory)
    keeper.hold({A})
    driver.modes[A] = PROHIBITED
    keeper.hold(set())
    assert driver.modes[A] == PROHIBITED
    assert memory.read() == {}


def test_a_mode_that_was_lost_is_set_again(driver: Modes, memory: ModeFile) -> None:
    keeper = ModeKeeper(driver, memory)
    keeper.hold({A})
    driver.modes[A] = DEFAULT
    keeper.hold({A})
    assert driver.modes[A] == EXCLUSIVE_PROCESS


def test_a_gpu_that_does_not_answer_keeps_no_other_from_its_mode(driver: Modes, memory: ModeFile) -> None:
    keeper = ModeKeeper(driver, memory)
    driver.broken = {A}
    assert keeper.hold({A, B}) == {A: "it is lost"}
    assert driver.modes[B] == EXCLUSIVE_PROCESS
    driver.broken = {B}
    assert keeper.hold(set()) == {B: "it is lost"}
    driver.broken = set()
    assert keeper.hold(set()) == {}
    assert driver.modes == {A: DEFAULT, B: DEFAULT}


def test_a_memory_that_is_damaged_changes_no_mode(driver: Modes, memory: ModeFile, tmp_path: Path) -> None:
    (tmp_path / "mps").mkdir()
    (tmp_path / "mps/compute-modes.json").write_text("{")
    problems = ModeKeeper(driver, memory).hold({A})
    assert "nvidia-smi -c" in problems[A]
    assert driver.modes[A] == DEFAULT


def test_the_log_names_the_modes_and_does_not_number_them(
    driver: Modes, memory: ModeFile, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    driver.modes = {A: PROHIBITED, B: 9}
    ModeKeeper(driver, memory).hold({A, B})
    ModeKeeper(driver, memory).hold({B})
    assert caplog.messages == [
        "GPU-a: set the compute mode to exclusive process, from prohibited",
        "GPU-b: set the compute mode to exclusive process, from number 9",
        "GPU-a: put the compute mode back to prohibited",
    ]
