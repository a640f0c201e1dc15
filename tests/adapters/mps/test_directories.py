from __future__ import annotations

import os
import socket
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from sharer.adapters.mps import MpsDirectories, directories
from sharer.core.errors import NodeError

NAME = "nvidia.com_gpu.mps"


@pytest.fixture
def root() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="s-", dir="/tmp") as folder:
        yield Path(folder)


def modes(*paths: Path) -> list[int]:
    return [stat.S_IMODE(path.stat().st_mode) for path in paths]


def test_everybody_can_enter_them_whatever_the_umask(root: Path) -> None:
    before = os.umask(0o077)
    try:
        pipe, log = directories.make(root / "mps" / NAME, owner=None)
    finally:
        os.umask(before)
    assert modes(root / "mps", pipe.parent, pipe, log) == [0o755] * 4


def test_they_can_be_entered_also_if_the_lock_of_sharer_mps_has_made_what_is_above_them(root: Path) -> None:
    """The server of one user would end at once, over and over."""
    (root / "mps").mkdir(mode=0o750)
    directories.make(root / "mps" / NAME, owner=None)
    assert modes(root / "mps") == [0o755]


def test_what_is_above_and_closed_is_told_for_the_server_of_another_user_who_cannot_pass(root: Path) -> None:
    root.chmod(0o700)
    directories.make(root / "mps" / NAME, owner=0)
    with pytest.raises(NodeError, match=f"cannot enter {root}: chmod"):
        directories.make(root / "mps" / NAME, owner=1000)


def test_they_are_made_once_and_stay_the_same_directories(root: Path) -> None:
    """Running containers hold them by bind mounts."""
    pipe, _ = directories.make(root / NAME, owner=None)
    inode = pipe.stat().st_ino
    (pipe / "namespace").mkdir()
    with socket.socket(socket.AF_UNIX) as old:
        old.bind(str(pipe / "namespace/control"))
    (pipe / "nvidia-cuda-mps-control.pid").write_text("1")
    directories.clear(pipe)
    directories.make(root / NAME, owner=None)
    assert pipe.stat().st_ino == inode
    assert [str(path.relative_to(pipe)) for path in pipe.rglob("*")] == ["namespace"]


@pytest.mark.parametrize("name", ["pipe", "log"])
def test_a_link_in_their_place_is_not_followed(root: Path, name: str) -> None:
    (root / NAME).mkdir()
    (root / "elsewhere").mkdir(mode=0o700)
    (root / NAME / name).symlink_to(root / "elsewhere")
    with pytest.raises(NodeError, match="symbolic link"):
        directories.make(root / NAME, owner=None)
    assert modes(root / "elsewhere") == [0o700]


def test_links_among_what_is_cleared_are_removed_and_not_followed(root: Path) -> None:
    pipe, _ = directories.make(root / NAME, owner=None)
    (root / "elsewhere").mkdir()
    (root / "elsewhere/file").touch()
    (pipe / "link").symlink_to(root / "elsewhere/file")
    (pipe / "folder").symlink_to(root / "elsewhere")
    directories.clear(pipe)
    assert (root / "elsewhere/file").exists()
    assert not list(pipe.iterdir())


@pytest.mark.parametrize(
    ("free", "free_files", "flags", "why"), [(0, 9, 0, "full"), (9, 0, 0, "full"), (9, 9, os.ST_RDONLY, "read-only")]
)
def test_where_the_supervisor_cannot_write_its_state_the_agent_says_why(
    root: Path, free: int, free_files: int, flags: int, why: str
) -> None:
    """P40: a directory that is read-only, or on a full disk. All that the agent can see else is silence."""
    disk = os.statvfs_result((4096, 4096, 100, free, 0, 100, free_files, 0, flags, 255))
    with pytest.raises(NodeError, match=f"its file system is {why}"):
        MpsDirectories(root, statvfs=lambda _: disk).pipe(NAME)
    assert MpsDirectories(root).pipe(NAME) == str(root / NAME / "pipe")


def test_a_file_in_the_way_is_named(root: Path) -> None:
    (root / NAME).write_text("")
    with pytest.raises(NodeError, match=NAME):
        directories.make(root / NAME, owner=None)


def test_a_socket_whose_path_would_be_too_long_is_said_before_a_daemon_fails_for_it(root: Path) -> None:
    """Neighbour of P40: a path of the operator's own."""
    with pytest.raises(NodeError, match="107 bytes"):
        directories.make(root / ("x" * 100), owner=None)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give directories away")
def test_the_logs_belong_to_the_one_user_that_is_served(root: Path) -> None:
    pipe, log = directories.make(root / NAME, owner=1000)
    assert (pipe.stat().st_uid, log.stat().st_uid) == (0, 1000)
