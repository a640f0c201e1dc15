"""What a tenant, or another user of the node, puts in the way is not followed, not waited for, and not overwritten."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from sharer.adapters.cgroups import Cgroups, CgroupTree
from sharer.adapters.checkpoint import Checkpoint
from sharer.adapters.injection.slice_specs import SliceSpecFiles
from sharer.adapters.injection.spec_dirs import OWN_PREFIX
from sharer.adapters.kubelet.sockets import remove_leftovers
from sharer.adapters.local_socket import FILE_NAME, LocalSocket
from sharer.adapters.lock import AgentLock
from sharer.adapters.mps import MpsStateFiles, directories, process
from sharer.adapters.mps.files import write_whole
from sharer.adapters.mps.logs import LogReader
from sharer.adapters.policy_memory import LastGoodPolicy
from sharer.core.errors import NodeError
from sharer.core.ports.policy import PolicyText
from tests.fakes.cgroups import FakeCgroups
from tests.fakes.no_watch import NoWatch

UID, OTHER = "0e1f8a3b-0000-4000-8000-00000000000a", "0e1f8a3b-0000-4000-8000-00000000000b"
SOON_S = 30.0


@pytest.fixture
def victim(tmp_path: Path) -> Path:
    """A file of the node that is nobody else's business."""
    path = tmp_path / "victim"
    path.write_text("1\n")
    return path


# -- /sys/fs/cgroup


def test_a_link_among_cgroups_is_no_cgroup(tmp_path: Path) -> None:
    tree = FakeCgroups(tmp_path / "tree")
    tree.add_pod(UID)
    real = tree.add_container(UID, "1" * 64, "main")
    elsewhere = tmp_path / "elsewhere" / ("2" * 64)
    elsewhere.mkdir(parents=True)
    (real.parent / ("2" * 64)).symlink_to(elsewhere)
    (real.parent.parent / f"pod{OTHER}").symlink_to(elsewhere)
    found = CgroupTree(tree.root, tree.proc_root, NoWatch()).read()
    assert [one.path for one in found[UID].containers] == [str(real)]
    assert set(found) == set(Cgroups(tree.root, NoWatch()).read().populated) == {UID}


# -- MPS: a container has the pipe directory mounted, and may be root in it


@pytest.mark.parametrize("what", ["a pipe", "a link", "a folder", "a link to a pipe"])
def test_a_pid_file_that_a_container_put_there_is_not_followed_nor_waited_for(
    tmp_path: Path, victim: Path, what: str
) -> None:
    """Opening a pipe would wait for a writer, and with it the supervisor, for ever."""
    pipe = tmp_path / "pipe"
    pipe.mkdir()
    place(pipe / process.PID_FILE, what, victim)
    assert in_time(lambda: process.from_pid_file(pipe)) is None


@pytest.mark.parametrize("what", ["a pipe", "a link", "a folder", "a link to a pipe"])
def test_a_log_that_is_no_file_is_not_followed_nor_waited_for(tmp_path: Path, victim: Path, what: str) -> None:
    """Its folder may be another user's, and its lines end up in the report."""
    place(tmp_path / "control.log", what, victim)
    assert in_time(LogReader([tmp_path / "control.log"]).lines) == []


@pytest.mark.parametrize("what", ["a pipe", "a link", "a folder", "a link to a pipe"])
def test_a_state_that_is_no_file_is_not_followed_nor_waited_for(tmp_path: Path, victim: Path, what: str) -> None:
    (tmp_path / "nvidia.com_gpu").mkdir()
    place(tmp_path / "nvidia.com_gpu/state.json", what, victim)
    assert in_time(MpsStateFiles(tmp_path).read) == {}


def test_a_folder_that_becomes_a_link_while_it_is_cleared_takes_nothing_else_with_it(tmp_path: Path) -> None:
    """A container swaps it in the middle: what the link points at keeps all its files, of the same names."""
    pipe, _ = directories.make(tmp_path / "mps", owner=None)
    elsewhere, folder, link = tmp_path / "elsewhere", pipe / "slices", pipe / "link"
    names = [str(number) for number in range(500)]
    for parent in (elsewhere, folder):
        parent.mkdir()
        for name in names:
            (parent / name).touch()

    def swap() -> None:
        while len(os.listdir(folder)) == len(names):
            threading.Event().wait(0.0002)  # it has not begun
        folder.rename(pipe / "aside")
        link.symlink_to(elsewhere)
        link.rename(folder)

    swapping = threading.Thread(target=swap)
    swapping.start()
    directories.clear(pipe)
    swapping.join()
    assert len(os.listdir(elsewhere)) == len(names)


