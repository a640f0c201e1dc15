"""`dataclass` for the values of this program: the standard library's, but what a class needs is made when first used.

The standard decorator compiles six methods for each frozen class, 0.35 ms on Python 3.11, and the agent has some 150
such classes: a quarter of its time from start to registered (measured). Most of these methods are called later, many
never. What the standard library's functions know of a dataclass (`fields`, `replace`) is theirs, and a type checker
sees a dataclass like any other. Making many values is faster, too: slots are set without a look at their names.

Not the same: values can be neither copied by `copy` nor pickled, and `inspect.signature` does not tell their fields.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from copy import copy
from dataclasses import MISSING
from types import MethodType
from typing import Any, TypeVar, dataclass_transform

T = TypeVar("T")
Method = Callable[..., Any]  # Any: each method has its own arguments and answer
Fields = dict[str, dataclasses.Field[Any]]  # by name; Any: of whatever type

FEW = 24  # values of a class are made one field after another: it takes some 50 until a compiled `__init__` has paid

_FIELDS = "__dataclass_fields__"  # how the library knows a dataclass
_OWN_FIELDS = "_fields_by_name"  # how this module does, without the library's work for each class (25 µs)
_SIGNS = {"__eq__": "==", "__lt__": "<", "__le__": "<=", "__gt__": ">", "__ge__": ">="}


@dataclass_transform(field_specifiers=(dataclasses.field,))
def dataclass(
    *, frozen: bool = False, slots: bool = False, kw_only: bool = False, order: bool = False, eq: bool = True
) -> Callable[[type[T]], type[T]]:
    """As `dataclasses.dataclass`; cheaper for those that have slots."""
    if not (slots and eq):
        return dataclasses.dataclass(frozen=frozen, slots=slots, kw_only=kw_only, order=order, eq=eq)

    def decorate(cls: type[T]) -> type[T]:
        made = _with_slots(cls, positional=not kw_only)
        setattr(made, _OWN_FIELDS, _fields_of(cls, kw_only=kw_only))
        methods: dict[str, object] = {"__init__": _Making(made), "__repr__": _repr, "__hash__": None}
        methods |= {name: _Comparing(made, name) for name in (_SIGNS if order else ["__eq__"])}
        if frozen:
            methods |= {"__hash__": _Comparing(made, "__hash__"), "__setattr__": _refuse, "__delattr__": _refuse}
        for name in methods.keys() - vars(cls).keys():  # as with the library, what a class defines itself stays
            setattr(made, name, methods[name])
        setattr(made, _FIELDS, _FieldsOf(made))
        return made

    return decorate


class _FieldsOf:
    """The class attribute that the library's functions look for: made by the library when they do."""

    __slots__ = ("_made",)

    def __init__(self, made: type) -> None:
        self._made = made

    def __get__(self, _instance: object, _owner: type) -> object:
        made, known = self._made, _own_fields(self._made)
        lineage = [base for base in reversed(made.__mro__) if _OWN_FIELDS in vars(base)]
        kinds = {name: kind for base in lineage for name, kind in base.__annotations__.items()}
        # A `Field` is copied, since the library writes into it, and several classes and threads may have the same one.
        values = {name: copy(known[name]) if name in known else getattr(made, name, MISSING) for name in kinds}
        body = {**values, "__annotations__": kinds, "__module__": made.__module__, "__doc__": made.__doc__}
        plain: type = dataclasses.dataclass(init=False, repr=False, eq=False)(type(made.__name__, (), body))
        for name in (_FIELDS, "__dataclass_params__"):  # a class that extends this one is asked for both
            setattr(made, name, getattr(plain, name))
        found: object = getattr(made, _FIELDS)
        return found


_REQUIRED = {kw_only: dataclasses.field(kw_only=kw_only) for kw_only in (False, True)}
"""For fields of which nothing else is to be known, as of most: 1,400 of their own were 0.15 MiB of an agent."""


def _fields_of(cls: type, *, kw_only: bool) -> Fields:
    """In their order, those of the class that it extends first. A `Field` does not know its name and type yet."""
    found: Fields = dict(getattr(cls, _OWN_FIELDS, {}))
    for name in _names(cls):
        one = vars(cls).get(name, _REQUIRED[kw_only])
        if not isinstance(one, dataclasses.Field):
            one = dataclasses.field(default=one)
        one.kw_only = kw_only if one.kw_only is MISSING else one.kw_only
        found[name] = one
    return found


def _own_fields(cls: type) -> Fields:
    found: Fields = getattr(cls, _OWN_FIELDS)
    return found


def _names(cls: type) -> list[str]:
    return [name for name, kind in cls.__annotations__.items() if "ClassVar" not in str(kind)]


