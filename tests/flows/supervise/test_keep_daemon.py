"""One daemon under supervision, with control daemons that are real processes and misbehave as real ones do."""

from __future__ import annotations

import contextlib
import os
import signal
import stat
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from sharer.core.mps import supervision as sup
from sharer.core.mps.state import MpsInterface, why_not_served
from sharer.flows.supervise.keep_daemon import LATER_S, RECENT_S, SOON_S, STEADY_S
from tests.flows.mps_node import RESOURCE, TWO_GPUS, A, B, MpsNode, mps_node, want

MakeNode = Callable[..., MpsNode]
BOTH = pytest.mark.parametrize("protocols", [[2], [2, 3]], ids=["v2", "v3"])
OF_A = f"{A}::mps-0-20480-25"
root_only = pytest.mark.skipif(os.geteuid() != 0, reason="only root can be other users")


@pytest.fixture
def make_node() -> Iterator[MakeNode]:
    with contextlib.ExitStack() as closing:
        yield lambda **manners: closing.enter_context(mps_node(**manners))


def place(node: MpsNode) -> Path:
    """The directory that a container with the first slice of A is given."""
    state = node.states.read()[RESOURCE]
    return Path(state.namespaces[OF_A]) if state.interface is MpsInterface.NAMESPACES else node.pipe


@BOTH
def test_a_daemon_serves_once_it_was_asked_and_has_answered(make_node: MakeNode, protocols: list[int]) -> None:
    node = make_node(protocols=protocols)
    first = node.step()
    assert first is not None
    assert first.problem is not None
    state = node.until_serving()
    assert why_not_served(state, A, node.now_s) is None
    assert why_not_served(state, "GPU-other", node.now_s) is not None
    assert node.client(A, place(node)).answer() == "OK"
    assert node.until(lambda state: state.gpus[A].clients == 1).gpus[B].clients == 0


def test_the_better_interface_is_used_where_it_is_there(make_node: MakeNode) -> None:
    state = make_node().until_serving()
    assert (state.interface, state.interface_reason) == (MpsInterface.NAMESPACES, None)
    assert set(state.namespaces) == {one for ids in TWO_GPUS.slices.values() for one in ids}
    assert state.shared_memory is None


def test_mps_v3_that_does_not_come_up_is_given_up_for_the_legacy_interface_with_the_reason(
    make_node: MakeNode,
) -> None:
    state = make_node(v3_breaks=True).until_serving()
    assert state.interface is MpsInterface.LEGACY
    assert "out of memory" in (state.interface_reason or "")
    assert state.shared_memory == "/dev/shm"


def test_a_daemon_of_the_legacy_interface_has_its_gpus_limits_by_its_own_numbers(make_node: MakeNode) -> None:
    """P21, P22: four GPUs, two of them under MPS; devices 0 and 1 of the daemon, in MiB, read back."""
    node = make_node(protocols=[2])
    node.wanted = want(c=("0-20480-25", "1-20480-25"), d=("0-10240-25",))
    node.until_serving()
    assert node.fake.starts() == ["-p 2 -f --multiuser-server CUDA_VISIBLE_DEVICES=GPU-c,GPU-d"]
    told = [command for command in node.fake.commands() if "pinned_mem_limit" in command]
    assert told == [
        "set_default_device_pinned_mem_limit 0 20480M",
        "get_default_device_pinned_mem_limit 0",
        "set_default_device_pinned_mem_limit 1 10240M",
        "get_default_device_pinned_mem_limit 1",
    ]
    assert "set_default_active_thread_percentage 25" in node.fake.commands()


@BOTH
def test_five_crashes_in_a_row_are_told_with_the_first_error_until_it_stays_up(
    make_node: MakeNode, protocols: list[int]
) -> None:
    node = make_node(protocols=protocols, crashes=5)
    state = node.until(lambda state: "5 times" in (state.problem or ""), after_s=2)
    assert "out of memory" in (state.problem or "")
    assert len(node.fake.starts()) == 5
    node.until_serving()
    assert len(node.fake.starts()) == 6


