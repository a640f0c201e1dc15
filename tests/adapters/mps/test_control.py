from __future__ import annotations

from pathlib import Path

import pytest

from sharer.adapters.mps.control import Control, Executable, NoAnswerError, environment_for
from sharer.core.errors import NodeError


def executable(tmp_path: Path, script: str) -> Executable:
    path = tmp_path / "usr/bin/nvidia-cuda-mps-control"
    path.parent.mkdir(parents=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return Executable(None, (tmp_path,))


def control(tmp_path: Path, script: str, answer_s: float = 30.0) -> Control:
    return Control(executable(tmp_path, script), tmp_path / "pipe", tmp_path / "log", answer_s=answer_s)


def test_a_command_goes_in_by_standard_input_with_the_daemon_s_directories(tmp_path: Path) -> None:
    script = 'read line; echo "$line, $CUDA_MPS_PIPE_DIRECTORY, $CUDA_MPS_LOG_DIRECTORY, $#"'
    assert control(tmp_path, script).say("get_server_list") == f"get_server_list, {tmp_path}/pipe, {tmp_path}/log, 0"


def test_a_command_of_v3_goes_in_as_arguments(tmp_path: Path) -> None:
    assert control(tmp_path, 'echo "$@"').tell("server", "list") == "-p 3 server list"


def test_a_question_that_is_not_answered_in_time_is_given_up(tmp_path: Path) -> None:
    with pytest.raises(NoAnswerError, match=r"'ps' was not answered within 0\.2 s"):
        control(tmp_path, "exec sleep 60", answer_s=0.2).say("ps")


def test_a_daemon_that_is_not_there_is_no_answer(tmp_path: Path) -> None:
    missing = control(tmp_path, "echo 'Cannot find MPS control daemon process'; exit 1")
    with pytest.raises(NoAnswerError, match="Cannot find"):
        missing.say("ps")
    with pytest.raises(NoAnswerError, match="Cannot find"):
        missing.tell("server", "list")


def test_a_refused_command_of_v3_is_told_apart_from_silence(tmp_path: Path) -> None:
    with pytest.raises(NodeError, match="active clients") as caught:
        control(tmp_path, "echo 'the namespace has active clients'; exit 1").tell("namespace", "delete", "x")
    assert not isinstance(caught.value, NoAnswerError)


def test_the_executable_is_looked_for_at_each_use_so_that_a_late_driver_is_found(tmp_path: Path) -> None:
    """P40."""
    found = Executable(None, (tmp_path,))
    with pytest.raises(NodeError, match="--mps-control"):
        found.find()
    executable(tmp_path, "")
    assert found.find() == tmp_path / "usr/bin/nvidia-cuda-mps-control"


def test_nothing_that_is_in_our_environment_steers_a_daemon(tmp_path: Path) -> None:
    """Neighbour of P21: the supervisor's own CUDA_VISIBLE_DEVICES would renumber the GPUs."""
    inherited = {
        "PATH": "/bin",
        "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "1",
        "CUDA_VISIBLE_DEVICES": "7",
        "PYTHONPATH": "x",
    }
    assert environment_for(tmp_path / "pipe", tmp_path / "log", inherited=inherited) == {
        "PATH": "/bin",
        "CUDA_MPS_PIPE_DIRECTORY": str(tmp_path / "pipe"),
        "CUDA_MPS_LOG_DIRECTORY": str(tmp_path / "log"),
    }
    assert environment_for(tmp_path, tmp_path, ["GPU-b", "GPU-a"])["CUDA_VISIBLE_DEVICES"] == "GPU-b,GPU-a"
