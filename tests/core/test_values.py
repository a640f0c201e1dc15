"""A value made by `core.values` is what the library's frozen dataclass would be, the first one and the tenth."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import FrozenInstanceError, field, fields
from typing import Any, ClassVar, Generic, TypeVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sharer.core.values import FEW, dataclass, field_names, replace

T = TypeVar("T")
Decorator = Callable[..., Any]  # Any: the same classes are made twice, by two decorators


def make_point(decorator: Decorator) -> Any:
    @decorator(frozen=True, slots=True, kw_only=True)
    class Point:
        """With every kind of field."""

        kind: ClassVar[str] = "point"
        x: int
        y: int = 0
        tags: list[str] = field(default_factory=list)
        source: str = field(default="", compare=False, repr=False)

        @property
        def sum(self) -> int:
            """A property stays one."""
            return self.x + self.y

    return Point


def make_pair(decorator: Decorator) -> Any:
    @decorator(frozen=True, slots=True, order=True)
    class Pair:
        one: int
        other: int = 7
        text: str = field(init=False, repr=False, compare=False)

        def __post_init__(self) -> None:
            object.__setattr__(self, "text", f"{self.one}/{self.other}")

    return Pair


def make_place(decorator: Decorator) -> Any:
    @decorator(frozen=True, slots=True, order=True)
    class Place:
        """Of places, names, and both."""

        row: int
        column: int = 0
        note: str = field(default="", kw_only=True)

    return Place


Ours, Library = make_point(dataclass), make_point(dataclasses.dataclass)
OurPair, LibraryPair = make_pair(dataclass), make_pair(dataclasses.dataclass)


def outcome(made_of: Any, given: dict[str, Any], *places: int) -> str:
    """What comes of it, as text; an error by its words."""
    try:
        return repr(made_of(*places, **given))
    except TypeError as error:
        return str(error)


arguments = st.fixed_dictionaries(
    {},
    optional={"x": st.integers(), "y": st.integers(), "tags": st.just(["a"]), "source": st.just("s"), "z": st.none()},
)


@given(st.lists(arguments, min_size=1, max_size=2 * FEW))
def test_whatever_it_is_made_from_it_is_made_or_refused_as_the_library_does(given: list[dict[str, Any]]) -> None:
    ours = make_point(dataclass)
    for one in given:
        assert outcome(ours, one) == outcome(Library, one)


named = st.fixed_dictionaries(
    {}, optional={"row": st.integers(), "column": st.integers(), "note": st.just("n"), "z": st.none()}
)


@given(st.lists(st.tuples(st.lists(st.integers(), max_size=3), named), min_size=1, max_size=5))
def test_arguments_by_place_are_taken_as_the_library_takes_them(given: list[tuple[list[int], dict[str, Any]]]) -> None:
    ours, library = make_place(dataclass), make_place(dataclasses.dataclass)
    for places, names in given:
        assert outcome(ours, names, *places) == outcome(library, names, *places)


def test_a_value_compares_as_the_first_and_as_the_hundredth_does() -> None:
    place = make_place(dataclass)
    one, other = place(1), place(2)
    looks = [(one == place(1), one == other, one < other, one >= other, one == 1) for _ in range(3 * FEW)]
    assert set(looks) == {(True, False, True, False, False)}
    assert len({hash(place(1, note="n")) for _ in range(3 * FEW)}) == 1
    for _ in range(2 * FEW):
        with pytest.raises(TypeError, match="not supported between instances"):
            _ = one < 1


@given(st.integers(0, 3), st.integers(0, 3), st.integers(0, 3), st.integers(0, 3))
def test_values_compare_sort_and_hash_by_their_fields(a: int, b: int, c: int, d: int) -> None:
    ours, library = (OurPair(a, b), OurPair(c, d)), (LibraryPair(a, b), LibraryPair(c, d))
    for one, other in (ours, library):
        assert (one == other) == ((a, b) == (c, d))
        assert (one < other, one <= other, one > other, one >= other) == (
            (a, b) < (c, d), (a, b) <= (c, d), (a, b) > (c, d), (a, b) >= (c, d),
        )  # fmt: skip
    assert hash(ours[0]) == hash(library[0])
    assert ours[0].text == f"{a}/{b}"


def test_a_field_that_is_not_compared_makes_no_difference() -> None:
    assert Ours(x=1, source="a") == Ours(x=1, source="b")
    assert Ours(x=1) != Library(x=1)


def test_nothing_of_a_value_can_be_changed() -> None:
    point = Ours(x=1)
    with pytest.raises(FrozenInstanceError, match="'x'"):
        point.x = 2
    with pytest.raises(FrozenInstanceError, match="'x'"):
        del point.x
    with pytest.raises(FrozenInstanceError, match="'other'"):
        point.other = 2
    assert not hasattr(point, "__dict__")


def test_one_that_is_not_frozen_can_be_changed_and_so_is_no_key() -> None:
    @dataclass(slots=True)
    class Mutable:
        x: int
        tags: list[str] = field(default_factory=list)

    for _ in range(2 * FEW):
        made = Mutable(1)
        assert made == Mutable(1, [])
        made.x = 2
        assert made != Mutable(1)
        assert not hasattr(made, "__dict__")
    with pytest.raises(TypeError, match="unhashable"):
        hash(Mutable(1))


def test_the_librarys_functions_know_it() -> None:
    assert [one.name for one in fields(Ours)] == [one.name for one in fields(Library)]
    assert dataclasses.replace(Ours(x=1, y=2), y=3) == Ours(x=1, y=3)
    assert Ours.kind == "point"
    assert Ours(x=1, y=2).sum == 3


def test_a_value_is_replaced_as_the_library_does_it_without_its_help() -> None:
    made, pair = make_point(dataclass), make_pair(dataclass)
    assert replace(made(x=1, y=2), y=3) == made(x=1, y=3)
    assert replace(pair(1), one=2).text == "2/7"
    with pytest.raises(ValueError, match="init=False"):
        replace(pair(1), text="")
    with pytest.raises(TypeError, match="unexpected keyword argument 'z'"):
        replace(made(x=1), z=3)
    assert replace(Library(x=1), y=3) == Library(x=1, y=3)
    assert type(vars(made)["__dataclass_fields__"]) is not dict  # which the library would have made of it


def test_the_names_of_fields_are_told_of_values_only() -> None:
    assert field_names(Ours) == ("x", "y", "tags", "source")
    assert field_names(int) == ()


def test_default_factories_make_a_new_object_each_time() -> None:
    made = [Ours(x=1) for _ in range(2 * FEW)]
    assert len({id(one.tags) for one in made}) == len(made)


def test_a_pattern_matches_by_name_and_where_fields_have_places_by_place() -> None:
    match OurPair(1, 2):
        case OurPair(one, other):
            assert (one, other) == (1, 2)
    match Ours(x=1):
        case Ours(x=x):
            assert x == 1


def test_a_method_that_a_class_defines_itself_stays() -> None:
    @dataclass(frozen=True, slots=True, kw_only=True)
    class Named:
        name: str

        def __repr__(self) -> str:
            return self.name

    assert repr(Named(name="n")) == "n"


def test_a_value_may_extend_another_and_be_generic() -> None:
    @dataclass(frozen=True, slots=True, kw_only=True)
    class Base(Generic[T]):
        first: T

    @dataclass(frozen=True, slots=True, kw_only=True)
    class Extended(Base[int]):
        second: str = ""

    for _ in range(2 * FEW):
        assert Extended(first=1, second="2") == Extended(first=1, second="2")
    assert [one.name for one in fields(Extended)] == ["first", "second"]
    assert Extended(first=1) != Base(first=1)


def test_a_thread_that_asks_for_the_fields_while_another_does_finds_the_same() -> None:
    """Found by `tests/faults`: an agent lost a thread to it at its start."""
    made = make_point(dataclass)
    both_see_this = vars(made)["__dataclass_fields__"]
    for _ in range(2):
        found = both_see_this.__get__(None, made)
        assert [one.name for one in found.values() if one.default_factory is not dataclasses.MISSING] == ["tags"]
        assert [one.name for one in found.values() if one.default is not dataclasses.MISSING] == ["kind", "y", "source"]


def test_fields_of_different_classes_keep_their_own_names_and_types() -> None:
    """What is to be known of most fields is in memory once for all classes."""

    @dataclass(frozen=True, slots=True, kw_only=True)
    class Size:
        bytes: int

    @dataclass(frozen=True, slots=True, kw_only=True)
    class Name:
        text: str

    assert [(one.name, one.type) for cls in (Size, Name) for one in fields(cls)] == [("bytes", "int"), ("text", "str")]
    assert [one.name for one in fields(Size)] == ["bytes"]
