"""Damage: to bytes, as disks and half-written files do it, and to documents, as other versions and people do."""

from __future__ import annotations

import copy
import json
from collections.abc import Sequence
from typing import cast

from hypothesis import strategies as st

Json = None | bool | int | float | str | list["Json"] | dict[str, "Json"]

DEPTH = 100_000  # of brackets: more than any recursion stands
DEEP = b"[" * DEPTH + b"]" * DEPTH

_ODD: list[Json] = [
    None, True, False, 0, -1, 1, 2**31, -(2**63), 2**63, 2**64 - 1, 2**64, 10**30, 0.5, -0.0, 1e308, "", "0", "1", " ",
    "\x00", "\u2028", "é", "\U0001f4a9", "a" * 300, "nvidia.com/gpu", "../../etc/passwd", "GPU-a::ts-0", "-1", "1e9",
    [], {}, [[]], [None], {"": None}, [""], {"a": {"a": {}}},
]  # fmt: skip


# Values of every type, and those that programs stumble over.
odd_values: st.SearchStrategy[Json] = st.recursive(
    st.sampled_from(_ODD).map(copy.deepcopy) | st.text(max_size=8) | st.integers(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
)


@st.composite
def damaged(draw: st.DrawFn, originals: Sequence[bytes]) -> bytes:
    """One of these texts after a few accidents: cut off, bytes lost, flipped, put in, or written twice."""
    text = draw(st.sampled_from(originals))
    for _ in range(draw(st.integers(1, 4))):
        start = draw(st.integers(0, len(text)))
        end = min(len(text), start + draw(st.integers(0, 16)))
        match draw(st.sampled_from(["cut", "lose", "flip", "put in", "twice", "zeros"])):
            case "cut":
                text = text[:start]
            case "lose":
                text = text[:start] + text[end:]
            case "flip":
                text = (
                    text[:start] + bytes(one ^ (1 << draw(st.integers(0, 7))) for one in text[start:end]) + text[end:]
                )
            case "put in":
                text = text[:start] + draw(st.binary(max_size=8)) + text[start:]
            case "twice":
                text = text[:end] + text[start:]
            case _:
                text = text[:start] + b"\0" * (end - start) + text[end:]
    return text


@st.composite
def altered(draw: st.DrawFn, originals: Sequence[Json]) -> Json:
    """One of these documents after a few changes: a value of another kind, a key lost or put in, an entry repeated."""
    document = copy.deepcopy(draw(st.sampled_from(originals)))
    for _ in range(draw(st.integers(1, 4))):
        place = draw(st.sampled_from(_places(document)))
        if not place:
            return draw(odd_values)
        *above, last = place
        parent = document
        for part in above:
            parent = parent[part]  # type: ignore[index]  # a path that exists
        match draw(st.sampled_from(["change", "change", "lose", "repeat", "put in"])):
            case "change":
                parent[last] = draw(odd_values)  # type: ignore[index]
            case "lose":
                del parent[last]  # type: ignore[union-attr,arg-type]
            case "repeat" if isinstance(parent, list):
                parent.append(copy.deepcopy(parent[cast(int, last)]))
            case _ if isinstance(parent, dict):
                parent[draw(st.text(max_size=6))] = draw(odd_values)
            case _:
                pass
    return document


def as_bytes(document: Json) -> bytes:
    """The document as JSON; half characters in it are written as escapes, as any program may."""
    return json.dumps(document).encode()


def _places(document: Json) -> list[tuple[str | int, ...]]:
    """The path of every value, the whole included."""
    found: list[tuple[str | int, ...]] = [()]
    if isinstance(document, dict):
        found += [(key, *place) for key, value in document.items() for place in _places(value)]
    elif isinstance(document, list):
        found += [(number, *place) for number, value in enumerate(document) for place in _places(value)]
    return found
