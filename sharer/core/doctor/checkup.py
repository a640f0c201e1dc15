"""What `sharer doctor` says: one line for each thing that was looked at, with what to do about it."""

from __future__ import annotations

from enum import StrEnum
from typing import ClassVar

from sharer.core.values import dataclass

OLDEST_KUBELET = (1, 27)  # pod resources are served from there on


class Level(StrEnum):
    """How it stands."""

    OK = "ok"
    WARN = "warn"  # it works, and something about it may surprise
    FAIL = "fail"  # it does not work
    UNKNOWN = "unknown"  # it could not be looked at


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One thing that was looked at."""

    name: str  # "NVIDIA driver"
    level: Level
    found: str  # what was seen, or why nothing was
    cure: str | None = None  # what to do; null: nothing is to be done


@dataclass(frozen=True, slots=True, kw_only=True)
class Doctor:
    """Everything that was looked at, in the order in which it should be cured."""

    kind: ClassVar[str] = "Doctor"
    node: str | None  # null: the cluster as a whole
    checks: tuple[Check, ...]

    def count(self, level: Level) -> int:
        """How many stand so."""
        return sum(check.level is level for check in self.checks)


def ok(name: str, found: str) -> Check:
    """Nothing is to be done."""
    return Check(name=name, level=Level.OK, found=found)


def warn(name: str, found: str, cure: str) -> Check:
    """It works, and something about it may surprise."""
    return Check(name=name, level=Level.WARN, found=found, cure=cure)


def fail(name: str, found: str, cure: str) -> Check:
    """It does not work."""
    return Check(name=name, level=Level.FAIL, found=found, cure=cure)


def unknown(name: str, found: str, cure: str | None = None) -> Check:
    """It could not be looked at."""
    return Check(name=name, level=Level.UNKNOWN, found=found, cure=cure)


def version_of(text: str | None) -> tuple[int, int] | None:
    """Major and minor; None: it is no version.

    >>> version_of("v1.34.2-gke.100"), version_of("1.27+"), version_of("dev"), version_of(None)
    ((1, 34), (1, 27), None, None)
    """
    parts = (text or "").removeprefix("v").split(".")
    digits = ["".join(letter for letter in part if letter.isdigit()) for part in parts[:2]]
    return (int(digits[0]), int(digits[1])) if len(digits) == 2 and all(digits) else None


def exit_status(checks: tuple[Check, ...]) -> int:
    """1: something does not work; 3: something could not be looked at; 0: neither. Warnings are no failure."""
    levels = {check.level for check in checks}
    return 1 if Level.FAIL in levels else 3 if Level.UNKNOWN in levels else 0
