"""A PID's pod is read from its cgroup, on every layout of cgroups that runtimes make (runtime-facts §7)."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sharer.adapters.processes import ProcFs
from sharer.core.errors import NodeError
from sharer.core.ports.holders import ProcessIdentity

UID = "6a9f3b1e-4f0d-4d64-9d0a-1b6a3f9d8c11"
BARS = UID.replace("-", "_")
INNER = "11111111-2222-3333-4444-555555555555"
HASH = "0123456789abcdef0123456789abcdef"
ID = "c" * 64


def proc(root: Path, pid: int, **files: bytes | str) -> ProcFs:
    folder = root / str(pid)
    folder.mkdir(parents=True)
    for name, content in files.items():
        (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    return ProcFs(root)


@pytest.mark.parametrize(
    ("path", "pods"),
    [
        # The cgroupfs driver.
        (f"/kubepods/pod{UID}/{ID}", [(UID, ID)]),
        (f"/kubepods/burstable/pod{UID}/{ID}", [(UID, ID)]),
        (f"/kubepods/besteffort/pod{HASH}/{ID}", [(HASH, ID)]),  # a static pod
        # The systemd driver, with containerd, CRI-O and docker.
        (f"/kubepods.slice/kubepods-pod{BARS}.slice/cri-containerd-{ID}.scope", [(UID, ID)]),
        (f"/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{BARS}.slice/crio-{ID}.scope", [(UID, ID)]),
        (f"/kubepods.slice/kubepods-pod{HASH}.slice/docker-{ID}.scope", [(HASH, ID)]),
        # crun's child, CRI-O's monitor, a pod's own processes.
        (f"/kubepods.slice/kubepods-pod{BARS}.slice/crio-{ID}.scope/container", [(UID, ID)]),
        (f"/kubepods.slice/kubepods-pod{BARS}.slice/crio-conmon-{ID}.scope", [(UID, None)]),
        (f"/kubepods/burstable/pod{UID}", [(UID, None)]),
        # Below another root of the kubelet's.
        (f"/kubelet/kubepods/burstable/pod{UID}/{ID}", [(UID, ID)]),
        (
            "/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-burstable.slice"
            f"/kubelet-kubepods-burstable-pod{BARS}.slice/cri-containerd-{ID}.scope",
            [(UID, ID)],
        ),
        # The runtime's driver is not the kubelet's.
        (f"/system.slice/containerd.service/kubepods-burstable-pod{BARS}.slice:cri-containerd:{ID}", [(UID, ID)]),
        (f"/system.slice/crio.service/kubepods-pod{BARS}.slice:crio:{ID}", [(UID, ID)]),
        # Seen from a private cgroup namespace: elsewhere, and beside us.
        (f"/../../../besteffort/pod{UID}/{ID}", [(UID, ID)]),
        (f"/../../pod{UID}/{ID}", [(UID, ID)]),
        (f"/../cri-containerd-{ID}.scope", []),
        # A cluster inside a pod.
        (
            f"/kubepods/burstable/pod{UID}/{ID}/kubelet/kubepods/besteffort/pod{INNER}/{'d' * 64}",
            [(UID, ID), (INNER, "d" * 64)],
        ),
        # The cgroup was removed under a zombie.
        (f"/kubepods/burstable/pod{UID}/{ID} (deleted)", [(UID, ID)]),
        # The host's own, and what only looks like a pod.
        ("/", []),
        ("/system.slice/ssh.service", []),
        (f"/docker/{ID}", []),
        (f"/machine.slice/libpod-{ID}.scope", []),
        (f"/user.slice/podcast-{UID}.service", []),
        (f"/kubepods/burstable/pod{UID}x/{ID}", []),
    ],
)  # fmt: skip
@pytest.mark.parametrize("lines", ["0::{}\n", "12:pids:{0}\n11:memory:{0}\n1:name=systemd:{0}\n0::{0}\n"])
def test_a_process_belongs_to_the_pods_in_its_path(
    tmp_path: Path, path: str, pods: list[tuple[str, str | None]], lines: str
) -> None:
    table = proc(tmp_path, 7, cgroup=lines.format(path), cmdline="python\0train.py\0")
    assert table.identify(7) == ProcessIdentity(pods=tuple(pods), command="python")


def test_one_hierarchy_that_names_the_pod_is_enough(tmp_path: Path) -> None:
    """A process_api or a runtime may put one controller elsewhere, and the unified tree may be empty."""
    lines = f"9:name=systemd:/\n4:memory:/elsewhere\n3:cpu,cpuacct:/kubepods/pod{UID}/{ID}\n0::/\n"
    found = proc(tmp_path, 7, cgroup=lines, cmdline="x").identify(7)
    assert found is not None
    assert found.pods == ((UID, ID),)


@pytest.mark.parametrize(
    ("cmdline", "comm", "command"),
    [
        (b"/usr/bin/nvidia-cuda-mps-server\0", "nvidia-cuda-mps", "nvidia-cuda-mps-server"),
        (b"python3\0-c\0pass\0", "python3", "python3"),
        (b"", "python3\n", "python3"),  # a zombie
        (b"", "", None),
        (b"evil\x1b[2J\nname\0", "x", "evil?[2J?name"),
        (b"\xff\xfe\0", "x", "\ufffd\ufffd"),
        (b"n" * 1000, "x", "n" * 64),
    ],
)
def test_a_program_is_named_in_a_way_that_can_be_shown(
    tmp_path: Path, cmdline: bytes, comm: str, command: str | None
) -> None:
    found = proc(tmp_path, 7, cgroup="0::/\n", cmdline=cmdline, comm=comm).identify(7)
    assert found == ProcessIdentity(pods=(), command=command)


def test_a_process_that_has_ended_is_nobodys(tmp_path: Path) -> None:
    assert ProcFs(tmp_path).identify(7) is None


def test_a_table_that_cannot_be_read_is_an_error_and_not_another_namespace(tmp_path: Path) -> None:
    """Nobody is called foreign or unknown for it: no news is not "no pods"."""
    (tmp_path / "2/comm").mkdir(parents=True)
    with pytest.raises(NodeError, match="process 2 cannot be looked at: Is a directory"):
        ProcFs(tmp_path).sees_the_host()


def test_a_process_that_cannot_be_read_is_an_error_and_not_the_hosts(tmp_path: Path) -> None:
    (tmp_path / "7/cgroup").mkdir(parents=True)
    with pytest.raises(NodeError, match="process 7 cannot be looked at: Is a directory"):
        ProcFs(tmp_path).identify(7)


def test_pids_are_the_hosts_only_where_the_kernels_own_threads_are_seen(tmp_path: Path) -> None:
    assert not ProcFs(tmp_path).sees_the_host()
    assert proc(tmp_path, 2, comm="kthreadd\n").sees_the_host()
    assert not proc(tmp_path / "other", 2, comm="bash\n").sees_the_host()


def test_a_real_process_is_identified() -> None:
    found = ProcFs(Path("/proc")).identify(os.getpid())
    assert found is not None
    assert found.command is not None


@given(st.text(max_size=300))
def test_whatever_is_in_a_cgroup_file_it_is_read(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    found = proc(tmp_path_factory.mktemp("p"), 7, cgroup=text, cmdline=text).identify(7)
    assert found is not None
