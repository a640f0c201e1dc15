"""Not working out again what follows from the same objects: an idle node asks the core the same in every round."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from operator import is_
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


def are_same(before: Sequence[object], now: Sequence[object]) -> bool:
    """Whether each is the same object as before, and not only equal: telling that costs next to nothing."""
    return len(before) == len(now) and all(map(is_, before, now))


def while_unchanged(work_out: Callable[P, R]) -> Callable[P, R]:
    """Let a pure function give its last answer again, for as long as its arguments are the same objects.

    Not only equal ones: telling that would cost as much as the answer. So nobody may change what was passed or given;
    values are frozen, and mappings are replaced. For any thread: question and answer are kept as one.

    >>> @while_unchanged
    ... def double(numbers: tuple[int, ...]) -> list[int]:
    ...     return [2 * number for number in numbers]
    >>> numbers = (1, 2, 3)
    >>> double(numbers) is double(numbers)
    True
    """
    last: tuple[tuple[object, ...], R] | None = None

    @wraps(work_out)
    def answer(*args: P.args, **kwargs: P.kwargs) -> R:
        nonlocal last
        asked = (*args, *kwargs, *kwargs.values())
        known = last
        if known is not None and are_same(known[0], asked):
            return known[1]
        found = work_out(*args, **kwargs)
        last = (asked, found)
        return found

    return answer
