"""Amounts with a unit."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sharer.core.quantities import (
    GIB,
    KIB,
    MIB,
    TIB,
    duration,
    format_bytes,
    parse_duration_s,
    parse_memory_bytes,
    quantity,
    round_down,
)


@pytest.mark.parametrize(
    ("text", "amount_bytes"),
    [
        ("10Gi", 10 * GIB),
        ("1.5Mi", 1536 * KIB),
        ("0.1k", 100),
        ("0.0001k", 0),
        ("1.9999Ki", 2047),
        ("40G", 40 * 10**9),
        ("2Ti", 2 * TIB),
        ("007Mi", 7 * MIB),
    ],
)
def test_a_quantity_is_bytes_rounded_down(text: str, amount_bytes: int) -> None:
    assert parse_memory_bytes(text) == amount_bytes


@pytest.mark.parametrize(
    "text",
    [
        "",
        "10",
        "1.5",
        "Gi",
        "10 Gi",
        "10gi",
        "10GiB",
        "10GB",
        "10K",
        "-1Gi",
        "+1Gi",
        "1e3Mi",
        ".5Gi",
        "5.Gi",
        "١Gi",
        "50%",
    ],
)
def test_what_is_no_quantity_is_refused(text: str) -> None:
    """P23: a unit is never guessed."""
    with pytest.raises(ValueError, match="with one of the units"):
        parse_memory_bytes(text)


@given(st.integers(0, 2**59))
def test_a_printed_quantity_is_the_same_amount(amount_bytes: int) -> None:
    assert parse_memory_bytes(quantity(amount_bytes)) == amount_bytes


@given(st.integers(0, 10**6), st.sampled_from([KIB, MIB, GIB, TIB]))
def test_a_round_amount_is_printed_with_its_unit(count: int, unit: int) -> None:
    assert parse_memory_bytes(quantity(count * unit)) == count * unit
    assert "." not in quantity(count * unit)


@pytest.mark.parametrize(
    ("text", "amount_s"), [("0s", 0), ("90s", 90), ("10m", 600), ("1h30m", 5400), ("1d2h3m4s", 93784)]
)
def test_a_duration_is_seconds(text: str, amount_s: float) -> None:
    assert parse_duration_s(text) == amount_s


@pytest.mark.parametrize("text", ["", "10", "m", "10 m", "1.5h", "-5m", "30m1h", "1m1m", "10ms", "1w", "١m"])
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="units? s, m, h, d|repeats a unit"):
        parse_duration_s(text)


@given(st.integers(0, 10**9))
def test_a_printed_duration_is_the_same_time(amount_s: int) -> None:
    assert parse_duration_s(duration(amount_s)) == amount_s


@given(st.integers(0, 2**50), st.sampled_from([MIB, 64 * MIB, 256 * MIB]))
def test_rounding_down_never_goes_up_and_stays_near(amount_bytes: int, step_bytes: int) -> None:
    rounded = round_down(amount_bytes, step_bytes)
    assert rounded % step_bytes == 0
    assert 0 <= amount_bytes - rounded < step_bytes


@given(st.text(max_size=30) | st.from_regex(r"[0-9]{0,40}\.?[0-9]{0,9}([kMGT]i?|[dhms]|)", fullmatch=True))
def test_any_text_is_an_amount_that_can_be_or_is_refused_with_what_was_expected(text: str) -> None:
    for parse in (parse_memory_bytes, parse_duration_s):
        amount, refused = 0.0, ""
        try:
            amount = parse(text)
        except ValueError as error:
            refused = str(error)
        assert 0 <= amount < float("inf")
        assert not refused or ("unit" in refused and repr(text) in refused)


@pytest.mark.parametrize(
    ("amount_bytes", "text"),
    [
        (None, "unknown"),
        (0, "0 B"),
        (1023, "1023 B"),
        (1536 * MIB, "1.5 GiB"),
        (20 * GIB, "20 GiB"),
        (3 * TIB, "3 TiB"),
    ],
)
def test_an_amount_for_people_is_short_and_an_unknown_one_is_a_word(amount_bytes: int | None, text: str) -> None:
    """P25: unknown is never 0."""
    assert format_bytes(amount_bytes) == text
