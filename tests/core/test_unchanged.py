"""A pure function's last answer is given again only while it is asked about the same objects."""

from __future__ import annotations

from sharer.core.unchanged import while_unchanged


def test_the_same_question_is_answered_without_working_it_out_again() -> None:
    asked: list[object] = []

    @while_unchanged
    def length(of: tuple[int, ...], *, plus: int = 0) -> int:
        asked.append(of)
        return len(of) + plus

    one, equal = (1, 2), tuple(number for number in (1, 2))
    assert [length(one), length(one)] == [2, 2]
    assert len(asked) == 1
    assert length(equal) == 2  # another object, about which nothing is known
    assert length(equal, plus=1) == 3
    assert length(equal, plus=1) == 3
    assert len(asked) == 3