@BOTH
def test_a_daemon_that_hangs_is_told_so_and_then_started_again(make_node: MakeNode, protocols: list[int]) -> None:
    node = make_node(protocols=protocols, answer_s=1.0)
    node.until_serving()
    first = node.pid()
    node.fake.behave(hang="/")
    state = node.until(lambda state: "does not answer" in (state.problem or ""), after_s=8)
    assert "within 1 s" in (state.problem or "")
    node.until(lambda state: not state.problem or "does not answer" not in state.problem, after_s=12, hangs=True)
    node.fake.behave(hang="")
    node.until_serving()
    assert node.pid() != first


@BOTH
def test_a_gpu_that_does_not_exist_is_accepted_and_its_server_gone(make_node: MakeNode, protocols: list[int]) -> None:
    node = make_node(protocols=protocols, gpus=[A])
    state = node.until(lambda state: "no CUDA-capable device" in (state.problem or ""), after_s=0.1)
    assert why_not_served(state, A, node.now_s) == state.problem
    node.fake.behave(gpus=[A, B])
    node.until_serving()


@BOTH
def test_a_server_that_outlives_its_killed_daemon_is_ended_so_that_the_next_can_have_the_gpu(
    make_node: MakeNode, protocols: list[int]
) -> None:
    node = make_node(protocols=protocols, servers_stay=True)
    node.until_serving()
    pid = node.pid()
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    node.until(lambda state: state.problem is not None)
    node.until_serving(after_s=0.3)  # a server that finds its GPU busy is there for a moment
    assert node.pid() != pid
    assert not (node.folder / "log/server.log").exists(), "a server of the next daemon found the GPU busy"


def test_a_server_that_is_lost_while_it_is_told_its_namespaces_is_explained_by_the_log(make_node: MakeNode) -> None:
    """The daemon only says that there is no such server."""
    node = make_node(gpus=[A], losing="namespace create")
    node.until_serving()
    node.wanted = want(a=("0-20480-25", "1-20480-25", "2-20480-25"), b=("0-20480-25",))
    state = node.until(lambda state: state.problem is not None)
    assert "has failed once (Failed to start : no CUDA-capable device" in (state.problem or "")


@root_only
@BOTH
def test_processes_of_all_users_are_served_at_the_same_time(make_node: MakeNode, protocols: list[int]) -> None:
    node = make_node(protocols=protocols)
    node.until_serving()
    clients = [node.client(A, place(node), user_id) for user_id in (0, 1000, 2000)]
    assert [client.answer() for client in clients] == ["OK"] * 3
    node.until(lambda state: state.gpus[A].clients == 3)


@BOTH
def test_without_multi_user_mode_nothing_is_started_unless_one_user_is_named(
    make_node: MakeNode, protocols: list[int]
) -> None:
    node = make_node(protocols=protocols, many_users=False)
    node.step()
    state = node.step()
    assert state is not None
    assert "one user at a time" in (state.problem or "")
    assert node.fake.starts() == []
    node.wanted = want(user_id=os.geteuid(), a=("0-20480-25",))
    node.until_serving()


@root_only
@BOTH
def test_a_daemon_for_one_user_serves_that_one_and_turns_others_away(make_node: MakeNode, protocols: list[int]) -> None:
    node = make_node(protocols=protocols)
    node.wanted = want(user_id=1000, a=("0-20480-25",))
    node.until_serving()
    assert "multiuser" not in node.fake.starts()[0]
    assert node.client(A, place(node), 1000).answer() == "OK"
    assert node.client(A, place(node), 2000).answer() == "CUDA_ERROR_NOT_PERMITTED"


@root_only
@BOTH
def test_a_client_that_can_only_read_its_directory_is_served(make_node: MakeNode, protocols: list[int]) -> None:
    """runtime-facts 28: as its container has it mounted."""
    node = make_node(protocols=protocols)
    node.until_serving()
    mounted = node.root / "mounted"
    mounted.mkdir()
    script = f"mount --bind {place(node)} {mounted} && mount -o remount,bind,ro {mounted} && ! touch {mounted}/x"
    if subprocess.run(["unshare", "-m", "sh", "-c", script], capture_output=True, check=False).returncode:
        pytest.skip("this machine lets nobody mount anything (unshare -m)")
    client = node.client(A, mounted, within=("unshare", "-m", "sh", "-c", f'{script} 2>&-; exec "$0" "$@"'))
    assert client.answer() == "OK"


