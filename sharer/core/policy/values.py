"""Readers for single values of a policy: one located node in, one value out, or a ValueError that explains.

A value is judged by what was typed. A count is a plain decimal integer and nothing else: what YAML parsers read
differently (010, 1_0, 0x4, 1:30, yes), a quoted number, a fraction or null is refused and never becomes a number (P02).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import TypeVar

from sharer.core.policy.located import LocatedList, LocatedMapping, LocatedNode, LocatedScalar
from sharer.core.policy.model import Auto, Comparison
from sharer.core.policy.resource_name import resource_template_problem
from sharer.core.quantities import MIB, TIB, parse_duration_s, parse_memory_bytes, quantity
from sharer.core.values import replace

T = TypeVar("T")
Reader = Callable[[LocatedNode], T]
"""Reads one value. Raises ValueError, whose text says what was found and what is allowed."""

MAX_INTEGER = 999_999_999  # more is a slip of the finger, whatever a policy counts
MAX_USER_ID = 4_294_967_294  # the last one of Linux; the one after it means "nobody in particular"
MIN_AMOUNT_BYTES = MIB  # device IDs and CUDA count in MiB
MAX_AMOUNT_BYTES = 8 * TIB  # more than any GPU has, and few enough digits for a device ID
MAX_DURATION_S = 365 * 86400.0
MAX_OVERSUBSCRIBE = 100  # 150 is a percentage, not a factor

_NULL = {"", "~", "null", "Null", "NULL"}
_BOOLEAN = {"true", "false", "yes", "no", "on", "off", "y", "n"}
_DECIMAL = re.compile(r"0|[1-9][0-9]*")  # every policy has one; what follows is compiled when first needed
_SIGNED = r"-[0-9.]*[0-9][A-Za-z]*"
_FRACTION = r"[0-9]+\.[0-9]*|\.[0-9]+"
_ODD_NUMBER = (  # a number to some YAML parser, and another one or text to the next
    r"(?i)[-+]?(?:0[0-9_]+|0b[01_]+|0o[0-7]+|0x[0-9a-f_]+|[0-9]+_[0-9_]*|[0-9]+(?::[0-5]?[0-9])+(?:\.[0-9]*)?"
    r"|(?:[0-9]+\.?[0-9]*|\.[0-9]+)e[-+]?[0-9]+|\.(?:inf|nan))|\+[0-9.]+"
)
_PERCENT = r"[-+]?[0-9]*\.?[0-9]+ ?%"
_FACTOR = r"(?:0|[1-9][0-9]{0,8})(?:\.[0-9]{1,6})?"
_ODD_UNIT = r"(?i)([0-9]+(?:\.[0-9]+)?) ?([KMGT])(?:i?b)?"
_DURATIONS = "whole numbers with the units d, h, m, s, such as 10m or 1h30m, up to 365d"
_COMPARISON = r"(>=|<=|==|>|<) *(\S+)"
_HEX = "[0-9a-f]"
_UUID = rf"(?i)(GPU|MIG)-({_HEX}{{8}}-{_HEX}{{4}}-{_HEX}{{4}}-{_HEX}{{4}}-{_HEX}{{12}})"


def shown(text: str) -> str:
    """The text as it may stand in a message: in quotes, escaped, at most 60 characters of it."""
    return repr(text) if len(text) <= 60 else f"{text[:60]!r}… ({len(text)} characters)"


def nearest(word: str, known: Iterable[str]) -> str | None:
    """The known word that was probably meant, or None."""
    words = list(known)
    for one in words:
        if one.lower() == word.lower():
            return one
    if len(word) > 60:  # difflib is slow on long text
        return None
    from difflib import get_close_matches  # only a misspelt word needs it

    return next(iter(get_close_matches(word, words, n=1, cutoff=0.7)), None)


def is_null(node: LocatedNode) -> bool:
    """Whether nothing is written, or one of YAML's words for it."""
    return isinstance(node, LocatedScalar) and not node.quoted and node.text in _NULL


def describe(node: LocatedNode) -> str:
    """What was found, for a message."""
    if isinstance(node, LocatedMapping):
        return "a mapping"
    if isinstance(node, LocatedList):
        return "a list"
    if node.quoted:
        return f"the quoted text {shown(node.text)}"
    if node.text in _NULL:
        return "nothing (null)"
    if node.text in {"true", "false"}:
        return f"the boolean {node.text}"
    if node.text.lower() in _BOOLEAN:
        return f"{node.text}, which is a boolean to some YAML parsers"
    if re.fullmatch(_ODD_NUMBER, node.text):
        return f"{shown(node.text)}, which YAML parsers read differently"
    if any(re.fullmatch(form, node.text) for form in (_DECIMAL, _SIGNED, _FRACTION)):
        return f"the number {node.text}" if len(node.text) <= 60 else f"a number of {len(node.text)} characters"
    return f"the text {shown(node.text)}"


