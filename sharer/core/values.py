"""`dataclass` for the values of this program: the standard library's, but what a class needs is made when first used.

The standard decorator compiles six methods for each frozen class, 0.35 ms on Python 3.11, and the agent has some 150
such classes: a quarter of its time from start to registered (measured). Most of these methods are called later, many
never. What the standard library's functions know of a dataclass (`fields`, `replace`) is theirs, and a type checker
sees a dataclass like any other. Making many values is faster, too: slots are set without a look at their names.
`replace` and `field_names` are here, too, so that a running agent has the library look at none of its classes.

Not the same: values can be neither copied by `copy` nor pickled, and `inspect.signature` does not tell their fields.
"""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Callable
from copy import copy
from dataclasses import MISSING
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, TypeVar, dataclass_transform

T = TypeVar("T")
Method = Callable[..., Any]  # Any: each method has its own arguments and answer
Fields = dict[str, dataclasses.Field[Any]]  # by name; Any: of whatever type

FEW = 40  # so often a class's `__init__`, say, is done field by field: it takes some 50 until a compiled one has paid

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

    methods = _METHODS | (_FROZEN if frozen else {}) | (_ORDER if order else {})

    def decorate(cls: type[T]) -> type[T]:
        return _with_slots(cls, methods, kw_only=kw_only)

    return decorate


if TYPE_CHECKING:  # by this name a type checker knows which changes a class takes
    from dataclasses import replace as replace
else:

    def replace(value: T, /, **changes: object) -> T:
        """As `dataclasses.replace`, which would have the library look at each class first: 0.15 ms each."""
        cls = type(value)
        if not hasattr(cls, _OWN_FIELDS):
            return dataclasses.replace(value, **changes)
        for name, one in _own_fields(cls).items():
            if one.init:
                if name not in changes:
                    changes[name] = getattr(value, name)
            elif name in changes:
                raise ValueError(f"field {name} is declared with init=False, it cannot be specified with replace()")
        return cls(**changes)


def field_names(of: type) -> tuple[str, ...]:
    """What the fields of such values are called, in their order; none for a class of anything else."""
    return tuple(getattr(of, _OWN_FIELDS, ()))


class _Lazy:
    """An attribute that all classes of values have at first, the same object each. What is due comes into its place."""

    __slots__ = ("_name", "_uses")

    def __init__(self, name: str) -> None:
        self._name = name
        self._uses: dict[type, int] = {}

    def __get__(self, instance: object, owner: type) -> object:
        for cls in owner.__mro__:
            if vars(cls).get(self._name) is self:
                return self._of(cls, instance, owner)
        return getattr(owner if instance is None else instance, self._name)  # another thread was faster

    def _of(self, cls: type, instance: object, owner: type) -> object:
        """What is due, of the class of values that was found to have this."""
        raise NotImplementedError

    def _is_seldom(self, cls: type) -> bool:
        """Whether this class has needed it a few times only, so that it does not pay to compile a method."""
        uses = self._uses[cls] = self._uses.get(cls, 0) + 1
        return uses <= FEW


class _FieldsOf(_Lazy):
    """The class attribute that the library's functions look for: made by the library when they do."""

    __slots__ = ()

    def _of(self, made: type, _instance: object, _owner: type) -> object:
        known = _own_fields(made)
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


def _fields_of(cls: type, names: list[str], *, kw_only: bool) -> Fields:
    """In their order, those of the class that it extends first. A `Field` does not know its name and type yet."""
    found: Fields = dict(getattr(cls, _OWN_FIELDS, ()))
    own, required = vars(cls), _REQUIRED[kw_only]
    for name in names:
        one = own.get(name, required)
        if not isinstance(one, dataclasses.Field):
            one = _with_default(one, kw_only) if type(one) in _PLAIN else dataclasses.field(default=one)
        if one.kw_only is MISSING:
            one.kw_only = kw_only
        found[name] = one
    return found


_PLAIN = (type(None), bool, int, str)
"""Of these most defaults are, and few different ones."""


@lru_cache(maxsize=None, typed=True)  # 0 is not False
def _with_default(default: Any, kw_only: bool) -> dataclasses.Field[Any]:  # Any: what it is, nobody asks
    return dataclasses.field(default=default, kw_only=kw_only)  # type: ignore[no-any-return]


def _own_fields(cls: type) -> Fields:
    found: Fields = getattr(cls, _OWN_FIELDS)
    return found


