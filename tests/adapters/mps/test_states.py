from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from sharer.adapters.mps import MpsStateFiles
from sharer.core.errors import NodeError
from sharer.core.mps.state import TRUST_S, MpsGpu, MpsInterface, MpsState, why_not_served

GPU = "nvidia.com/gpu.mps"
STATE = MpsState(
    resource=GPU,
    written_at_s=1000.5,
    problem=None,
    interface=MpsInterface.NAMESPACES,
    interface_reason=None,
    gpus={"GPU-a": MpsGpu(problem="dead clients", clients=2), "GPU-b": MpsGpu()},
    namespaces={"GPU-a::mps-0": "/var/lib/sharer/mps/x/pipe/slices/mps_0"},
    shared_memory="/dev/shm",
    warnings=("a sign",),
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "mps/nvidia.com_gpu.mps"
    folder.mkdir(parents=True)
    return folder


@pytest.fixture
def states(folder: Path) -> MpsStateFiles:
    return MpsStateFiles(folder.parent, now_s=lambda: 0.0, wall_s=lambda: 1001.0)


def test_what_the_supervisor_writes_the_agent_reads(states: MpsStateFiles, folder: Path) -> None:
    states.write(STATE)
    assert MpsStateFiles(folder.parent).read() == {GPU: STATE}


def test_a_state_that_is_written_again_is_read_again(states: MpsStateFiles) -> None:
    states.write(STATE)
    states.read()
    later = MpsState(resource=GPU, written_at_s=1001.0, problem="ended")
    states.write(later)
    assert states.read() == {GPU: later}
    states.remove(GPU)
    assert states.read() == {}
    states.remove(GPU)


def test_nothing_is_said_where_there_is_no_directory_yet(tmp_path: Path) -> None:
    assert MpsStateFiles(tmp_path / "none").read() == {}


@pytest.mark.parametrize(
    "text",
    [
        b"", b"{", b"null", b"[]", b"\xff\xfe", b'{"resource":"nvidia.com/gpu.mps"}',
        b'{"resource":"other/one","writtenAtS":1,"problem":null}',
        b'{"resource":"nvidia.com/gpu.mps","writtenAtS":"x","problem":null}',
        b'{"resource":"nvidia.com/gpu.mps","writtenAtS":1,"problem":null,"interface":"v9"}',
        b" " * (5 * 2**20),
    ],
    ids=["empty", "cut", "null", "list", "bytes", "no problem", "another's", "wrong type", "newer interface", "huge"],
)  # fmt: skip
def test_a_damaged_file_says_nothing_and_spoils_no_other(states: MpsStateFiles, folder: Path, text: bytes) -> None:
    """P32."""
    other = folder.with_name("x.org_other")
    other.mkdir()
    states.write(MpsState(resource="x.org/other", written_at_s=1, problem=None))
    (folder / "state.json").write_bytes(text)
    assert set(states.read()) == {"x.org/other"}


def test_fields_of_a_newer_supervisor_are_left_out(states: MpsStateFiles, folder: Path) -> None:
    (folder / "state.json").write_text('{"resource":"nvidia.com/gpu.mps","writtenAtS":1,"problem":null,"new":{"x":1}}')
    assert states.read() == {GPU: MpsState(resource=GPU, written_at_s=1, problem=None)}


def test_no_link_is_followed_and_nothing_but_a_file_is_read(states: MpsStateFiles, folder: Path) -> None:
    elsewhere = folder.parent.parent / "elsewhere.json"
    elsewhere.write_text('{"resource":"nvidia.com/gpu.mps","writtenAtS":1,"problem":null}')
    (folder / "state.json").symlink_to(elsewhere)
    assert states.read() == {}
    (folder / "state.json").unlink()
    os.mkfifo(folder / "state.json")
    assert states.read() == {}


def test_a_state_that_cannot_be_written_is_an_error_that_names_the_file(states: MpsStateFiles, folder: Path) -> None:
    folder.rmdir()
    with pytest.raises(NodeError, match=r"state\.json cannot be written"):
        states.write(STATE)


def test_nobody_sees_half_a_state(states: MpsStateFiles, folder: Path) -> None:
    states.write(STATE)
    assert [path.name for path in folder.iterdir()] == ["state.json"]


class Clocks:
    """One that nobody sets, and the host's."""

    def __init__(self) -> None:
        self.now_s, self.wall_s = 50.0, 1000.5

    def pass_by(self, seconds: float) -> None:
        self.now_s += seconds
        self.wall_s += seconds

    def problem(self, states: MpsStateFiles) -> str | None:
        return why_not_served(states.read()[GPU], "GPU-b", self.wall_s)


@pytest.mark.parametrize("by_s", [7200.0, -7200.0], ids=["forward", "back"])
@pytest.mark.parametrize("watched", [True, False], ids=["seen to change", "seen once"])
def test_a_clock_that_is_set_makes_no_daemon_silent(folder: Path, by_s: float, watched: bool) -> None:
    """Reported of nodes whose clock is set soon after the boot: what is compared with it is taken for old, or new."""
    clocks = Clocks()
    agent = MpsStateFiles(folder.parent, now_s=lambda: clocks.now_s, wall_s=lambda: clocks.wall_s)
    agent.write(STATE)
    assert clocks.problem(agent) is None
    if watched:
        clocks.pass_by(3.0)
        agent.write(replace(STATE, written_at_s=clocks.wall_s - 1.0))
        assert clocks.problem(agent) is None
    clocks.wall_s += by_s
    assert clocks.problem(agent) is None
    clocks.pass_by(TRUST_S - 3.0)
    assert clocks.problem(agent) is None
    clocks.pass_by(4.0)
    assert "nothing was heard" in str(clocks.problem(agent)), "the supervisor has ended all the same"
    agent.write(replace(STATE, written_at_s=clocks.wall_s))
    assert clocks.problem(agent) is None


@pytest.mark.parametrize("by_s", [7200.0, -7200.0], ids=["forward", "back"])
def test_what_was_written_just_before_the_clock_was_set_is_as_old_as_it_is(folder: Path, by_s: float) -> None:
    clocks = Clocks()
    agent = MpsStateFiles(folder.parent, now_s=lambda: clocks.now_s, wall_s=lambda: clocks.wall_s)
    agent.write(STATE)
    agent.read()
    clocks.pass_by(3.0)
    agent.write(replace(STATE, written_at_s=clocks.wall_s))
    clocks.wall_s += by_s
    assert clocks.problem(agent) is None
    clocks.pass_by(TRUST_S + 1.0)
    assert "nothing was heard" in str(clocks.problem(agent))


def test_a_state_that_an_earlier_run_saw_is_believed_by_its_date_alone(folder: Path) -> None:
    clocks = Clocks()
    agent = MpsStateFiles(folder.parent, now_s=lambda: clocks.now_s, wall_s=lambda: clocks.wall_s)
    for written_at_s in (clocks.wall_s - TRUST_S - 1.0, clocks.wall_s + TRUST_S + 1.0):
        MpsStateFiles(folder.parent).write(replace(STATE, written_at_s=written_at_s))
        fresh = MpsStateFiles(folder.parent, now_s=lambda: clocks.now_s, wall_s=lambda: clocks.wall_s)
        assert "nothing was heard" in str(clocks.problem(fresh))
    MpsStateFiles(folder.parent).write(replace(STATE, written_at_s=clocks.wall_s - 1.0))
    assert clocks.problem(agent) is None
