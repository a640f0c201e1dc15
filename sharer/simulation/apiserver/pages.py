"""Lists in pages, and the tokens that continue them.

A token names a snapshot that the server keeps for a while. When it is gone the answer is 410 with a fresh token in
`metadata.continue`, which works but shows the rest of the list as it is now (api-server-facts §4).
"""

from __future__ import annotations

import base64
import binascii
from collections import OrderedDict
from dataclasses import dataclass

import msgspec

from sharer.simulation.apiserver.kinds import Target
from sharer.simulation.apiserver.selectors import Select
from sharer.simulation.apiserver.statuses import Failure, Object
from sharer.simulation.apiserver.store import Key, Store, Stored

MOST_SNAPSHOTS = 4096
INCONSISTENT = -1


class _Token(msgspec.Struct, kw_only=True, frozen=True):
    rv: int  # INCONSISTENT: as it is now
    namespace: str
    name: str  # of the last object of the page before

    def encode(self) -> str:
        return base64.urlsafe_b64encode(msgspec.json.encode(self)).decode()


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """What a list asks for, read from its query string."""

    select: Select
    has_selector: bool
    limit: int | None
    token: str  # "" for the first page
    version: str  # "" is unset
    match: str  # resourceVersionMatch


class Lists:
    """Answers lists, and remembers what their next pages are."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._snapshots: OrderedDict[tuple[_Token, str], tuple[Stored, ...]] = OrderedDict()

    def expire(self) -> None:
        """Forget every snapshot: all tokens are too old now."""
        with self._store.lock:
            self._snapshots.clear()

    def answer(self, target: Target, query: Query) -> bytes:
        """One page, as the kind's list. Raises Failure."""
        metadata, page = self.page(target, query)
        return b'{"kind":"%bList","apiVersion":"%b","metadata":%b,"items":[%b]}\n' % (
            target.kind.kind.encode(),
            target.kind.api_version.encode(),
            msgspec.json.encode(metadata),
            b",".join(stored.item for stored in page),
        )

    def page(self, target: Target, query: Query) -> tuple[Object, tuple[Stored, ...]]:
        """The list's metadata, and the objects of one page. Raises Failure."""
        with self._store.lock:
            scope = f"{target.kind.qualified} {target.namespace}"
            if query.token:
                version, found = self._continued(target, query, scope)
            else:
                version = self._check_version(query)
                found = tuple(self._store.select(target.kind, target.namespace, query.select))
            page, rest = found, found[:0]
            if query.limit and query.version != "0" and query.match != "NotOlderThan":
                page, rest = found[: query.limit], found[query.limit :]
            metadata: Object = {"resourceVersion": str(version)}
            if rest:
                token = _Token(rv=version, namespace=page[-1].key.namespace, name=page[-1].key.name)
                self._keep((token, scope), rest)
                metadata["continue"] = token.encode()
                if not query.has_selector:
                    metadata["remainingItemCount"] = len(rest)
        return metadata, page

    def _check_version(self, query: Query) -> int:
        """The version that a fresh list is of."""
        present = self._store.version
        if not query.version:
            return present
        try:
            wanted = int(query.version)
        except ValueError:
            raise Failure(400, f'invalid resource version "{query.version}"') from None
        if wanted > present:
            raise Failure(
                504,
                f"Too large resource version: {wanted}, current: {present}",
                details={"causes": [{"reason": "ResourceVersionTooLarge", "message": "Too large resource version"}]},
                retry_after_s=1,
            )
        exact = query.match == "Exact" or (query.limit and not query.match)
        if exact and 0 < wanted < present:
            raise Failure(410, "The resourceVersion for the provided list is too old.")
        return present

    def _continued(self, target: Target, query: Query, scope: str) -> tuple[int, tuple[Stored, ...]]:
        if query.version:
            raise Failure(400, "specifying resource version is not allowed when using continue")
        try:
            token = msgspec.json.decode(base64.urlsafe_b64decode(query.token), type=_Token)
        except (binascii.Error, UnicodeError, msgspec.DecodeError) as error:
            raise Failure(400, f"continue key is not valid: {error}") from error
        key = Key(token.namespace, token.name)
        if token.rv == INCONSISTENT:
            return self._store.version, tuple(self._store.select(target.kind, target.namespace, query.select, key))
        kept = self._snapshots.get((token, scope))
        if kept is None:
            fresh = _Token(rv=INCONSISTENT, namespace=token.namespace, name=token.name).encode()
            raise Failure(
                410,
                "The provided continue parameter is too old to display a consistent list result.",
                metadata={"continue": fresh},
            )
        return token.rv, kept

    def _keep(self, key: tuple[_Token, str], rest: tuple[Stored, ...]) -> None:
        self._snapshots[key] = rest
        if len(self._snapshots) > MOST_SNAPSHOTS:
            self._snapshots.popitem(last=False)
