"""Few combinations in which every pair of choices occurs."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator, Mapping, Sequence

Choice = Mapping[str, object]


def pairwise(
    factors: Mapping[str, Sequence[object]], is_allowed: Callable[[Choice], bool] = lambda choice: True
) -> list[Choice]:
    """Combinations so that each pair of values occurs in one that is allowed; a pair for which none is found does not.

    The same ones each time.
    """
    chance = random.Random(0)
    names = list(factors)
    missing = set(_pairs(factors))
    found: list[Choice] = []
    barren = 0
    while missing and barren < 300:
        best: Choice | None = None
        best_new: set[tuple[tuple[str, object], tuple[str, object]]] = set()
        wanted = dict(chance.choice(sorted(missing, key=repr)))
        for _ in range(40):
            choice = {name: wanted.get(name, chance.choice(factors[name])) for name in names}
            if is_allowed(choice):
                new = missing & set(itertools.combinations(tuple(choice.items()), 2))
                if len(new) > len(best_new):
                    best, best_new = choice, new
        if best is None:
            barren += 1
            continue
        found.append(best)
        missing -= best_new
    return found


def _pairs(
    factors: Mapping[str, Sequence[object]],
) -> Iterator[tuple[tuple[str, object], tuple[str, object]]]:
    for one, other in itertools.combinations(factors, 2):
        for left, right in itertools.product(factors[one], factors[other]):
            yield (one, left), (other, right)
