"""Directory changes are noticed at once where inotify helps, and on a timer in any case."""

from __future__ import annotations

import errno
import os
import queue
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from inotify_simple import Event, INotify, flags

from sharer.adapters.watch import CERTAIN, DirectoryWatch, Inotify

NEVER_S = 3600.0  # so long that only inotify can be why something was noticed
OFTEN_S = 0.02
PATIENCE_S = 10.0

Make = Callable[..., DirectoryWatch]


class Calls:
    """A subscriber that remembers its calls."""

    def __init__(self) -> None:
        self._calls: queue.SimpleQueue[None] = queue.SimpleQueue()

    def __call__(self) -> None:
        self._calls.put(None)

    def wait(self) -> None:
        self._calls.get(timeout=PATIENCE_S)

    def forget(self) -> None:
        while not self._calls.empty():
            self._calls.get_nowait()

    @property
    def none(self) -> bool:
        return self._calls.empty()


class RecordedInotify(INotify):  # type: ignore[misc]  # inotify_simple has no types
    """The real thing, which also tells what it watches."""

    def __init__(self) -> None:
        super().__init__()
        self.watched: queue.SimpleQueue[str] = queue.SimpleQueue()

    def add_watch(self, path: str, mask: int) -> int:
        watch: int = super().add_watch(path, mask)
        self.watched.put(path)
        return watch


def no_instance() -> Inotify:
    raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))


class NoWatchLeft(INotify):  # type: ignore[misc]  # inotify_simple has no types
    """An instance on a node whose watches are used up."""

    def add_watch(self, path: str, mask: int) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


class RefusedAtFirst(RecordedInotify):
    """An instance on a node whose watches are used up for a while."""

    refusals = 3

    def add_watch(self, path: str, mask: int) -> int:
        if self.refusals:
            self.refusals -= 1
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return super().add_watch(path, mask)


class CountedInotify(INotify):  # type: ignore[misc]  # inotify_simple has no types
    """The real thing, which also counts how often the watch has woken to read it, and to look for a directory."""

    reads = tries = 0

    def read(self, timeout: int) -> list[Event]:
        self.reads += 1
        events: list[Event] = super().read(timeout=timeout)
        return events

    def add_watch(self, path: str, mask: int) -> int:
        self.tries += 1
        watch: int = super().add_watch(path, mask)
        return watch


class Overflowing(INotify):  # type: ignore[misc]  # inotify_simple has no types
    """An instance that loses everything: its queue overflows at the first event."""

    def read(self, timeout: int) -> list[Event]:
        super().read(timeout=timeout)
        return [Event(wd=-1, mask=flags.Q_OVERFLOW, cookie=0, name="")]


@pytest.fixture
def directory() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="s-") as folder:
        yield Path(folder)


@pytest.fixture
def make() -> Iterator[Make]:
    made = []

    def make_watch(**arguments: object) -> DirectoryWatch:
        made.append(DirectoryWatch(**arguments))  # type: ignore[arg-type]  # passed through
        return made[-1]

    yield make_watch
    for watch in made:
        watch.close()


def subscribed(watch: DirectoryWatch, directory: Path) -> Calls:
    """A subscriber that has been told that its directory is watched now."""
    calls = Calls()
    watch.subscribe(str(directory), calls)
    calls.wait()
    calls.forget()
    return calls


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda d: (d / "new").touch(), id="created"),
        pytest.param(lambda d: (d / "old").unlink(), id="deleted"),
        pytest.param(lambda d: (d / "old").rename(d / "other"), id="renamed"),
        pytest.param(lambda d: (d / "old").write_text("more"), id="written"),
        pytest.param(lambda d: os.replace(d.with_suffix(".tmp"), d / "old"), id="replaced from outside"),
    ],
)
def test_a_change_is_noticed_at_once(make: Make, directory: Path, change: Callable[[Path], object]) -> None:
    (directory / "old").touch()
    outside = directory.with_suffix(".tmp")
    outside.touch()
    calls = subscribed(make(interval_s=NEVER_S), directory)
    change(directory)
    calls.wait()
    outside.unlink(missing_ok=True)