# -- the kubelet's directory, which other plugins write too


def test_a_pipe_in_the_place_of_the_checkpoint_is_not_waited_for(tmp_path: Path) -> None:
    """Neighbour of P32: the agent's one thread reads it in every round."""
    os.mkfifo(tmp_path / "checkpoint")
    checkpoint = Checkpoint(tmp_path / "checkpoint", NoWatch())

    def read() -> object:
        try:
            return checkpoint.read()
        except NodeError as error:
            return str(error)

    assert "is damaged" in str(in_time(read))


# -- our own files: a link in the place of one is replaced or refused, and what it points at is not touched


def test_no_link_in_the_run_directory_is_written_through(
    tmp_path: Path, victim: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = tmp_path / "run"
    run.mkdir()
    policy = PolicyText(source="s", text=b"x" * 100, digest="0" * 64)
    (run / "policy-last-good.yaml").symlink_to(victim)
    LastGoodPolicy(run).keep(policy)
    assert not (run / "policy-last-good.yaml").is_symlink()
    (run / ".policy-last-good.yaml.new").symlink_to(victim)
    LastGoodPolicy(run).keep(policy)
    assert "cannot be kept" in caplog.text
    (run / "agent.lock").symlink_to(victim)
    with pytest.raises(NodeError, match="cannot lock"):
        AgentLock(run / "agent.lock").try_acquire()
    assert victim.read_text() == "1\n"


def test_a_link_in_the_place_of_the_local_socket_is_replaced(tmp_path: Path, victim: Path) -> None:
    (tmp_path / FILE_NAME).symlink_to(victim)
    server = LocalSocket(tmp_path, lambda: b"")
    server.open()
    assert not (tmp_path / FILE_NAME).is_symlink()
    server.close()
    assert victim.read_text() == "1\n"


def test_no_link_among_cdi_specs_is_written_through(tmp_path: Path, victim: Path) -> None:
    cdi = tmp_path / "cdi"
    cdi.mkdir()
    files = SliceSpecFiles(lambda: [cdi])
    (cdi / f"{OWN_PREFIX}GPU-a.json").symlink_to(victim)
    files.add("GPU-a", {"GPU-a::ts-0": ["A=b"]})
    assert not (cdi / f"{OWN_PREFIX}GPU-a.json").is_symlink()
    (cdi / f"{OWN_PREFIX}GPU-a.tmp").symlink_to(victim)
    with pytest.raises(NodeError, match="cannot be written"):
        files.add("GPU-a", {"GPU-a::ts-1": ["A=b"]})
    assert victim.read_text() == "1\n"


def test_no_link_among_the_files_of_mps_is_written_through(tmp_path: Path, victim: Path) -> None:
    (tmp_path / "state.json").symlink_to(victim)
    write_whole(tmp_path / "state.json", b"{}")
    assert not (tmp_path / "state.json").is_symlink()
    (tmp_path / ".state.json.new").symlink_to(victim)
    with pytest.raises(OSError, match=r"\.state\.json\.new"):
        write_whole(tmp_path / "state.json", b"{}")
    assert victim.read_text() == "1\n"


def test_a_link_with_a_name_like_ours_is_left_among_the_plugins_sockets(tmp_path: Path, victim: Path) -> None:
    """Whatever it points at: sockets of ours are made by us, and are no links."""
    link = tmp_path / "sharer-gpu.shared-0123456789ab.sock"
    link.symlink_to(victim)
    assert remove_leftovers(tmp_path) == []
    assert link.is_symlink()
    assert victim.exists()


def place(path: Path, what: str, victim: Path) -> None:
    """Put this at a path."""
    match what:
        case "a pipe":
            os.mkfifo(path)
        case "a link":
            path.symlink_to(victim)
        case "a folder":
            path.mkdir()
        case "a link to a pipe":
            os.mkfifo(path.with_suffix(".pipe"))
            path.symlink_to(path.with_suffix(".pipe"))


def in_time(ask: Callable[[], object]) -> object:
    """The answer; the test fails, instead of hanging, if it is waited for."""
    answers: list[object] = []
    asking = threading.Thread(target=lambda: answers.append(ask()), daemon=True)
    asking.start()
    asking.join(SOON_S)
    assert answers, "it waits for something"
    return answers[0]
