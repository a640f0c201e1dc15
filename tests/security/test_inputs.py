"""Every input has a size beyond which it is refused, in words, and costs no more than that size.

What grows here is of no size at all on the disk, or is sent for as long as somebody reads. Elsewhere: device lists in
test_lists.py, a request's head in test_http.py, floods of logs in test_logs.py, deep YAML in test_yaml_text.py.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import tempfile
import threading
from collections.abc import Iterator
from concurrent import futures
from pathlib import Path

import grpc
import pytest

from sharer.adapters.cgroups.containers import MAX_INNER_FOLDERS, CgroupTree
from sharer.adapters.checkpoint import Checkpoint
from sharer.adapters.injection.slice_specs import SliceSpecFiles
from sharer.adapters.injection.spec_dirs import OWN_PREFIX, SpecDirs
from sharer.adapters.kube.access import Kubeconfig
from sharer.adapters.kube.calls import PODS, Call
from sharer.adapters.kube.errors import ApiError
from sharer.adapters.kube.timings import KubeTimings
from sharer.adapters.kube.transport import Transport
from sharer.adapters.local_socket import FILE_NAME, ask
from sharer.adapters.mps import MpsStateFiles
from sharer.adapters.mps.control import Control, Executable
from sharer.adapters.mps.wanted import WantedFromAgent
from sharer.adapters.podresources import PodResources
from sharer.adapters.policy_memory import LastGoodPolicy
from sharer.adapters.policy_source import MountedPolicies
from sharer.adapters.processes import MAX_COMMAND, ProcFs
from sharer.core.errors import NodeError
from tests.fakes.cgroups import FakeCgroups
from tests.fakes.no_watch import NoWatch

ENDLESS_BYTES = 2**40  # more than any machine of ours could read
MIB = 2**20
UID, OTHER = "0e1f8a3b-0000-4000-8000-00000000000a", "0e1f8a3b-0000-4000-8000-00000000000b"
CONTAINER = "1" * 64


def make_endless(path: Path) -> Path:
    """A file of no content and of a length that nobody can read."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        file.truncate(ENDLESS_BYTES)
    return path


# -- files


def test_a_policy_is_no_longer_than_a_configmap_can_be(tmp_path: Path) -> None:
    with pytest.raises(NodeError, match="holds more than 1048576 bytes"):
        MountedPolicies(make_endless(tmp_path / "policy.yaml")).shelf()
    for key in "ab":
        (tmp_path / "keys").mkdir(exist_ok=True)
        (tmp_path / "keys" / key).write_bytes(b"#" * (MIB - 100))
    with pytest.raises(NodeError, match="holds more than 1048576 bytes"):
        MountedPolicies(tmp_path / "keys").shelf()


def test_a_last_good_policy_that_is_longer_than_any_is_damaged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    make_endless(tmp_path / "policy-last-good.yaml")
    assert LastGoodPolicy(tmp_path).last_good() is None
    assert "is damaged: set aside" in caplog.text


def test_a_checkpoint_beyond_all_measure_is_not_read(tmp_path: Path) -> None:
    make_endless(tmp_path / "checkpoint")
    with pytest.raises(NodeError, match="is larger than 67108864 bytes and is not read"):
        Checkpoint(tmp_path / "checkpoint", NoWatch()).read()


def test_a_cdi_spec_beyond_all_measure_is_refused_and_spoils_no_other(tmp_path: Path) -> None:
    endless = make_endless(tmp_path / "a.json")
    good = '{"cdiVersion": "0.5.0", "kind": "a/b", "devices": [{"name": "x", "containerEdits": {"env": ["A=b"]}}]}'
    (tmp_path / "b.json").write_text(good)
    names = SpecDirs(lambda: [tmp_path]).look()
    assert names.refused == {endless: "it is larger than 4194304 bytes"}
    assert set(names.nodes) == {"a/b=x"}


def test_a_spec_of_ours_that_somebody_made_endless_is_replaced(tmp_path: Path) -> None:
    path = make_endless(tmp_path / f"{OWN_PREFIX}GPU-a.json")
    files = SliceSpecFiles(lambda: [tmp_path])
    files.keep_only(["GPU-a::ts-0"])
    assert not path.exists()


