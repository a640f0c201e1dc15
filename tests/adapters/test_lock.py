"""One agent a node."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from sharer.adapters.lock import AgentLock
from sharer.core.errors import NodeError

PATIENCE_S = 10.0
HOLD_UNTIL_KILLED = """
import sys, threading
from pathlib import Path
from sharer.adapters.lock import AgentLock
assert AgentLock(Path(sys.argv[1])).try_acquire()
print("held", flush=True)
threading.Event().wait()
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "run" / "agent.lock"


@pytest.fixture
def held(path: Path) -> Iterator[AgentLock]:
    lock = AgentLock(path)
    assert lock.try_acquire()
    yield lock
    lock.release()


def test_a_second_agent_does_not_get_the_lock_until_the_first_lets_go(path: Path, held: AgentLock) -> None:
    """P11, contract row 17: two agents undo each other's registrations."""
    second = AgentLock(path)
    assert not second.try_acquire()
    held.release()
    assert second.try_acquire()
    second.release()


def test_a_waiting_agent_says_once_who_holds_the_lock_and_then_gets_it(
    path: Path, held: AgentLock, caplog: pytest.LogCaptureFixture
) -> None:
    second = AgentLock(path)
    tries = []

    class LetGoAtTheThirdTry(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            tries.append(timeout)
            if len(tries) == 3:
                held.release()
            return False

    assert second.acquire(LetGoAtTheThirdTry(), retry_s=0.5)
    assert tries == [0.5, 0.5, 0.5]
    [record] = caplog.records
    assert str(path) in record.getMessage()
    assert second.holder() in record.getMessage()
    assert "pid" in second.holder()
    second.release()


def test_two_agents_with_two_run_directories_and_one_kubelet_are_two_agents_on_one_node(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """P11: each other's registrations are undone all the same. Nothing is left in the kubelet's directory."""
    kubelet_dir = tmp_path / "device-plugins"
    kubelet_dir.mkdir()
    first = AgentLock(tmp_path / "a" / "agent.lock", kubelet_dir=kubelet_dir)
    assert first.try_acquire()
    second = AgentLock(tmp_path / "b" / "agent.lock", kubelet_dir=kubelet_dir)
    assert not second.try_acquire()
    stop = threading.Event()
    stop.set()
    assert not second.acquire(stop)
    [record] = caplog.records
    assert f"another sharer agent serves the kubelet of {kubelet_dir}" in record.getMessage()
    assert "remove one of the two from this node; waiting until it ends" in record.getMessage()
    first.release()
    assert second.try_acquire()
    assert not first.try_acquire()
    second.release()
    assert first.try_acquire()
    first.release()
    assert list(kubelet_dir.iterdir()) == []


def test_an_agent_that_waits_for_the_kubelets_directory_holds_its_own_file_no_longer_than_it_looks(
    tmp_path: Path,
) -> None:
    """So that who follows it with the same run directory is told of the one that is really in the way."""
    first = AgentLock(tmp_path / "a" / "agent.lock", kubelet_dir=tmp_path)
    assert first.try_acquire()
    path = tmp_path / "b" / "agent.lock"
    assert not AgentLock(path, kubelet_dir=tmp_path).try_acquire()
    other = AgentLock(path)
    assert other.try_acquire()
    other.release()
    first.release()


def test_a_kubelet_that_has_no_directory_yet_is_no_obstacle(tmp_path: Path) -> None:
    lock = AgentLock(tmp_path / "agent.lock", kubelet_dir=tmp_path / "not yet")
    assert lock.try_acquire()
    lock.release()


def test_waiting_ends_when_the_agent_is_told_to_stop(path: Path, held: AgentLock) -> None:
    stop = threading.Event()
    results: list[bool] = []
    waiting = threading.Thread(target=lambda: results.append(AgentLock(path).acquire(stop, retry_s=PATIENCE_S)))
    waiting.start()
    stop.set()
    waiting.join(PATIENCE_S)
    assert results == [False]


def test_the_lock_of_a_killed_agent_is_free(path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", HOLD_UNTIL_KILLED, str(path)], stdout=subprocess.PIPE, text=True
    ) as agent:
        assert agent.stdout is not None
        assert agent.stdout.readline() == "held\n"
        lock = AgentLock(path)
        assert not lock.try_acquire()
        agent.kill()
        agent.wait(PATIENCE_S)
    assert lock.try_acquire()
    lock.release()


def test_a_lock_file_that_was_deleted_while_held_is_not_a_lock_for_two(path: Path, held: AgentLock) -> None:
    """The next agent locks the new file; whoever still has the old one open never believes it holds the lock."""
    path.unlink()
    second = AgentLock(path)
    assert second.try_acquire()
    held.release()
    assert not held.try_acquire()
    second.release()


def test_a_lock_that_cannot_be_made_is_an_error_that_names_the_file(tmp_path: Path) -> None:
    (tmp_path / "run").touch()
    with pytest.raises(NodeError, match=r"run/agent\.lock.*may write to"):
        AgentLock(tmp_path / "run" / "agent.lock").try_acquire()
