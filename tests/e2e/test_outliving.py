"""What must survive the agent's death and a reboot, and how it ends when it is told to (kubelet-contract §7, §10)."""

from __future__ import annotations

import shutil
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from sharer.simulation.kubelet import KubeletSettings, Phase
from sharer.simulation.steering import EVERY_FUNCTION
from tests.e2e.conftest import MakeNode
from tests.e2e.gpus import GPU, A, B
from tests.e2e.node import Node
from tests.e2e.process import ENDS_S


@pytest.mark.parametrize("injection", ["cdi", "device-nodes", "volume-mounts"])
def test_what_an_old_answer_names_is_there_before_the_first_list_after_a_reboot(
    make_node: MakeNode, injection: str
) -> None:
    """Contract row 38, pitfall 36: SIGKILL, every tmpfs lost, and the kubelet uses the answer that it has stored."""
    node = make_node(A, B, settings=KubeletSettings(podresources_lead_s=0, sources_ready_after_s=None))
    node.write_driver_spec([A, B])
    node.kubelet.start()
    first = node.start_agent(injection=injection)
    node.wait_listed(8)
    before = node.kubelet.start_pod("train", {GPU: 1}).container()
    assert before.given is not None
    assert set(before.given.cdi_names) <= node.cdi_names()

    first.kill()
    shutil.rmtree(node.root / "run")
    node.run_cdi.mkdir(parents=True)
    node.kubelet.reboot()
    assert (set(before.given.cdi_names) <= node.cdi_names()) == (injection != "cdi")
    node.start_agent(injection=injection)
    node.wait_listed(8)
    assert set(before.given.cdi_names) <= node.cdi_names()
    assert [path.name for path in node.run_cdi.iterdir() if changed_s(path) > node.lists()[0].at_s] == []
    assert all(node.on_host(device.host_path).is_char_device() for device in before.given.devices)

    node.kubelet.sources_become_ready()
    node.kubelet.wait_for(lambda: node.kubelet.sources_ready)
    after = node.kubelet.sync_pod("train")
    assert (after.phase, after.container().starts) == (Phase.RUNNING, 2)
    assert after.container().given == before.given


def test_specs_that_pods_hold_stay_when_the_agent_stops(node: Node) -> None:
    """Pitfall 36: a container restarts while we are away."""
    node.write_driver_spec([A, B])
    agent = node.start_agent(injection="cdi")
    node.wait_listed(8)
    given = node.kubelet.start_pod("train", {GPU: 1}).container().given
    assert given is not None
    agent.terminate()
    assert set(given.cdi_names) <= node.cdi_names()


def test_told_to_stop_it_ends_its_streams_and_sockets_and_registers_no_more(node: Node) -> None:
    """Contract row 40, pitfall 47: within 5 s, and no list says first that everything is Unhealthy."""
    agent = node.start_agent()
    node.wait_listed(8)
    node.kubelet.start_pod("train", {GPU: 1})
    took_s = agent.terminate()
    assert took_s < 5
    node.kubelet.wait_stream(GPU, lambda stream: not stream.live)
    assert node.our_sockets() == []
    assert len(node.lists()) == 1
    assert len(node.kubelet.register_calls()) == 1
    assert node.kubelet.pod("train").phase is Phase.RUNNING


@pytest.mark.parametrize("function", [EVERY_FUNCTION, "nvmlShutdown"])
def test_a_driver_that_hangs_does_not_keep_it_from_stopping(node: Node, function: str) -> None:
    """Contract row 40: whatever NVML does."""
    agent = node.start_agent()
    node.wait_listed(8)
    looks = node.gpus.calls("nvmlDeviceGetCount_v2")
    node.gpus.hang(function)
    if function == EVERY_FUNCTION:
        node.gpus.wait_for_calls("nvmlDeviceGetCount_v2", looks + 1)  # the agent waits for it now
    assert agent.terminate() < ENDS_S
    assert node.our_sockets() == []


@pytest.fixture
def others(node: Node) -> Iterator[list[Path]]:
    """What others have in the directory: live sockets (one with a name like ours), a dead one, files, a folder."""
    names = ("nvidia-gpu.sock", "sharer-gpu.shared-0123456789ab.sock", "sharer.sock", "dead.sock")
    files = ("kubelet_internal_checkpoint", "sharer-gpu.shared-ba9876543210.sock", "DEPRECATION")
    (node.directory / "sub").mkdir()
    with ExitStack() as closing:
        for name in (*names, "sub/own.sock"):
            listener = closing.enter_context(socket.socket(socket.AF_UNIX))
            listener.bind(str(node.directory / name))
            if name != "dead.sock":
                listener.listen()
        for name in files:
            if not (node.directory / name).exists():
                (node.directory / name).write_text("{}")
        yield [node.directory / name for name in (*names, "sub", "sub/own.sock", *files[1:])]


def test_nothing_of_others_in_the_directory_is_touched(node: Node, others: list[Path]) -> None:
    """Contract rows 16 and 17, pitfalls 13 and 14: over two lives and two ends. A socket of ours that is dead goes."""
    before = [(path.lstat().st_ino, path.lstat().st_ctime_ns) for path in others]
    killed = node.start_agent()
    node.wait_listed(8)
    killed.kill()
    node.kubelet.wait_stream(GPU, lambda stream: not stream.live)
    left = node.kubelet.register_calls()[0].endpoint
    assert left in node.our_sockets()
    stopped = node.start_agent()
    node.kubelet.wait_registered(GPU, 2)
    node.wait_listed(8)
    assert left not in node.our_sockets()
    stopped.terminate()
    node.kubelet.wait_stream(GPU, lambda stream: not stream.live)
    assert [(path.lstat().st_ino, path.lstat().st_ctime_ns) for path in others] == before
    assert set(node.directory.iterdir()) - {*others, node.directory / "sub"} == {
        node.kubelet.socket,
        node.kubelet.checkpoint,
    }


def changed_s(path: Path) -> float:
    """When a file was last changed, on the kubelet's clock."""
    return time.monotonic() - time.time() + path.stat().st_ctime