@root_only
@pytest.mark.parametrize("user_id", [1000, 2000])
def test_a_pipe_directory_that_is_closed_to_other_users_is_opened(make_node: MakeNode, user_id: int) -> None:
    node = make_node(protocols=[2], pipe_mode=0o700)
    node.until_serving()
    assert stat.S_IMODE(node.pipe.stat().st_mode) == 0o755
    assert node.client(A, user_id=user_id).answer() == "OK"


@BOTH
def test_what_dead_clients_left_makes_their_gpu_unhealthy_until_the_daemon_has_ended_it(
    make_node: MakeNode, protocols: list[int]
) -> None:
    node = make_node(protocols=protocols, linger="until terminated")
    node.until_serving()
    client = node.client(A, place(node))
    client.answer()
    node.until(lambda state: state.gpus[A].clients == 1)
    client.end()
    state = node.until(lambda state: state.gpus[A].problem is not None, after_s=3)
    assert str(client.pid) in (state.gpus[A].problem or "")
    assert state.gpus[B].problem is None
    assert state.problem is None
    node.until_serving()
    assert len(node.fake.starts()) == 1


@BOTH
def test_a_daemon_that_never_ends_a_client_is_restarted_when_no_other_lives(
    make_node: MakeNode, protocols: list[int]
) -> None:
    hangs_on = ["terminate_client", "client terminate"]
    node = make_node(protocols=protocols, answer_s=1.0, linger="for ever", hangs_on=hangs_on)
    node.until_serving()
    dead, lives = node.client(A, place(node)), node.client(A, place(node))
    assert (dead.answer(), lives.answer()) == ("OK", "OK")
    node.until(lambda state: state.gpus[A].clients == 2)
    dead.end()
    state = node.until(lambda state: "wedged" in (state.problem or ""), after_s=3)
    assert sup.CURE in (state.problem or "")
    assert len(node.fake.starts()) == 1
    lives.end()
    node.fake.behave(linger="no", hangs_on=[])
    node.until(lambda _: len(node.fake.starts()) == 2, after_s=1)
    node.until_serving()


def test_clients_that_fail_together_and_a_new_one_that_hangs_are_a_wedge_that_a_restart_clears(
    make_node: MakeNode,
) -> None:
    """gpu-limits §3: the daemon looks healthy all the while."""
    node = make_node(protocols=[2])
    node.until_serving()
    one, other = node.client(A), node.client(A)
    assert (one.answer(), other.answer()) == ("OK", "OK")
    node.fake.behave(failures=1, wedged=True)
    state = node.until(lambda state: bool(state.warnings))
    assert "fatal exception" in state.warnings[0]
    assert sup.CURE in state.warnings[0]
    node.client(A)
    node.until(lambda _: len(node.fake.starts()) == 2, after_s=10)
    node.fake.behave(wedged=False)
    assert not node.until_serving().warnings
    assert node.client(A).answer() == "OK"


def test_a_client_that_failed_and_lives_on_is_not_taken_for_one_that_waits_to_be_let_in(make_node: MakeNode) -> None:
    """It was let in and out again between two looks."""
    node = make_node(protocols=[2])
    node.until_serving()
    assert node.client(A).answer() == "OK"
    node.fake.behave(failures=1)
    node.until(lambda state: bool(state.warnings))
    said = [node.step(sup.WEDGED_S) for _ in range(3)]
    assert [state and state.problem for state in said] == [None] * 3
    assert not [warning for state in said if state is not None for warning in state.warnings if "let in" in warning]