def test_the_state_and_the_wishes_of_an_mps_daemon_have_a_size(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    make_endless(tmp_path / "nvidia.com_gpu" / "state.json")
    assert MpsStateFiles(tmp_path).read() == {}
    make_endless(tmp_path / "wanted.json")

    def silent() -> bytes:
        raise NodeError("nobody answers")

    assert WantedFromAgent(tmp_path, silent).read() is None


def test_a_command_line_is_read_as_far_as_it_is_shown(tmp_path: Path) -> None:
    """A process sets its own, and may make it as long as its memory is."""
    (tmp_path / "7").mkdir()
    (tmp_path / "7/cgroup").write_text(f"0::/kubepods/pod{UID}/{CONTAINER}\n")
    make_endless(tmp_path / "7/cmdline")
    found = ProcFs(tmp_path).identify(7)
    assert found is not None
    assert found.pods == ((UID, CONTAINER),)
    assert len(found.command or "") <= MAX_COMMAND


def test_a_container_that_makes_cgroups_without_end_costs_no_other_its_limits(tmp_path: Path) -> None:
    """One in the other until no path can name them, and side by side."""
    tree = FakeCgroups(tmp_path)
    for uid in (UID, OTHER):
        tree.add_pod(uid)
    deep, wide = (tree.add_container(uid, CONTAINER) for uid in (UID, OTHER))
    for leaf in (deep, wide):
        (leaf / "cgroup.procs").write_text("")
    with contextlib.chdir(deep):
        for _ in range(40):
            name = "x" * 200
            Path(name).mkdir()
            Path(name, "cgroup.events").write_text("populated 1\n")
            Path(name, "cgroup.procs").touch()
            os.chdir(name)
        for number in range(MAX_INNER_FOLDERS + 1):
            (wide / str(number)).mkdir()
    found = CgroupTree(tree.root, tree.proc_root, NoWatch()).read()
    shutil.rmtree(deep)
    assert [len(found[uid].containers) for uid in (UID, OTHER)] == [1, 1]
    assert (found[UID].containers[0].inner or "").startswith(f"{deep}/xxx")
    assert found[OTHER].containers[0].inner is None


# -- sockets


def test_a_list_of_pods_beyond_all_measure_is_no_news() -> None:
    def answer(_request: bytes, _context: grpc.ServicerContext) -> bytes:
        return bytes(64 * MIB + 1)

    handler = grpc.method_handlers_generic_handler(
        "v1.PodResourcesLister", {"List": grpc.unary_unary_rpc_method_handler(answer)}
    )
    with tempfile.TemporaryDirectory(prefix="s-") as folder, futures.ThreadPoolExecutor(2) as executor:
        server = grpc.server(executor, options=[("grpc.max_send_message_length", -1)])
        server.add_generic_rpc_handlers((handler,))
        server.add_insecure_port(f"unix:{folder}/s")
        server.start()
        podresources = PodResources(Path(folder, "s"), deadline_s=10)
        with pytest.raises(NodeError, match="larger than max"):
            podresources.read()
        server.stop(0).wait()


def test_a_report_beyond_all_measure_is_given_up() -> None:
    with (
        tempfile.TemporaryDirectory(prefix="s-") as folder,
        endless_talker(Path(folder) / FILE_NAME),
        pytest.raises(NodeError, match="its answer is longer than 67108864 bytes"),
    ):
        ask(Path(folder))


def test_an_answer_of_the_api_server_beyond_all_measure_is_given_up(tmp_path: Path) -> None:
    head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 1000000000000\r\n\r\n"
    with endless_talker(("127.0.0.1", 0), head) as port:
        transport = Transport(kubeconfig(tmp_path, port), KubeTimings(), "test")
        with pytest.raises(ApiError, match="an answer of more than 67108864 bytes"):
            transport.send(Call(verb="list", resource=PODS))
        transport.close()


def test_an_event_of_the_api_server_beyond_all_measure_ends_the_watch(tmp_path: Path) -> None:
    head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 1000000000000\r\n\r\n"
    with endless_talker(("127.0.0.1", 0), head) as port:
        transport = Transport(kubeconfig(tmp_path, port), KubeTimings(), "test")
        stream = transport.open(Call(verb="watch", resource=PODS), silence_s=10)
        with pytest.raises(ApiError, match="an event of more than 8388608 bytes"):
            list(stream.lines())
        stream.close()
        transport.close()


def test_a_control_daemon_that_never_stops_talking_is_given_up(tmp_path: Path) -> None:
    """A container has the pipe directory, and may have put its own socket in the daemon's place."""
    talker = tmp_path / "nvidia-cuda-mps-control"
    talker.write_text("#!/bin/sh\nexec yes\n")
    talker.chmod(0o755)
    control = Control(Executable(talker), tmp_path, tmp_path, answer_s=10)
    with pytest.raises(NodeError, match="'ps' was answered with more than 1048576 bytes"):
        control.say("ps")


def kubeconfig(folder: Path, port: int) -> Kubeconfig:
    path = folder / "kubeconfig"
    path.write_text(
        "{apiVersion: v1, kind: Config, current-context: c, contexts: [{name: c, context: {cluster: c, user: u}}],"
        f' clusters: [{{name: c, cluster: {{server: "http://127.0.0.1:{port}"}}}}], users: [{{name: u, user: {{}}}}]}}'
    )
    return Kubeconfig(path=path)


@contextlib.contextmanager
def endless_talker(address: Path | tuple[str, int], head: bytes = b"") -> Iterator[int]:
    """Sends zeros to whoever connects until that one has had enough. Yields its port."""
    with socket.socket(socket.AF_UNIX if isinstance(address, Path) else socket.AF_INET) as listener:
        listener.bind(str(address) if isinstance(address, Path) else address)
        listener.listen()

        def talk() -> None:
            client, _ = listener.accept()
            with client, contextlib.suppress(OSError):
                client.sendall(head)
                while True:
                    client.sendall(bytes(MIB))

        talking = threading.Thread(target=talk)
        talking.start()
        name = listener.getsockname()
        yield name[1] if isinstance(name, tuple) else 0
        talking.join(10)
        assert not talking.is_alive()
