"""What the kubelet link does to the kubelet's directory, and what it never does."""

from __future__ import annotations

import os
import socket
import tempfile
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sharer.adapters.kubelet import GrpcKubeletLink, sockets
from sharer.adapters.watch import DirectoryWatch
from sharer.core.errors import InputError
from sharer.core.values import replace
from tests.fakes.no_descriptor_left import no_descriptor_left


@pytest.fixture
def directory() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="s-") as folder:
        yield Path(folder)


def dead_socket(path: Path) -> Path:
    """A socket file as a killed process leaves it."""
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(str(path))
        bound.listen()
    return path


def listener(path: Path) -> socket.socket:
    bound = socket.socket(socket.AF_UNIX)
    bound.bind(str(path))
    bound.listen()
    return bound


def test_only_dead_sockets_with_our_name_are_removed_at_start(directory: Path) -> None:
    """Contract rows 16 and 17: a stale socket of ours goes; nobody else's file is touched, dead or alive."""
    (directory / "kubelet_internal_checkpoint").write_text("{}")
    (directory / sockets.new_name("a/file")).write_text("a regular file with a socket's name is not ours")
    (directory / "folder").mkdir()
    dead_socket(directory / "nvidia-gpu.sock")
    dead_socket(directory / "sharer.sock")
    dead_socket(directory / "kubelet.sock")
    dead_socket(directory / "folder" / sockets.new_name("a/b"))
    with listener(directory / sockets.new_name("a/serving")):
        before = sorted(os.walk(directory))
        ours = dead_socket(directory / sockets.new_name("nvidia.com/gpu.shared"))
        watch = DirectoryWatch()
        link = GrpcKubeletLink(directory, watch)
        assert not ours.exists()
        assert sorted(os.walk(directory)) == before
        link.stop()
        watch.close()
        assert sorted(os.walk(directory)) == before


@given(resource=st.from_regex(r"[a-z.]{1,60}/[A-Za-z0-9][-A-Za-z0-9_.]{0,62}", fullmatch=True))
def test_a_socket_name_is_new_each_time_is_recognised_and_fits(resource: str) -> None:
    """P11: unique to this process and this start."""
    names = {sockets.new_name(resource) for _ in range(3)}
    assert len(names) == 3
    deepest = Path("/" + "d" * (107 - 1 - 1 - 45))
    sockets.check_directory(deepest)
    for name in names:
        assert "/" not in name
        assert len(os.fsencode(deepest / name)) <= 107
    with tempfile.TemporaryDirectory(prefix="s-") as folder:
        for name in names:
            dead_socket(Path(folder) / name)
        assert sockets.remove_leftovers(Path(folder)) == sorted(names)


def test_a_directory_too_deep_for_a_socket_is_refused_with_the_number_of_bytes(directory: Path) -> None:
    deep = directory / ("d" * 80)
    with pytest.raises(InputError, match=r"--device-plugin-dir .*d is \d+ bytes too long.*at most 107"):
        sockets.check_directory(deep)


def test_a_socket_file_is_told_from_a_later_one_of_the_same_name(directory: Path) -> None:
    """Contract row 11: even if it was given the same inode number."""
    path = dead_socket(directory / "kubelet.sock")
    first = sockets.identify(path)
    path.unlink()
    assert first is not None
    assert sockets.identify(path) is None
    clock = directory / "clock"
    clock.touch()
    while clock.stat().st_ctime_ns <= first.changed_ns:  # a file system's clock ticks every few milliseconds
        clock.touch()
    dead_socket(path)
    again = sockets.identify(path)
    assert again is not None
    assert replace(again, inode=first.inode) != first


def test_a_socket_file_without_a_listener_is_not_a_kubelet(directory: Path) -> None:
    """Contract §17.12: the file outlives a killed kubelet."""
    path = directory / "kubelet.sock"
    assert sockets.listening(path) is None
    dead_socket(path)
    assert sockets.listening(path) is None
    path.unlink()
    path.touch()
    assert sockets.listening(path) is None
    path.unlink()
    with listener(path):
        assert sockets.listening(path) == sockets.identify(path)


def test_a_socket_serves_grpc_when_the_settings_of_http2_come_from_it(directory: Path) -> None:
    """Pitfall 6: a connection alone says nothing."""
    path = directory / "own.sock"
    server = grpc.server(ThreadPoolExecutor(1))
    server.add_insecure_port(f"unix:{path}")
    server.start()
    assert sockets.serves_grpc(path, 10)
    server.stop(None).wait()
    assert not sockets.serves_grpc(path, 10)


def test_a_socket_on_which_nobody_speaks_or_somebody_else_does_not_serve_grpc(directory: Path) -> None:
    path = directory / "own.sock"
    with socket.socket(socket.AF_UNIX) as mute:
        mute.bind(str(path))
        mute.listen()
        assert not sockets.serves_grpc(path, 0.01)
        mute.accept()[0].close()

        def greet() -> None:
            with mute.accept()[0] as caller:
                caller.sendall(b"220 a mail server")

        talker = threading.Thread(target=greet)
        talker.start()
        assert not sockets.serves_grpc(path, 10)
        talker.join()


def test_a_kubelet_that_cannot_be_looked_for_is_not_seen_and_ends_nothing(directory: Path) -> None:
    """Neighbour of P09: the thread that looks would end, and its resource would never be registered again."""
    path = directory / "kubelet.sock"
    with listener(path):
        with no_descriptor_left():
            assert sockets.listening(path) is None
        assert sockets.listening(path) == sockets.identify(path)
