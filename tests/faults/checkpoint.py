"""What happens to the kubelet's checkpoint file behind its back."""

from __future__ import annotations

from pathlib import Path

from tests.faults.steps import CheckpointHarm


def content(path: Path) -> bytes:
    """What it says; empty: there is none."""
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return b""


def harm(path: Path, how: CheckpointHarm, earlier: bytes) -> bytes:
    """Let it happen. Returns what the file said until now. `earlier`: what it said at another moment."""
    now = content(path)
    match how:
        case CheckpointHarm.LOST:
            path.unlink(missing_ok=True)
        case CheckpointHarm.DAMAGED:
            _replace(path, now[: len(now) // 2])
        case CheckpointHarm.STALE:
            _replace(path, earlier)
    return now


def _replace(path: Path, text: bytes) -> None:
    """As a restored backup would: another file under the name."""
    new = path.with_name(".harmed")
    new.write_bytes(text)
    new.replace(path)
