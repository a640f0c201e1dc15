"""The enforcers that there are, and the words of policies."""

from __future__ import annotations

from sharer.core.policy.enforcers import COMPUTE_ENFORCERS, MEMORY_ENFORCERS, WATCHING
from sharer.enforcers import ENFORCERS, make_enforcers
from tests.enforcers.out_of_reach import NOTHING


def test_they_are_registered_in_the_order_of_their_strength_under_the_words_of_policies() -> None:
    names = [enforcer.name for enforcer in make_enforcers(NOTHING)]
    assert names == [name for name in MEMORY_ENFORCERS if name in names]
    assert len(names) == len(ENFORCERS)
    assert {*COMPUTE_ENFORCERS, *WATCHING} <= {*MEMORY_ENFORCERS}


def test_each_says_what_escapes_it() -> None:
    escapes = {enforcer.name: enforcer.escapes for enforcer in make_enforcers(NOTHING)}
    assert [name for name, ways in escapes.items() if not ways] == ["mig"]