def test_what_changed_before_the_watch_stood_is_noticed(make: Make, directory: Path) -> None:
    calls = Calls()
    make(interval_s=NEVER_S).subscribe(str(directory), calls)
    calls.wait()


def test_every_subscriber_is_called_on_a_timer_too(make: Make, directory: Path) -> None:
    calls = subscribed(make(interval_s=OFTEN_S), directory)
    for _ in range(3):
        calls.wait()


def test_where_inotify_watches_everything_the_thread_wakes_for_the_rare_rounds_only(
    make: Make, directory: Path
) -> None:
    """Each wake-up of an idle process costs 0.15 to 0.3 ms, whatever it is for (measured)."""
    inotify = CountedInotify()
    reads: queue.SimpleQueue[int] = queue.SimpleQueue()
    make(open_inotify=lambda: inotify, interval_s=OFTEN_S).subscribe(str(directory), lambda: reads.put(inotify.reads))
    assert reads.get(timeout=PATIENCE_S) <= 1  # it is watched now
    first, *_, last = (reads.get(timeout=PATIENCE_S) for _ in range(5))  # as it was in each round
    assert last - first <= 4 + 1


def test_for_a_missing_directory_nobody_is_called_in_the_frequent_rounds(make: Make, directory: Path) -> None:
    inotify = CountedInotify()
    calls = Calls()
    make(open_inotify=lambda: inotify, interval_s=OFTEN_S).subscribe(str(directory / "late"), calls)
    calls.wait()
    assert inotify.tries >= CERTAIN  # it was looked for all the while


@pytest.mark.parametrize("open_inotify", [no_instance, NoWatchLeft], ids=["no instance left", "no watch left"])
def test_without_inotify_changes_are_noticed_on_the_timer_with_one_warning(
    make: Make, directory: Path, open_inotify: Callable[[], Inotify], caplog: pytest.LogCaptureFixture
) -> None:
    """P10: the limits are the node's, other programs use them up, and the sysctl to raise is named once."""
    watch = make(open_inotify=open_inotify, interval_s=OFTEN_S)
    first, second = Calls(), Calls()
    watch.subscribe(str(directory), first)
    watch.subscribe(str(directory.parent), second)
    for _ in range(3):
        first.wait()
        second.wait()
    warnings = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert len(warnings) == 1
    assert "fs.inotify.max_user_" in warnings[0]
    assert "max_user_instances" in warnings[0]


def test_after_an_overflow_of_the_queue_everybody_looks_for_themselves(make: Make, directory: Path) -> None:
    """Neighbour of P10: the queue has a limit of the node's too; whose news were lost nobody can tell."""
    watch = make(open_inotify=Overflowing, interval_s=NEVER_S)
    folders = [directory / name for name in "ab"]
    for folder in folders:
        folder.mkdir()
    changed, quiet = (subscribed(watch, folder) for folder in folders)
    (folders[0] / "new").touch()
    changed.wait()
    quiet.wait()


def test_a_watch_that_could_not_be_had_is_had_when_there_is_one_again(make: Make, directory: Path) -> None:
    """Neighbour of P10: the sysctl was raised, or another program ended. No restart of the agent is needed."""
    inotify = RefusedAtFirst()
    watch = make(open_inotify=lambda: inotify, interval_s=OFTEN_S)
    watch.subscribe(str(directory), Calls())
    assert inotify.watched.get(timeout=PATIENCE_S) == str(directory)
    assert inotify.refusals == 0


def test_one_inotify_instance_serves_every_directory(make: Make, directory: Path) -> None:
    """P10: one instance at most for the whole process."""
    opened: list[Inotify] = []

    def open_inotify() -> Inotify:
        opened.append(INotify())
        return opened[-1]

    watch = make(open_inotify=open_inotify, interval_s=NEVER_S)
    folders = [directory / name for name in "abc"]
    for folder in folders:
        folder.mkdir()
    calls = [subscribed(watch, folder) for folder in folders]
    (folders[1] / "new").touch()
    calls[1].wait()
    assert len(opened) == 1
    assert calls[0].none
    assert calls[2].none