def integer(minimum: int, maximum: int = MAX_INTEGER, *, also: str = "") -> Reader[int]:
    """A plain decimal integer in a range. `also` begins the list of what is allowed: "auto or "."""
    allowed = f"{also}an integer " + (
        f"of {minimum} or more" if maximum == MAX_INTEGER else f"from {minimum} to {maximum}"
    )

    def read(node: LocatedNode) -> int:
        typed = node.text if isinstance(node, LocatedScalar) else ""
        if isinstance(node, LocatedScalar) and not node.quoted and _DECIMAL.fullmatch(typed):
            is_short = len(typed) <= len(str(max(maximum, MAX_INTEGER)))
            if is_short and minimum <= int(typed) <= maximum:
                return int(typed)
            cure = "" if is_short else f", which is more than {max(maximum, MAX_INTEGER)}"
        elif _DECIMAL.fullmatch(typed):
            cure = f"; write {typed} without quotes"
        elif re.fullmatch(_ODD_NUMBER, typed):
            cure = "; write a plain decimal number"
        elif re.fullmatch(_PERCENT, typed):
            cure = f"; write {typed.rstrip(' %')} without '%'"
        else:
            cure = ""
        raise ValueError(f"expected {allowed}, found {describe(node)}{cure}")

    return read


def boolean(node: LocatedNode) -> bool:
    """`true` or `false`; not the further words of YAML 1.1."""
    if not isinstance(node, LocatedScalar) or node.quoted or node.text not in {"true", "false"}:
        raise ValueError(f"expected true or false, found {describe(node)}")
    return node.text == "true"


def text(node: LocatedNode) -> str:
    """Text that is not empty and can be printed. A plain 3090 or `on` is not text to every YAML parser: refused."""
    if not isinstance(node, LocatedScalar):
        raise ValueError(f"expected text, found {describe(node)}")
    if not _is_text(node):
        cure = "" if node.text in _NULL else "; put it in quotes"
        raise ValueError(f"expected text, found {describe(node)}{cure}")
    if not node.text or not node.text.isprintable():
        raise ValueError(f"expected text that is not empty and can be printed, found {shown(node.text)}")
    return node.text


def one_of(*words: str) -> Reader[str]:
    """One word of a fixed set."""
    known = [str(word) for word in words]
    allowed = ", ".join(known)

    def read(node: LocatedNode) -> str:
        if not isinstance(node, LocatedScalar) or not _is_text(node):
            raise ValueError(f"expected one of {allowed}; found {describe(node)}")
        if node.text not in known:
            raise _refusal(f"{shown(node.text)} is unknown", allowed, nearest(node.text, known))
        return node.text

    return read


def duration(node: LocatedNode) -> float:
    """Seconds for a duration with units, at most MAX_DURATION_S."""
    if not isinstance(node, LocatedScalar) or is_null(node):
        raise _refusal(f"found {describe(node)}", _DURATIONS)
    try:
        amount_s = parse_duration_s(node.text)
    except ValueError:
        raise _refusal(f"{shown(node.text)} is no duration", _DURATIONS) from None
    if amount_s > MAX_DURATION_S:
        raise _refusal(f"{shown(node.text)} is more than a year", _DURATIONS)
    return amount_s


def amount(*words: str) -> Reader[int]:
    """Bytes for a quantity with a unit, from MIN_AMOUNT_BYTES to MAX_AMOUNT_BYTES; there is no amount of 0 (P23).

    `words` are further values that the caller has handled and that a message names: "none (no limit)".
    """
    sizes = (
        f"a quantity of at least {quantity(MIN_AMOUNT_BYTES)} with a unit (Ki, Mi, Gi, Ti, k, M, G, T), such as 10Gi"
    )
    allowed = " or ".join(filter(None, [", ".join(words), sizes]))

    def read(node: LocatedNode) -> int:
        if not isinstance(node, LocatedScalar) or is_null(node):
            raise _refusal(f"found {describe(node)}", allowed)
        found = shown(node.text)
        if re.fullmatch(_PERCENT, node.text):
            raise _refusal(f"{found} is a percentage, and memory is an amount", allowed)
        if re.fullmatch(_SIGNED, node.text):
            raise _refusal(f"{found} is negative", allowed)
        if _DECIMAL.fullmatch(node.text) and node.text != "0":
            raise _refusal(f"{found} has no unit", allowed)
        try:
            amount_bytes = 0 if node.text == "0" else parse_memory_bytes(node.text)
        except ValueError:
            odd = re.fullmatch(_ODD_UNIT, node.text)
            meant = f"{odd[1]}{odd[2].upper()}i" if odd else nearest(node.text, [word.split()[0] for word in words])
            raise _refusal(f"{found} is no amount of memory", allowed, meant) from None
        if amount_bytes < MIN_AMOUNT_BYTES:
            raise _refusal(f"{found} is less than {quantity(MIN_AMOUNT_BYTES)}", allowed)
        if amount_bytes > MAX_AMOUNT_BYTES:
            raise _refusal(f"{found} is more than {quantity(MAX_AMOUNT_BYTES)}, and no GPU has that", allowed)
        return amount_bytes

    return read


