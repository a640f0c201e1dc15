"""A ValidatingAdmissionPolicy as an API server evaluates it (api-server-facts §1), with Google's CEL.

What Kubernetes adds to the language and these policies use is here: quantities, and `join` of lists. Types are checked
by the API server and not here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import cache
from typing import Any

from cel_expr_python import cel

Object = Mapping[str, Any]  # Any: an object of Kubernetes'

_SUFFIXES = {
    "": Decimal(1), "m": Decimal("0.001"), "k": Decimal(10**3), "M": Decimal(10**6), "G": Decimal(10**9),
    "Ki": Decimal(2**10), "Mi": Decimal(2**20), "Gi": Decimal(2**30),
}  # fmt: skip
_NAMES = ("object", "oldObject", "request", "variables")


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """One validation that did not hold."""

    message: str
    reason: str


@cache
def _environment() -> Any:
    number, text, words = cel.Type.DOUBLE, cel.Type.STRING, cel.Type.LIST
    functions = [
        _function("quantity", number, [text], _quantity),
        _function("isGreaterThan", cel.Type.BOOL, [number, number], lambda left, right: left > right, is_member=True),
        _function(
            "compareTo",
            cel.Type.INT,
            [number, number],
            lambda left, right: (left > right) - (left < right),
            is_member=True,
        ),
        _function("join", text, [words, text], lambda parts, between: between.join(map(str, parts)), is_member=True),
    ]
    return cel.NewEnv(variables=dict.fromkeys(_NAMES, cel.Type.DYN), functions=functions)


def _function(
    name: str, returns: cel.Type, parameters: list[cel.Type], body: Callable[..., object], *, is_member: bool = False
) -> cel.FunctionDecl:
    overload = cel.Overload(f"{name}_of_kubernetes", returns, parameters, is_member=is_member, impl=body)
    return cel.FunctionDecl(name, [overload])


def _quantity(text: str) -> float:
    number = text.rstrip("mkMGKi")
    return float(Decimal(number) * _SUFFIXES[text[len(number) :]])


@cache
def _compiled(expression: str) -> Any:
    return _environment().compile(expression)


def evaluate(expression: str, data: Mapping[str, object]) -> Any:
    """The value of an expression. Raises RuntimeError for what an API server calls an error, and so refuses."""
    found = _compiled(expression).eval(data=dict(data))
    if found.type() == cel.Type.ERROR:
        raise RuntimeError(f"{expression}: {found.value()}")
    return found.plain_value()


def judge(policy: Object, *, request: Object, new: Object | None, old: Object | None = None) -> list[Refused] | None:
    """Every validation that does not hold; None: the policy does not look at this request.

    An API server tells only the first one. `request` has operation, resource, userInfo and what else is needed.
    """
    spec = policy["spec"]
    if not any(_matches(rule, request) for rule in spec["matchConstraints"]["resourceRules"]):
        return None
    data: dict[str, object] = {"object": new, "oldObject": old, "request": request, "variables": {}}
    if not all(evaluate(one["expression"], data) for one in spec.get("matchConditions", ())):
        return None
    variables: dict[str, object] = {}
    for one in spec.get("variables", ()):
        variables[one["name"]] = evaluate(one["expression"], data)
        data["variables"] = dict(variables)
    return [
        Refused(message=_message(one, data), reason=one.get("reason", "Invalid"))
        for one in spec["validations"]
        if not evaluate(one["expression"], data)
    ]


def _message(validation: Object, data: Mapping[str, object]) -> str:
    expression = validation.get("messageExpression")
    return str(validation["message"] if expression is None else evaluate(expression, data))


def _matches(rule: Object, request: Object) -> bool:
    resource = request["resource"]
    plural = "/".join(part for part in (resource["resource"], request.get("subResource", "")) if part)
    return (
        request["operation"] in rule["operations"]
        and _has(rule["apiGroups"], resource["group"])
        and _has(rule["apiVersions"], resource["version"])
        and _has(rule["resources"], plural)
    )


def _has(allowed: Sequence[str], wanted: str) -> bool:
    return "*" in allowed or wanted in allowed
