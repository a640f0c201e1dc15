"""Server-side apply and merge patch on plain objects: maps merge, everything else is replaced whole."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from sharer.simulation.apiserver.statuses import Failure, Object
from sharer.simulation.apiserver.store import Owners, Path

_IDENTITY = {("apiVersion",), ("kind",), ("metadata", "name"), ("metadata", "namespace"), ("metadata", "uid"),
             ("metadata", "resourceVersion")}  # fmt: skip


def apply(
    live: Object, owners: Owners, wanted: Object, manager: tuple[str, str], *, force: bool
) -> tuple[Object, Owners]:
    """The object after a manager's apply, and who owns what then.

    What the manager applied before and leaves out now is removed, unless another manager owns it too. Raises Failure
    (409) if another manager owns a field with another value, and `force` is not given.
    """
    new = frozenset(path for path in _leaves(wanted) if path not in _IDENTITY)
    others = {other: paths for other, paths in owners.items() if other != manager}
    lost: dict[tuple[str, str], set[Path]] = {}
    for other, paths in others.items():
        taken = {
            path for path in new if _get(live, path) != _get(wanted, path) for mine in paths if _overlap(path, mine)
        }
        if taken:
            lost[other] = taken
    if lost and not force:
        raise _conflict(lost)
    others = {
        other: frozenset(mine for mine in paths if not any(_overlap(mine, path) for path in lost.get(other, ())))
        for other, paths in others.items()
    }
    left_out = owners.get(manager, frozenset()) - new - frozenset().union(*others.values())
    result = live
    for path in left_out:
        result = _without(result, path)
    for path in sorted(new):
        result = _with(result, path, _get(wanted, path))
    return result, {other: paths for other, paths in {**others, manager: new}.items() if paths}


def merge_patch(live: object, patch: object) -> object:
    """The value after an RFC 7386 merge patch.

    >>> merge_patch({"a": 1, "b": {"c": 2}}, {"a": None, "b": {"d": 3}})
    {'b': {'c': 2, 'd': 3}}
    """
    if not isinstance(patch, dict):
        return patch
    result = dict(live) if isinstance(live, dict) else {}
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = merge_patch(result.get(key), value)
    return result


def managed_fields(owners: Owners, api_version: str, time: str) -> list[Object]:
    """`metadata.managedFields` for people who look at it; the server itself works on the owners."""
    return [
        {
            "manager": manager,
            "operation": "Apply",
            "apiVersion": api_version,
            "time": time,
            "fieldsType": "FieldsV1",
            "fieldsV1": _as_tree(paths),
            **({"subresource": subresource} if subresource else {}),
        }
        for (manager, subresource), paths in sorted(owners.items())
    ]


def _leaves(value: object, path: Path = ()) -> Iterator[Path]:
    if isinstance(value, dict) and value:
        for key, inner in value.items():
            yield from _leaves(inner, (*path, key))
    elif path:
        yield path


def _overlap(one: Path, other: Path) -> bool:
    """Whether one is the other, or holds it."""
    return one == other[: len(one)] or other == one[: len(other)]


def _get(value: object, path: Path) -> object:
    for step in path:
        value = value.get(step) if isinstance(value, dict) else None
    return value


def _with(obj: Object, path: Path, value: object) -> Object:
    step, *rest = path
    if not rest:
        return {**obj, step: value}
    inner = obj.get(step)
    return {**obj, step: _with(inner if isinstance(inner, dict) else {}, tuple(rest), value)}


def _without(obj: Object, path: Path) -> Object:
    step, *rest = path
    if step not in obj:
        return obj
    if rest and isinstance(obj[step], dict):
        inner = _without(obj[step], tuple(rest))
        if inner:
            return {**obj, step: inner}
    return {key: value for key, value in obj.items() if key != step}


def _as_tree(paths: Iterable[Path]) -> Object:
    tree: Object = {}
    for path in sorted(paths):
        level = tree
        for step in path:
            level = level.setdefault(f"f:{step}", {})
    return tree


def _conflict(lost: dict[tuple[str, str], set[Path]]) -> Failure:
    causes = [
        {"reason": "FieldManagerConflict", "message": f'conflict with "{manager}"', "field": "." + ".".join(path)}
        for (manager, _), paths in sorted(lost.items())
        for path in sorted(paths)
    ]
    count = f"{len(causes)} conflict" + ("s" if len(causes) > 1 else "")
    first = causes[0]
    return Failure(409, f"Apply failed with {count}: {first['message']}: {first['field']}", details={"causes": causes})