@BOTH
def test_a_later_supervisor_takes_over_a_daemon_that_answers_with_its_clients(
    make_node: MakeNode, protocols: list[int]
) -> None:
    node = make_node(protocols=protocols)
    node.until_serving()
    client = node.client(A, place(node))
    client.answer()
    pid = node.pid()
    node.restart()
    state = node.until_serving()
    assert (node.pid(), len(node.fake.starts())) == (pid, 1)
    assert state.gpus[A].clients == 1
    assert set(state.gpus) == {A, B}


def test_a_new_slice_gets_its_namespace_and_an_old_one_loses_it_without_a_restart(make_node: MakeNode) -> None:
    node = make_node()
    node.until_serving()
    client = node.client(A, place(node))
    client.answer()
    node.wanted = want(a=("0-10240-10", "1-20480-25"), b=("0-20480-25",))
    new = f"{A}::mps-0-10240-10"
    state = node.until(lambda state: new in state.namespaces)
    assert OF_A not in state.namespaces
    assert state.problem is None
    assert len(node.fake.starts()) == 1
    assert Path(state.namespaces[new]).is_dir()


def test_a_gpu_that_comes_later_waits_for_the_clients_of_the_others(make_node: MakeNode) -> None:
    node = make_node(protocols=[2])
    node.wanted = want(a=("0-20480-25",))
    node.until_serving()
    client = node.client(A)
    client.answer()
    node.wanted = TWO_GPUS
    state = node.until(lambda state: B in state.gpus)
    assert "without this GPU" in (state.gpus[B].problem or "")
    assert state.gpus[A].problem is None
    client.end()
    node.until_serving()
    assert [start.partition("=")[2] for start in node.fake.starts()] == [A, f"{A},{B}"]


@BOTH
def test_a_daemon_that_is_not_wanted_any_more_is_ended_and_nothing_is_said_of_it(
    make_node: MakeNode, protocols: list[int]
) -> None:
    node = make_node(protocols=protocols)
    node.until_serving()
    node.wanted = None
    node.step()
    assert node.step(sup.STOP_AFTER_S + 1) is None
    assert node.pid() is None or not Path(f"/proc/{node.pid()}").exists()
    assert node.pipe.is_dir(), "running containers hold it by a mount"


def test_a_control_executable_that_is_not_there_is_the_reason(make_node: MakeNode) -> None:
    """P40: the daemon's binary is absent."""
    node = make_node()
    node.fake.executable.unlink()
    state = node.step()
    assert state is not None
    assert "--mps-control" in (state.problem or "")


def test_a_directory_that_cannot_be_used_is_the_reason_and_no_link_is_followed(make_node: MakeNode) -> None:
    """P40: the directory is missing, or not one."""
    node = make_node()
    node.folder.mkdir(parents=True)
    (node.root / "elsewhere").mkdir()
    node.pipe.symlink_to(node.root / "elsewhere")
    state = node.step()
    assert state is not None
    assert "symbolic link" in (state.problem or "")
    assert not any((node.root / "elsewhere").iterdir())
    node.pipe.unlink()
    node.until_serving()


def test_a_daemon_is_looked_at_often_after_a_change_and_seldom_while_it_stays_so(make_node: MakeNode) -> None:
    node = make_node(protocols=[2])
    waits = [node.keeper.step(TWO_GPUS, now_s=now_s, wall_s=now_s) for now_s in (0.0, 0.3)]
    assert waits == [SOON_S, SOON_S]
    node.until_serving()
    assert node.keeper.step(TWO_GPUS, now_s=node.now_s + 1, wall_s=0.0) == STEADY_S
    node.fake.behave(server_status="FAULT")
    waits = [node.keeper.step(TWO_GPUS, now_s=node.now_s + more_s, wall_s=0.0) for more_s in (2, 2 + RECENT_S)]
    assert waits == [SOON_S, LATER_S]


def test_a_steady_daemon_costs_three_questions_a_look(make_node: MakeNode) -> None:
    node = make_node(protocols=[2])
    node.until_serving()
    before = len(node.fake.commands())
    node.step(5)
    assert [command.split()[0] for command in node.fake.commands()[before:]] == [
        "get_server_list",
        "get_server_status",
        "ps",
    ]
