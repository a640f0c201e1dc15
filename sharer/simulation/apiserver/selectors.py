"""Label and field selectors, as the API server reads them."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from sharer.simulation.apiserver.kinds import EVENT, NODE, POD, Kind
from sharer.simulation.apiserver.statuses import Failure, Object

Select = Callable[[Object], bool]
"""Whether an object is asked for."""

_NAME = ("metadata.name",)
_NAMESPACED = ("metadata.name", "metadata.namespace")
_FIELDS = {
    POD: (*_NAMESPACED, "spec.nodeName", "status.phase", "spec.restartPolicy", "spec.serviceAccountName"),
    NODE: (*_NAME, "spec.unschedulable"),
    EVENT: (
        *_NAMESPACED, "involvedObject.kind", "involvedObject.namespace", "involvedObject.name", "involvedObject.uid",
        "reason", "type",
    ),
}  # fmt: skip
_SET = re.compile(r"\s*([^\s!=,()]+)\s+(in|notin)\s*\(([^)]*)\)\s*")
_TERM = re.compile(r"\s*(!?)([^\s!=,()]+)\s*(?:(==|=|!=)\s*([^\s,]*)\s*)?")
_NAME_PART = r"[A-Za-z0-9](?:[-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?"
_KEY = re.compile(rf"(?:[a-z0-9](?:[-a-z0-9.]*[a-z0-9])?/)?{_NAME_PART}")
_VALUE = re.compile(rf"(?:{_NAME_PART})?")


def compile_selectors(kind: Kind, labels: str, fields: str) -> Select:
    """The selector of a list or watch. Raises Failure (400) for one that the API server does not understand."""
    checks = [*_label_checks(labels), *_field_checks(kind, labels, fields)]
    if len(checks) == 1:
        return checks[0]
    return lambda obj: all(check(obj) for check in checks)


def named(fields: str) -> str | None:
    """The only name that a field selector lets through; None: it does not fix one."""
    for term in fields.split(","):
        field, operator, value = _split(term)
        if field == "metadata.name" and operator != "!=":
            return value
    return None


def _field_checks(kind: Kind, labels: str, fields: str) -> list[Select]:
    allowed = _FIELDS.get(kind, _NAMESPACED if kind.namespaced else _NAME)
    checks = []
    for term in filter(None, fields.split(",")):
        field, operator, value = _split(term)
        if field not in allowed or not operator:
            what = f'"{kind.group}/{kind.version}, Resource={kind.plural}"'
            problem = f"field label not supported: {field}" if operator else f"invalid selector: '{fields}'"
            raise Failure(
                400,
                f'Unable to find {what} that match label selector "{labels}", field selector "{fields}": {problem}',
            )
        checks.append(_field_check(tuple(field.split(".")), value, operator != "!="))
    return checks


def _field_check(path: tuple[str, ...], value: str, wanted: bool) -> Select:
    def check(obj: Object) -> bool:
        found: Any = obj
        for step in path:
            found = found.get(step) or {}
        return (str(found or "") == value) is wanted

    return check


def _split(term: str) -> tuple[str, str, str]:
    found = re.fullmatch(r"\s*([^=!\s]+)\s*(?:(==|=|!=)\s*(.*?)\s*)?", term)
    return (found[1], found[2] or "", found[3] or "") if found else (term, "", "")


def _label_checks(text: str) -> list[Select]:
    checks: list[Select] = []
    rest = text
    while rest.strip():
        if found := _SET.match(rest):
            values = {value.strip() for value in found[3].split(",")}
            checks.append(_label_check(found[1], values, found[2] == "in"))
        elif found := _TERM.match(rest):
            absent, key, operator, value = found.groups()
            if operator:
                checks.append(_label_check(key, {value}, operator != "!="))
            else:
                checks.append(_presence_check(key, not absent))
        else:
            raise Failure(400, f"unable to parse requirement: {text}")
        rest = rest[found.end() :]
        if rest and not rest.startswith(","):
            raise Failure(400, f"unable to parse requirement: found '{rest}', expected: ',' or 'end of string'")
        rest = rest[1:]
    return checks


def _label_check(key: str, values: set[str], wanted: bool) -> Select:
    for value in values:
        _check_form(value, _VALUE)
    _check_form(key, _KEY)
    return lambda obj: (labels_of(obj).get(key) in values) is wanted


def _check_form(text: str, form: re.Pattern[str]) -> None:
    if not form.fullmatch(text):
        raise Failure(400, f'unable to parse requirement: <nil>: Invalid value: "{text}"')


def _presence_check(key: str, wanted: bool) -> Select:
    _check_form(key, _KEY)
    return lambda obj: (key in labels_of(obj)) is wanted


def labels_of(obj: Object) -> Mapping[str, str]:
    """An object's labels."""
    labels: Mapping[str, str] = obj["metadata"].get("labels") or {}
    return labels