def _with_slots(cls: type[T], methods: dict[str, object], *, kw_only: bool) -> type[T]:
    """The class once more: its slots must be known when it is made, and defaults cannot stay where they were."""
    names = [name for name, kind in cls.__annotations__.items() if "ClassVar" not in str(kind)]
    inherited = {name for base in cls.__mro__[1:] for name in getattr(base, "__slots__", ())}
    body = {**methods, **vars(cls)}  # as with the library, what a class defines itself stays
    for name in (*names, "__dict__", "__weakref__"):
        body.pop(name, None)
    body["__slots__"] = tuple(name for name in names if name not in inherited)
    body["__match_args__"] = (*getattr(cls, "__match_args__", ()), *(() if kw_only else names))
    body[_OWN_FIELDS] = _fields_of(cls, names, kw_only=kw_only)
    made: type[T] = type(cls.__name__, cls.__bases__, body)
    made.__qualname__ = cls.__qualname__
    return made


class _Making(_Lazy):
    """`__init__` at first: sets one field after another. One that it cannot serve compiles it, as many do."""

    __slots__ = ()

    def _of(self, cls: type, instance: object, _owner: type) -> object:
        return self if instance is None else partial(self._make, cls, instance)

    def _make(self, cls: type, value: Any, *args: object, **kwargs: object) -> None:  # Any: one of the class
        if not (self._is_seldom(cls) and _set_fields(value, cls, args, kwargs)):
            _compile(cls, "__init__", *_source_of_init(cls))(value, *args, **kwargs)


def _set_fields(self: Any, cls: type, args: tuple[object, ...], given: dict[str, object]) -> bool:
    """False: something is missing or too much. The compiled `__init__` says what, in Python's usual words."""
    left, values = iter(args), {}
    for name, one in _own_fields(cls).items():
        value = next(left, MISSING) if one.init and not one.kw_only else MISSING
        if value is not MISSING:
            if name in given:
                return False
            values[name] = value
        elif one.init and name in given:
            values[name] = given[name]
        elif one.default is not MISSING:
            values[name] = one.default
        elif one.default_factory is not MISSING:
            values[name] = one.default_factory()
        elif one.init:
            return False
    if not given.keys() <= values.keys() or next(left, MISSING) is not MISSING or hasattr(cls, "__post_init__"):
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


class _Comparing(_Lazy):
    """A comparison or `__hash__` at first: looks at one field after another. One that is needed often is compiled."""

    __slots__ = ()

    def _of(self, cls: type, instance: object, owner: type) -> object:
        compared = [name for name, one in _own_fields(cls).items() if one.compare]
        if instance is not None and self._is_seldom(cls):
            return partial(_hash if self._name == "__hash__" else _compare, self._name, compared, instance)
        mine, others = (f"({''.join(f'{of}.{name}, ' for name in compared)})" for of in ("self", "other"))
        if self._name == "__hash__":
            source = f"def __hash__(self):\n return hash({mine})"
        else:
            source = (
                f"def {self._name}(self, other):\n"
                f" return {mine} {_SIGNS[self._name]} {others} if other.__class__ is self.__class__ else NotImplemented"
            )
        method: Any = _compile(cls, self._name, source, {})  # Any: a function, and so a descriptor
        return method.__get__(instance, owner)


def _compare(name: str, compared: list[str], one: object, other: object) -> object:
    if other.__class__ is not one.__class__:
        return NotImplemented
    mine, others = (tuple(getattr(value, field) for field in compared) for value in (one, other))
    return getattr(operator, name)(mine, others)


def _hash(_name: str, compared: list[str], value: object) -> int:
    return hash(tuple(getattr(value, field) for field in compared))


def _compile(cls: type, name: str, source: str, scope: dict[str, object]) -> Method:
    """The method, from now on in its place. Two threads at once put the same there."""
    exec(source, scope)
    method: Any = scope[name]
    method.__qualname__ = f"{cls.__qualname__}.{name}"  # for those who read a TypeError
    setattr(cls, name, method)
    return method  # type: ignore[no-any-return]


def _repr(self: Any) -> str:  # Any: a dataclass
    shown = (f"{name}={getattr(self, name)!r}" for name, one in _own_fields(type(self)).items() if one.repr)
    return f"{type(self).__qualname__}({', '.join(shown)})"


def _refuse(_: object, name: str, *_value: object) -> None:
    raise dataclasses.FrozenInstanceError(f"field {name!r} of a frozen value can be neither set nor deleted")


# One of each for all classes: they are few, and each class is made with them in its place.
_METHODS: dict[str, object] = {
    "__init__": _Making("__init__"),
    "__repr__": _repr,
    "__eq__": _Comparing("__eq__"),
    "__hash__": None,
    _FIELDS: _FieldsOf(_FIELDS),
}
_FROZEN: dict[str, object] = {"__hash__": _Comparing("__hash__"), "__setattr__": _refuse, "__delattr__": _refuse}
_ORDER: dict[str, object] = {name: _Comparing(name) for name in _SIGNS if name != "__eq__"}