def test_a_missing_directory_is_watched_when_it_appears_and_again_when_it_is_replaced(
    make: Make, directory: Path, caplog: pytest.LogCaptureFixture
) -> None:
    inotify = RecordedInotify()
    late = directory / "late"
    watch = make(open_inotify=lambda: inotify, interval_s=OFTEN_S)
    watch.subscribe(str(late), Calls())
    late.mkdir()
    assert inotify.watched.get(timeout=PATIENCE_S) == str(late)
    late.rename(directory / "aside")
    late.mkdir()
    assert inotify.watched.get(timeout=PATIENCE_S) == str(late)
    late.rmdir()
    late.mkdir()
    assert inotify.watched.get(timeout=PATIENCE_S) == str(late)
    assert not caplog.records


def test_two_names_of_one_directory_are_both_told(make: Make, directory: Path) -> None:
    real, link = directory / "real", directory / "link"
    real.mkdir()
    link.symlink_to(real)
    watch = make(interval_s=NEVER_S)
    by_real, by_link = subscribed(watch, real), subscribed(watch, link)
    (real / "new").touch()
    by_real.wait()
    by_link.wait()


def test_an_ended_subscription_is_silent_and_the_others_go_on(make: Make, directory: Path) -> None:
    watch = make(interval_s=NEVER_S)
    calls = subscribed(watch, directory)
    ended = Calls()
    unsubscribe = watch.subscribe(str(directory), ended)
    unsubscribe()
    (directory / "new").touch()
    calls.wait()
    assert ended.none


def test_a_subscriber_that_fails_does_not_silence_the_others(
    make: Make, directory: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def fail() -> None:
        raise ValueError("broken subscriber")

    watch = make(interval_s=OFTEN_S)
    watch.subscribe(str(directory), fail)
    calls = subscribed(watch, directory)
    calls.wait()
    assert "broken subscriber" in caplog.text


def watch_threads() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name == "sharer-watch"}


def test_a_closed_watch_calls_nobody_and_leaves_no_thread(directory: Path) -> None:
    before = watch_threads()  # of other tests in this process
    watch = DirectoryWatch(interval_s=NEVER_S)
    calls = subscribed(watch, directory)
    watch.close()
    watch.close()
    (directory / "new").touch()
    assert calls.none
    assert watch_threads() <= before
    end = watch.subscribe(str(directory), calls)  # as a thread does that has not heard of the end
    (directory / "newer").touch()
    assert calls.none
    assert watch_threads() <= before
    end()


def wait_until_it_joins(thread: threading.Thread) -> None:
    """Until a thread waits for the end of another: then it has said that there is to be one."""
    end_s = time.monotonic() + 30
    while True:
        innermost = traceback.extract_stack(sys._current_frames().get(thread.ident or 0))
        if any(frame.name == "join" and frame.filename == threading.__file__ for frame in innermost):
            return
        assert time.monotonic() < end_s
        thread.join(0.01)


def test_a_subscriber_that_subscribes_while_the_watch_closes_does_no_harm(directory: Path) -> None:
    """The end of the agent, while a new folder is being found: no traceback in the log."""
    watch, called, closing = DirectoryWatch(interval_s=NEVER_S), threading.Event(), threading.Event()
    ends: list[Callable[[], None]] = []

    def subscribe_late() -> None:
        called.set()
        closing.wait(30)
        ends.append(watch.subscribe(str(directory / "below"), lambda: None))

    watch.subscribe(str(directory), subscribe_late)
    assert called.wait(30)
    closer = threading.Thread(target=watch.close)
    closer.start()
    wait_until_it_joins(closer)
    closing.set()
    closer.join(30)
    assert not closer.is_alive()
    assert ends