def _with_slots(cls: type[T], *, positional: bool) -> type[T]:
    """The class once more: its slots must be known when it is made, and defaults cannot stay where they were."""
    names = _names(cls)
    inherited = {name for base in cls.__mro__[1:] for name in getattr(base, "__slots__", ())}
    left_out = {*names, "__dict__", "__weakref__"}
    body = {name: value for name, value in vars(cls).items() if name not in left_out}
    body["__slots__"] = tuple(name for name in names if name not in inherited)
    body["__match_args__"] = (*getattr(cls, "__match_args__", ()), *(names if positional else ()))
    made: type[T] = type(cls.__name__, cls.__bases__, body)
    made.__qualname__ = cls.__qualname__
    return made


class _Making:
    """`__init__` at first: sets one field after another. A further call, or one that it cannot serve, compiles it."""

    __slots__ = ("_calls", "_cls")

    def __init__(self, cls: type) -> None:
        self._cls, self._calls = cls, 0

    def __get__(self, instance: object, _owner: type) -> object:
        return self if instance is None else MethodType(self, instance)

    def __call__(self, value: Any, *args: object, **kwargs: object) -> None:  # Any: one of the class
        self._calls += 1
        if args or self._calls > FEW or not _set_fields(value, self._cls, kwargs):
            _compile(self._cls, "__init__", *_source_of_init(self._cls))(value, *args, **kwargs)


def _set_fields(self: Any, cls: type, given: dict[str, object]) -> bool:
    """False: something is missing or too much. The compiled `__init__` says what, in Python's usual words."""
    values = {}
    for name, one in _own_fields(cls).items():
        if one.init and name in given:
            values[name] = given[name]
        elif one.default is not MISSING:
            values[name] = one.default
        elif one.default_factory is not MISSING:
            values[name] = one.default_factory()
        elif one.init:
            return False
    if not given.keys() <= values.keys() or hasattr(cls, "__post_init__"):
        return False
    for name, value in values.items():
        object.__setattr__(self, name, value)  # the class's own refuses
    return True


def _source_of_init(cls: type) -> tuple[str, dict[str, object]]:
    """Sets the fields in their order, then calls `__post_init__`; and what it refers to."""
    scope: dict[str, object] = {"_unset": MISSING}
    positional, keywords, body = ["self"], ["*"], []
    for name, one in _own_fields(cls).items():
        value = name
        scope[f"_set_{name}"] = getattr(cls, name).__set__  # the slot's
        parameter = name
        if one.default is not MISSING:
            scope[f"_default_{name}"] = one.default
            parameter = f"{name}=_default_{name}"
        elif one.default_factory is not MISSING:
            scope[f"_make_{name}"] = one.default_factory
            parameter, value = f"{name}=_unset", f"_make_{name}() if {name} is _unset else {name}"
        if one.init:
            (keywords if one.kw_only else positional).append(parameter)
            body.append(f" _set_{name}(self, {value})")
    if hasattr(cls, "__post_init__"):
        body.append(" self.__post_init__()")
    parameters = ", ".join(positional + (keywords if len(keywords) > 1 else []))
    return "\n".join([f"def __init__({parameters}):", *body, " return None"]), scope


class _Comparing:
    """A comparison or `__hash__`, as a class attribute that puts the method in its own place when it is looked for."""

    __slots__ = ("_cls", "_name")

    def __init__(self, cls: type, name: str) -> None:
        self._cls, self._name = cls, name

    def __get__(self, instance: object, owner: type) -> object:
        compared = [name for name, one in _own_fields(self._cls).items() if one.compare]
        mine, others = (f"({''.join(f'{of}.{name}, ' for name in compared)})" for of in ("self", "other"))
        if self._name == "__hash__":
            source = f"def __hash__(self):\n return hash({mine})"
        else:
            source = (
                f"def {self._name}(self, other):\n"
                f" return {mine} {_SIGNS[self._name]} {others} if other.__class__ is self.__class__ else NotImplemented"
            )
        method: Any = _compile(self._cls, self._name, source, {})  # Any: a function, and so a descriptor
        return method.__get__(instance, owner)


def _compile(cls: type, name: str, source: str, scope: dict[str, object]) -> Method:
    """The method, from now on in its place. Two threads at once put the same there."""
    exec(source, scope)
    method: Any = scope[name]
    method.__qualname__ = f"{cls.__qualname__}.{name}"  # for those who read a TypeError
    setattr(cls, name, method)
    return method  # type: ignore[no-any-return]


def _repr(self: Any) -> str:  # Any: a dataclass
    shown = (f"{one.name}={getattr(self, one.name)!r}" for one in dataclasses.fields(self) if one.repr)
    return f"{type(self).__qualname__}({', '.join(shown)})"


def _refuse(_: object, name: str, *_value: object) -> None:
    raise dataclasses.FrozenInstanceError(f"field {name!r} of a frozen value can be neither set nor deleted")
