"""Lists cut short for a sentence: a line of a log or a terminal holds some of 2,000 slices; the report has them all."""

from __future__ import annotations

from collections.abc import Sequence

SOME = 4  # names in one sentence
SENTENCES = 10  # of one kind in one line: a restart finds 250 pods at once


def some(names: Sequence[str], most: int = SOME, *, between: str = ", ") -> str:
    """The first names, and how many more there are.

    >>> some(["a", "b", "c"], 2)
    'a, b and 1 more'
    """
    shown = between.join(names[:most])
    return shown if len(names) <= most else f"{shown} and {len(names) - most} more"


def some_sentences(sentences: Sequence[str], most: int = SENTENCES) -> list[str]:
    """The first sentences, and one that says how many more there are.

    >>> some_sentences(["a holds 1", "b holds 2", "c holds 3"], 1)
    ['a holds 1', 'and 2 more like this, which `sharer report` tells']
    """
    rest = len(sentences) - most
    return [*sentences[:most], *([f"and {rest} more like this, which `sharer report` tells"] if rest > 0 else [])]
