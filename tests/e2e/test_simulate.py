"""`sharer simulate` as a user runs it: in a process of its own."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

PODS = """\
apiVersion: v1
kind: Pod
metadata: {name: first, annotations: {simulation.sharer.dev/run-for: 1h}}
spec: {containers: [{name: main, resources: {limits: {nvidia.com/gpu.shared: 4}}}]}
---
apiVersion: v1
kind: Pod
metadata: {name: second, annotations: {simulation.sharer.dev/start-after: 5m}}
spec: {containers: [{name: main, resources: {limits: {nvidia.com/gpu.shared: 2}}}]}
---
apiVersion: v1
kind: Pod
metadata: {name: third}
spec: {containers: [{name: main, resources: {limits: {nvidia.com/gpu: 1}}}]}
"""


@pytest.fixture
def temporary() -> Iterator[Path]:
    """For TMPDIR; with a path so short that sockets are made in it."""
    with tempfile.TemporaryDirectory(prefix="s-", dir="/tmp") as folder:
        yield Path(folder)


def simulate(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """With a temporary folder of its own, to see what is left there."""
    command = [sys.executable, "-m", "sharer", "simulate", *arguments]
    environment = {**os.environ, "TMPDIR": str(folder)}
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120, env=environment)


def cpu_s() -> float:
    """Processor time of all processes that were started here and have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def test_the_demo_takes_less_than_ten_seconds_and_ends_with_a_table(temporary: Path) -> None:
    began_s, busy_s = time.monotonic(), cpu_s()
    done = simulate(temporary)
    took_s, busy_s = time.monotonic() - began_s, cpu_s() - busy_s
    assert (done.returncode, done.stderr) == (0, "")
    assert took_s < 10 + 8 * busy_s, "also where it gets a tenth of a processor"
    *_, header, first, second = done.stdout.splitlines()
    assert header.split()[:3] == ["GPU", "PRODUCT", "RESOURCE"]
    assert (first.split()[:1], second.split()[:1]) == (["0"], ["1"])
    assert (" driver " in first, " driver " in second) == (True, True)
    for said in (
        "one-too-many: Failed, UnexpectedAdmissionError: Pod was rejected: Allocate failed due to",
        "held by default/train (main), UID ",
        "default/notebook (main): held by driver",
        "14.8 GiB more: refused, CUDA_ERROR_OUT_OF_MEMORY",
        "pod train: not held to its promise: driver: it uses more than the 19.8 GiB it was promised",
        "19.8 GiB, set again",
        "quarantined, its owner has ended, and something of it still runs",
        "held slices that drain: 7; ",
    ):
        assert said in done.stdout
    assert len(done.stdout.splitlines()) <= 100
    assert list(temporary.iterdir()) == []


def test_nothing_is_left_of_a_demo_that_is_told_to_stop(temporary: Path) -> None:
    command = [sys.executable, "-m", "sharer", "simulate"]
    environment = {**os.environ, "TMPDIR": str(temporary)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as demo:
        assert demo.stdout is not None
        assert any("registered nvidia.com/gpu.shared" in line for line in demo.stdout)
        there = [path.name for path in temporary.iterdir()]
        demo.send_signal(signal.SIGTERM)
        assert demo.wait(30) == 128 + signal.SIGTERM
    assert len(there) == 1
    assert list(temporary.iterdir()) == []


def test_pods_are_planned_in_virtual_time_and_one_that_never_runs_is_a_finding(tmp_path: Path) -> None:
    pods = tmp_path / "pods.yaml"
    pods.write_text(PODS)
    done = simulate(tmp_path, "--gpus", "L4", "--pods", str(pods), "-o", "json")
    assert (done.returncode, done.stderr) == (1, "")
    document = json.loads(done.stdout)
    assert document["kind"] == "PodPlan"
    assert [(pod["name"], pod["state"], pod["startedAtS"]) for pod in document["pods"]] == [
        ("first", "finished", 0),
        ("second", "running", 3600),
        ("third", "refused", None),
    ]
    table = simulate(tmp_path, "--gpus", "L4", "--pods", str(pods)).stdout
    assert table.startswith("2 of 3 pods fit, built-in policy\n")
    assert "default/third: refused, this node offers no nvidia.com/gpu; did you mean nvidia.com/gpu.shared?" in table


def test_a_wrong_policy_is_wrong_input_without_a_traceback(tmp_path: Path) -> None:
    policy = tmp_path / "policy.yaml"
    policy.write_text("rules: []")
    done = simulate(tmp_path, "--policy", str(policy))
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"{policy}:1:1: ")
    assert "Traceback" not in done.stderr
