"""YAML text: what is read from it, what is refused with its place, and that no text at all gives a traceback."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from sharer.adapters.yaml_text import FASTEST, MAX_BYTES, MAX_DEPTH, MAX_NODES, Loader, locate, read_policy_text
from sharer.core.errors import PolicyError, Problem
from sharer.core.policy.located import LocatedList, LocatedMapping, LocatedNode, LocatedScalar
from tests.core.policies import HEAD, refusal

LOADERS: list[Loader] = list(dict.fromkeys([yaml.SafeLoader, FASTEST]))
CONFIG = sorted((Path(__file__).parents[2] / "config").glob("*.yaml"))

both = pytest.mark.parametrize("loader", LOADERS)


def problems(text: str | bytes, loader: Loader = FASTEST) -> list[str]:
    return [str(problem).removeprefix("f:") for problem in locate(text, "f", loader)[1]]


def scalar(text: str, line: int, column: int, *, quoted: bool = False) -> LocatedScalar:
    return LocatedScalar(text=text, quoted=quoted, line=line, column=column)


@both
def test_a_text_becomes_nodes_with_their_places(loader: Loader) -> None:
    found, wrong = locate('a: [1, "2"]\nbc:\n  d: |\n    x\n', "f", loader)
    assert not wrong
    assert found == LocatedMapping(
        line=1,
        column=1,
        entries=(
            (
                scalar("a", 1, 1),
                LocatedList(line=1, column=4, items=(scalar("1", 1, 5), scalar("2", 1, 8, quoted=True))),
            ),
            (
                scalar("bc", 2, 1),
                LocatedMapping(line=3, column=3, entries=((scalar("d", 3, 3), scalar("x\n", 3, 6, quoted=True)),)),
            ),
        ),
    )


@pytest.mark.parametrize("blank", ["\u00a0", "\u00ad", "\u2003", "\u200b", "\u202f", "\u3000"])
def test_what_only_looks_like_a_space_is_named_where_it_stands_and_may_stand_in_a_comment(blank: str) -> None:
    """Neighbour of P02: a policy copied from a web page or a chat; the YAML parser would complain of something else."""
    found = [
        locate(text, "p", FASTEST)[1] for text in (f"a: 1\n{blank}{blank}b: 2\n", f"a:{blank}1\n", f"a: 1{blank}# b\n")
    ]
    assert [(one.line, one.column) for (one,) in found] == [(2, 1), (1, 3), (1, 5)]
    assert all(f"the character {blank!r} is no space to YAML" in one.message for (one,) in found)
    assert locate(f"a: 1 # so\u00a0: 10{blank}Gi\n", "p", FASTEST)[1] == []


@both
def test_what_was_typed_is_kept_and_nothing_is_resolved(loader: Loader) -> None:
    """P02: 010 stays 010."""
    for typed in ("010", "1_0", "0x4", "1e1", "1:30", "yes", "~", "2024-01-01", "4.0", ".inf"):
        found, _ = locate(f"a: {typed}", "f", loader)
        assert found == LocatedMapping(line=1, column=1, entries=((scalar("a", 1, 1), scalar(typed, 1, 4)),))


@pytest.mark.parametrize("unseen", "\x00\x08\x0b\x1f\x7f\x80\x9f\u2028\u2029\ud800\udfff\ufeff\ufffe\uffff")
def test_no_character_that_cannot_be_seen_is_let_through(unseen: str) -> None:
    assert problems(f"a: x{unseen}") == [f"1:5: the character {unseen!r} cannot be seen; remove it"]


@both
@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("a: 1\nb: 2\na: 3\n", ["3:1: the key 'a' is already there, at line 1; keep one of the two"]),
        ("r:\n- {m: {a: 1, a: 2}}", ["2:14: r[0].m: the key 'a' is already there, at line 2; keep one of the two"]),
        ("a: &x 1\nb: *x\n", ["1:4: a: & begins a YAML anchor", "2:4: b: * begins a YAML alias"]),
        ("&x a: 1", ["1:1: & begins a YAML anchor"]),
        ("a: {<<: {b: 1}}", ["1:5: a: << is a YAML merge key"]),
        ("a: !!int '4'", ["1:4: a: ! begins a YAML tag"]),
        ("a: !x {b: 1}", ["1:4: a: ! begins a YAML tag"]),
        ("a: !python/object/apply:os.system [ls]", ["1:4: a: ! begins a YAML tag"]),
        ("a: 1\n---\nb: 2", ["2:1: a second document begins here"]),
        ("a: 1\n--- !<", ["2:1: a second document begins here"]),
        ("? [a]\n: 1", ["1:3: a key is a word, not a list or mapping"]),
        ("{{a: 1}: 2}", ["1:2: a key is a word, not a list or mapping"]),
        ("", ["1:1: the text is empty"]),
        ("# nothing\n", ["1:1: the text is empty"]),
        ("---\n...\n", ["1:1: the text is empty"]),
        ("a:\n\tb: 1", ["2:1: a tab; YAML wants spaces"]),
        ("a: 1\t# why\nb:\t2\n", ["1:5: a tab; YAML wants spaces", "2:3: a tab; YAML wants spaces"]),
        ("a: x\u200b", None),
        ("a: x\u2028y", ["1:5: the character '\\u2028' cannot be seen; remove it"]),
        ("a: 1\nb: \x00", ["2:4: the character '\\x00' cannot be seen; remove it"]),
        ("a: \ud800", ["1:4: the character '\\ud800' cannot be seen; remove it"]),
        ("a: *A100*", ["1:4: a: * begins a YAML alias, which a policy may not have; write text that begins with * in"]),
        ("a: >=40Gi", ["1:4: a: > and | begin a YAML block; write text that begins with one of them in quotes"]),
        ("a: b: c", ["1:5: a: not valid YAML: a ':' too many; is the indentation right?"]),
        ("a: 'x", ["1:6: a: not valid YAML: while scanning a quoted scalar, found unexpected end of stream"]),
        ("a: [1", None),
        ("a: ]", None),
        ("%YAML 3.0\n---\na: 1", None),
        ("a: !u!x 1", None),
    ],
)  # fmt: skip
def test_what_a_policy_has_no_use_for_is_refused_with_its_place(
    loader: Loader, text: str, told: list[str] | None
) -> None:
    found = problems(text, loader)
    if told is None:  # what it says is the parser's business, and one of them takes \u200b for a letter
        assert text == "a: x\u200b" or (found and "not valid YAML: " in found[0])
        return
    assert len(found) == len(told)
    for one, expected in zip(found, told, strict=True):
        assert one.startswith(expected)


def test_tabs_in_comments_are_nobodys_business() -> None:
    assert problems("#\ta\na: 1 #\tb\n") == []


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (b"a: 1\nb: \xff", "2:4: byte 0xff is not UTF-8; save the file as UTF-8"),
        ("é: ü\n".encode("latin-1"), "1:1: byte 0xe9 is not UTF-8; save the file as UTF-8"),
        ("a: 1".encode("utf-16"), "1:1: byte 0xff is not UTF-8; save the file as UTF-8"),
        ("é: é".encode() + b"\x80", "1:5: byte 0x80 is not UTF-8; save the file as UTF-8"),
    ],
)
def test_bytes_that_are_not_utf_8_are_refused_with_their_place(text: bytes, told: str) -> None:
    assert problems(text) == [told]


def test_a_byte_order_mark_and_any_line_end_are_accepted() -> None:
    plain = locate("a: 1\nb: 2\n", "f")
    assert locate("\ufeffa: 1\nb: 2\n".encode(), "f") == plain
    assert locate("a: 1\r\nb: 2\r\n", "f") == plain
    assert locate("a: 1\rb: 2\r", "f") == plain


@both
@pytest.mark.parametrize(
    ("opened", "closed"), [("[", "]"), ("{a: ", "}"), ("- ", "")], ids=["lists", "mappings", "block lists"]
)
def test_depth_is_bounded_long_before_any_stack_is(loader: Loader, opened: str, closed: str) -> None:
    fits = opened * MAX_DEPTH + "x" + closed * MAX_DEPTH
    assert problems(fits, loader) == []
    for levels in (MAX_DEPTH + 1, 200_000):
        (problem,) = problems(opened * levels, loader)
        assert problem.endswith(f"nested more than {MAX_DEPTH} deep")


def test_size_is_bounded() -> None:
    comment = "#" * (MAX_BYTES - len("a: 1\n"))
    assert problems("a: 1\n" + comment) == []
    assert problems("a: 1\n" + comment + "#") == [f" the text has {MAX_BYTES + 1} bytes; at most {MAX_BYTES} are read"]
    assert problems(b"\xff" * (MAX_BYTES + 1)) == [f" the text has {MAX_BYTES + 1} bytes; at most {MAX_BYTES} are read"]


def test_the_number_of_keys_and_values_is_bounded() -> None:
    assert problems("\n".join(["- x"] * (MAX_NODES - 1))) == []
    assert problems("\n".join(["- x"] * (MAX_NODES + 1))) == [
        f"{MAX_NODES + 1}:3: [{MAX_NODES}]: more than {MAX_NODES} keys and values"
    ]


@pytest.mark.parametrize(
    "text",
    [
        "\n".join(f"rulez{number}: x" for number in range(MAX_NODES // 2 - 1)),
        HEAD + "rules:\n" + "- {strategy: mig, placement: sprad}\n" * (MAX_NODES // 6),
        HEAD + "rules:\n" + "- {strategy: mps, slices: 4}\n- {strategy: mig, slices: 4}\n" * (MAX_NODES // 12),
        HEAD + "rules:\n" + "- {match: {migProfile: 1g}, strategy: mig}\n" * (MAX_NODES // 10),
        HEAD + "health: {ignore: [" + "1, " * (MAX_NODES - 20) + "]}",
        "x" * (MAX_BYTES - 10) + ": 1",
        "a: '" + "x" * (MAX_BYTES - 10) + "'",
        "[" + "'" * (MAX_BYTES - 10),
        " " * (MAX_BYTES - 10) + "\t",
        "a: " + "0" * (MAX_BYTES - 10),
        "- " * 20 + "\n" * (MAX_BYTES - 100),
    ],
    ids=[
        "keys", "words", "alternating", "profiles", "repeats", "long key", "long text", "open quote", "blanks", "zeros",
        "lines",
    ],
)  # fmt: skip
def test_the_largest_texts_are_judged_in_seconds(text: str) -> None:
    begin_s = time.perf_counter()
    reads_or_refuses(text)
    assert time.perf_counter() - begin_s < 10  # the slowest takes a tenth of that on an idle machine


def test_problems_of_yaml_and_of_the_policy_are_told_together_in_order() -> None:
    text = HEAD + "rules:\n- strategy: mps\n  slices: &n 4\n  slice: 5\n  slices: 4\ndrain: {patience: *n}\n"
    assert [problem.split(": ", 2)[0] for problem in refusal(text)] == [
        "node.yaml:5:11",
        "node.yaml:6:3",
        "node.yaml:7:3",
        "node.yaml:8:19",
    ]


# --- no text gives a traceback ---

PIECES = [
    *"abx01 :-,[]{}#&*!|>'\"%@`~?.\n\t\\é\u2028\x00",
    *("\n  ", ": ", "- ", "---\n", "...", "<<: ", "\r\n"),
    *(
        "rules:",
        "slices: 4",
        "match: {}",
        "apiVersion: sharer.dev/v1alpha1\n",
        "kind: SharingPolicy\n",
        "version: v1\n",
    ),
]
pieces = st.sampled_from(PIECES)
texts = st.lists(pieces, max_size=40).map("".join) | st.text(max_size=60)
GOOD = [path.read_text() for path in CONFIG]


@st.composite
def spoiled(draw: st.DrawFn) -> str:
    """A good policy with a few accidents."""
    text = draw(st.sampled_from(GOOD))
    for _ in range(draw(st.integers(1, 4))):
        start = draw(st.integers(0, len(text)))
        end = min(len(text), start + draw(st.integers(0, 12)))
        text = text[:start] + draw(st.just("") | st.just(text[end : end + 20]) | pieces) + text[end:]
    return text


def reads_or_refuses(text: str | bytes) -> None:
    problems: tuple[Problem, ...] = ()
    try:
        assert read_policy_text(text, "f").rules
    except PolicyError as error:
        problems = error.problems
    places = [(problem.line or 0, problem.column or 0) for problem in problems]
    assert places == sorted(places)
    assert all(problem.message and problem.source == "f" for problem in problems)
    assert all(part.isprintable() for problem in problems for part in (problem.path, problem.message))


@given(texts)
def test_any_text_is_read_or_refused_in_words(text: str) -> None:
    reads_or_refuses(text)


@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused_in_words(text: bytes) -> None:
    reads_or_refuses(text)


@given(spoiled())
def test_a_spoiled_policy_is_read_or_refused_in_words(text: str) -> None:
    reads_or_refuses(text)


Shape = tuple[str, bool] | list["Shape"] | dict[str, "Shape"]


def shape(node: LocatedNode) -> Shape:
    """A node without its places: the two libraries put a value that was left out at different ones."""
    match node:
        case LocatedScalar(text=text, quoted=quoted):
            return text, quoted
        case LocatedList(items=items):
            return [shape(item) for item in items]
        case LocatedMapping(entries=entries):
            return {key.text: shape(value) for key, value in entries}


@given(texts | spoiled())
def test_both_parsers_read_the_same_or_one_refuses(text: str) -> None:
    """A node without the C library never reads another policy than the command line with it."""
    read: list[tuple[Shape, list[str]]] = []
    for loader in LOADERS:
        found, wrong = locate(text, "f", loader)
        if found is not None:
            read.append((shape(found), [problem.message for problem in wrong]))
    assert all(one == read[0] for one in read)
