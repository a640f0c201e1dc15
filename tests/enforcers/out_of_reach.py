"""For enforcers that must not reach for anything outside."""

from __future__ import annotations

from typing import Any

from sharer.core.enforcer import Reach


class _OutOfReach:
    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"{name} was asked for")


NOTHING = Reach(limits=_OutOfReach(), cgroups=_OutOfReach())
