"""Amounts with a unit, as people write them: memory, durations, and how they are printed again."""

from __future__ import annotations

import re

KIB, MIB, GIB, TIB = 2**10, 2**20, 2**30, 2**40

_MEMORY_UNITS = {
    "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "Ki": KIB, "Mi": MIB, "Gi": GIB, "Ti": TIB,
}  # fmt: skip
_DURATION_UNITS_S = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_MEMORY = r"([0-9]{1,15})(?:\.([0-9]{1,9}))?(k|M|G|T|Ki|Mi|Gi|Ti)"
_DURATION_PART = r"([0-9]{1,9})([smhd])"

MEMORY_FORM = "a number with one of the units Ki, Mi, Gi, Ti, k, M, G, T, such as 10Gi"
DURATION_FORM = "a number with one of the units s, m, h, d, such as 10m or 1h30m"


def parse_memory_bytes(text: str) -> int:
    """Bytes for a Kubernetes quantity with a unit, rounded down. Raises ValueError that says what was expected.

    >>> parse_memory_bytes("10Gi"), parse_memory_bytes("1.5Mi")
    (10737418240, 1572864)
    """
    found = re.fullmatch(_MEMORY, text)
    if found is None:
        unitless = re.fullmatch(r"[0-9]+(\.[0-9]+)?", text) is not None
        raise ValueError(f"{text!r} has no unit; write {MEMORY_FORM}" if unitless else f"{text!r} is not {MEMORY_FORM}")
    whole, fraction, unit = found[1], found[2] or "", found[3]
    return int(whole + fraction) * _MEMORY_UNITS[unit] // int("1" + "0" * len(fraction))


def parse_duration_s(text: str) -> float:
    """Seconds for a duration with units, largest first. Raises ValueError that says what was expected.

    >>> parse_duration_s("1h30m"), parse_duration_s("0s")
    (5400.0, 0.0)
    """
    parts = re.findall(_DURATION_PART, text)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        raise ValueError(f"{text!r} is not {DURATION_FORM}")
    units = [_DURATION_UNITS_S[unit] for _, unit in parts]
    if units != sorted(set(units), reverse=True):
        raise ValueError(f"{text!r} repeats a unit or has them out of order; write {DURATION_FORM}")
    return float(sum(int(number) * _DURATION_UNITS_S[unit] for number, unit in parts))


def format_bytes(amount_bytes: int | None) -> str:
    """The amount for people, exact to a tenth; an unknown one is a word, never 0.

    >>> format_bytes(21474836480), format_bytes(1610612736), format_bytes(0), format_bytes(None)
    ('20 GiB', '1.5 GiB', '0 B', 'unknown')
    """
    if amount_bytes is None:
        return "unknown"
    for size, unit in ((TIB, "TiB"), (GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")):
        if abs(amount_bytes) >= size:
            return f"{amount_bytes / size:.1f}".removesuffix(".0") + f" {unit}"
    return f"{amount_bytes} B"


def quantity(amount_bytes: int) -> str:
    """The amount as a policy would write it, exact.

    >>> quantity(20 * 2**30), quantity(1536 * 2**20)
    ('20Gi', '1536Mi')
    """
    for size, unit in ((TIB, "Ti"), (GIB, "Gi"), (MIB, "Mi"), (KIB, "Ki")):
        if amount_bytes >= size and amount_bytes % size == 0:
            return f"{amount_bytes // size}{unit}"
    thousandths = amount_bytes * 1000
    return f"{thousandths // 10**6}.{thousandths % 10**6:06d}k" if amount_bytes % 1000 else f"{amount_bytes // 1000}k"


def duration(amount_s: float) -> str:
    """Whole seconds as a policy would write them, exact.

    >>> duration(5400), duration(0)
    ('1h30m', '0s')
    """
    rest_s, parts = int(amount_s), []
    for unit, size_s in sorted(_DURATION_UNITS_S.items(), key=lambda item: -item[1]):
        count, rest_s = divmod(rest_s, size_s)
        parts += [f"{count}{unit}"] if count else []
    return "".join(parts) or "0s"


def round_down(amount_bytes: int, step_bytes: int) -> int:
    """The largest multiple of the step that is not above the amount."""
    return amount_bytes - amount_bytes % step_bytes
