"""Who may do what: tokens, RBAC rules, and denials made for a test."""

from __future__ import annotations

import threading
from collections.abc import Iterable

from sharer.simulation.apiserver.kinds import Target
from sharer.simulation.apiserver.records import Rule
from sharer.simulation.apiserver.statuses import Failure


class Access:
    """Everything is allowed to everybody until somebody says otherwise."""

    def __init__(self, user: str) -> None:
        self._user = user
        self._lock = threading.Lock()
        self._tokens: frozenset[str] | None = None
        self._rules: tuple[Rule, ...] | None = None
        self._denied: set[tuple[str, str]] = set()

    def accept_tokens(self, tokens: Iterable[str] | None) -> None:
        """From now on only these bearer tokens are known; None: nobody needs one."""
        with self._lock:
            self._tokens = None if tokens is None else frozenset(tokens)

    def grant(self, rules: Iterable[Rule] | None) -> None:
        """From now on only what these rules allow is allowed; None: everything."""
        with self._lock:
            self._rules = None if rules is None else tuple(rules)

    def deny(self, verb: str, resource: str) -> None:
        """Refuse a verb on a resource, whatever the rules say."""
        with self._lock:
            self._denied.add((verb, resource))

    def allow(self, verb: str, resource: str) -> None:
        """Take a denial back."""
        with self._lock:
            self._denied.discard((verb, resource))

    def authenticate(self, token: str | None) -> None:
        """Raises Failure (401)."""
        with self._lock:
            if self._tokens is not None and token not in self._tokens:
                raise Failure(401, "Unauthorized")

    def authorize(self, verb: str, target: Target, name: str | None) -> None:
        """Raises Failure (403). `name` is the one in the path, or the only one a field selector lets through."""
        if not self.allows(verb, target.kind.group, target.resource, target.namespace, name):
            raise self._forbidden(verb, target)

    def allows(self, verb: str, group: str, resource: str, namespace: str | None, name: str | None) -> bool:
        """Whether that would be allowed: what a SelfSubjectAccessReview asks."""
        with self._lock:
            return (verb, resource) not in self._denied and (
                self._rules is None
                or any(_covered(rule, verb, group, resource, namespace, name) for rule in self._rules)
            )

    def _forbidden(self, verb: str, target: Target) -> Failure:
        kind = target.kind
        scope = f'in the namespace "{target.namespace}"' if target.namespace else "at the cluster scope"
        what = f'{kind.qualified} "{target.name}"' if target.name else kind.qualified
        return Failure(
            403,
            f'{what} is forbidden: User "{self._user}" cannot {verb} resource "{target.resource}"'
            f' in API group "{kind.group}" {scope}',
            details={"kind": kind.plural, **({"group": kind.group} if kind.group else {})},
        )


def _covered(rule: Rule, verb: str, group: str, resource: str, namespace: str | None, name: str | None) -> bool:
    return (
        _covers(rule.groups, group)
        and _covers(rule.resources, resource)
        and _covers(rule.verbs, verb)
        and (not rule.names or name in rule.names)
        and (rule.namespace is None or rule.namespace == namespace)
    )


def _covers(allowed: tuple[str, ...], wanted: str) -> bool:
    return "*" in allowed or wanted in allowed