def amount_or_zero(node: LocatedNode) -> int:
    """The same, and 0 with or without a unit."""
    if isinstance(node, LocatedScalar) and re.fullmatch(r"0([kMGT]|[KMGT]i)?", node.text):
        return 0
    return amount("0")(node)


def memory_limit(node: LocatedNode) -> Auto | int | None:
    """`auto`, `none` (None), or bytes."""
    if isinstance(node, LocatedScalar) and node.text in {"auto", "none"}:
        return Auto.AUTO if node.text == "auto" else None
    return amount("auto", "none (no limit)")(node)


def compute_percent(node: LocatedNode) -> Auto | int | None:
    """`auto`, `none` (None), or 1 to 100."""
    if isinstance(node, LocatedScalar) and node.text in {"auto", "none"}:
        return Auto.AUTO if node.text == "auto" else None
    return integer(1, 100, also="auto, none or ")(node)


def request_max(node: LocatedNode) -> int | None:
    """`none` (None: no bound), or 1 and more."""
    if isinstance(node, LocatedScalar) and node.text == "none":
        return None
    return integer(1, also="none or ")(node)


def oversubscribe(node: LocatedNode) -> float:
    """How many times the memory may be promised. At least once: who wants to promise less sets `reserve`."""
    allowed = f"a plain decimal number from 1 to {MAX_OVERSUBSCRIBE}, such as 1.5"
    if not isinstance(node, LocatedScalar) or node.quoted or not re.fullmatch(_FACTOR, node.text):
        raise ValueError(f"expected {allowed}; found {describe(node)}")
    factor = float(node.text)
    if factor < 1:
        raise ValueError(f"expected {allowed}; found {node.text}. To promise less memory than there is, set reserve")
    if factor > MAX_OVERSUBSCRIBE:
        raise ValueError(f"expected {allowed}; found {node.text}. It is a factor, not a percentage")
    return factor


def comparison(node: LocatedNode) -> tuple[Comparison, int]:
    """An operator and a quantity: `">=40Gi"`."""
    allowed = "one of >=, <=, >, <, == and a quantity with a unit, such as '>=40Gi'"
    found = re.fullmatch(_COMPARISON, node.text) if isinstance(node, LocatedScalar) else None
    if not isinstance(node, LocatedScalar) or found is None:
        raise ValueError(f"expected {allowed}; found {describe(node)}")
    try:
        return Comparison(found[1]), amount()(replace(node, text=found[2]))
    except ValueError as error:
        raise ValueError(f"expected {allowed}; {error}") from None


def gpu_uuid(node: LocatedNode) -> str:
    """The UUID of a GPU or MIG device, in NVML's spelling."""
    found = re.fullmatch(_UUID, node.text) if isinstance(node, LocatedScalar) else None
    if found is None:
        example = "GPU-5a3fc4a0-1f0e-4c5e-9d2b-7e6f1a2b3c4d"
        raise ValueError(f"expected the whole UUID of a GPU or MIG device, such as {example}; found {describe(node)}")
    return f"{found[1].upper()}-{found[2].lower()}"


def resource_name(*, mig: bool) -> Reader[str]:
    """A name that the kubelet accepts; in a MIG rule it may hold `{profile}`."""

    def read(node: LocatedNode) -> str:
        name = text(node)
        problem = resource_template_problem(name, mig=mig)
        if problem is not None:
            raise ValueError(f"{shown(name)} {problem}")
        return name

    return read


def _is_text(node: LocatedScalar) -> bool:
    """Whether every YAML parser takes this scalar for text."""
    return node.quoted or describe(node).startswith("the text")


def _refusal(found: str, allowed: str, meant: str | None = None) -> ValueError:
    """The error for a value of the right kind that is not one of those allowed."""
    return ValueError(f"{found}; " + (f"did you mean {meant!r}? Allowed: " if meant else "allowed: ") + allowed)
