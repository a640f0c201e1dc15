"""What counts as a number: judged by what was typed, never by what a YAML library made of it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sharer.core.policy.located import LocatedScalar
from sharer.core.policy.values import MAX_INTEGER, describe, integer, nearest, shown
from tests.core.policies import only, read_rule, refused_rules


def plain(text: str) -> LocatedScalar:
    return LocatedScalar(text=text, quoted=False, line=1, column=1)


@pytest.mark.parametrize(
    ("written", "found"),
    [
        ('"4"', "the quoted text '4'; write 4 without quotes"),
        ("'010'", "the quoted text '010'; write a plain decimal number"),
        ("4.0", "the number 4.0"),
        ("4.", "the number 4."),
        ("true", "the boolean true"),
        ("yes", "yes, which is a boolean to some YAML parsers"),
        ("Off", "Off, which is a boolean to some YAML parsers"),
        ("null", "nothing (null)"),
        ("~", "nothing (null)"),
        ("", "nothing (null)"),
        ("[4]", "a list"),
        ("{a: 4}", "a mapping"),
        ("0x4", "'0x4', which YAML parsers read differently; write a plain decimal number"),
        ("0o10", "'0o10', which YAML parsers read differently; write a plain decimal number"),
        ("0b100", "'0b100', which YAML parsers read differently; write a plain decimal number"),
        ("010", "'010', which YAML parsers read differently; write a plain decimal number"),
        ("08", "'08', which YAML parsers read differently; write a plain decimal number"),
        ("1_0", "'1_0', which YAML parsers read differently; write a plain decimal number"),
        ("1e1", "'1e1', which YAML parsers read differently; write a plain decimal number"),
        ("1:30", "'1:30', which YAML parsers read differently; write a plain decimal number"),
        ("+4", "'+4', which YAML parsers read differently; write a plain decimal number"),
        (".inf", "'.inf', which YAML parsers read differently; write a plain decimal number"),
        (".NaN", "'.NaN', which YAML parsers read differently; write a plain decimal number"),
        ("-4", "the number -4"),
        ("50%", "the text '50%'; write 50 without '%'"),
        ("four", "the text 'four'"),
        ("4 # four", None),
        ("4 four", "the text '4 four'"),
        ("\u0664", "the text '\u0664'"),
        ("2024-01-01", "the text '2024-01-01'"),
    ],
)
def test_a_count_is_a_plain_decimal_integer_and_nothing_else(written: str, found: str | None) -> None:
    """P02: never a silent 8."""
    if found is None:
        assert refused_rules(f"strategy: mps, slices: {written}")  # the comment swallows the brace
        return
    assert only(refused_rules(f"strategy: mps, slices: {written}")) == (
        f"rules[0].slices: expected an integer of 1 or more, found {found}"
    )


@given(st.integers(min_value=1, max_value=50_000))
def test_a_count_is_the_number_that_was_typed(count: int) -> None:
    assert getattr(read_rule(f"strategy: time-slicing, slices: {count}").sharing, "slices") == count  # noqa: B009


@given(st.text(max_size=12) | st.text(alphabet="0123456789_.xe+-", max_size=12))
def test_no_other_text_is_a_count(text: str) -> None:
    """P02."""
    if text.isascii() and text.isdecimal() and str(int(text)) == text and int(text) <= MAX_INTEGER:
        assert integer(0)(plain(text)) == int(text)
    else:
        with pytest.raises(ValueError, match="^expected an integer of 0 or more, found "):
            integer(0)(plain(text))


@given(st.text(max_size=200))
def test_whatever_is_found_can_be_told_in_one_line(text: str) -> None:
    for message in (describe(plain(text)), shown(text)):
        assert "\n" not in message
        assert message.isprintable()
        assert len(message) < 500


def test_the_nearest_word_is_one_that_could_have_been_meant() -> None:
    words = ["slices", "sliceMemory", "strategy"]
    assert nearest("slice", words) == "slices"
    assert nearest("SLICES", words) == "slices"
    assert nearest("slice_memory", words) == "sliceMemory"
    assert nearest("replicas", words) is None
    assert nearest("s" * 100_000, words) is None
