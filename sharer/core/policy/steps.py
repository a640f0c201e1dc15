"""One step forward and one back: how a policy in a ConfigMap is replaced so that the one before is not lost.

The text that was replaced is kept in an annotation of the ConfigMap itself, with its key: one step, the last one. Going
back exchanges the two, so that going back twice is as if nothing had been done. A text that came into the ConfigMap
another way (Helm, kubectl, GitOps) leaves no such record, and it is for those tools to go back.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from sharer.core.errors import InputError
from sharer.core.values import dataclass

PREVIOUS = "sharer.dev/previous"  # an annotation of the ConfigMap
MOST_BYTES = 128 * 1024  # of the annotation; all of an object's have at most 256 KiB
_SUFFIXES = ("", ".yaml", ".yml")  # as in core/change/choice


@dataclass(frozen=True, slots=True, kw_only=True)
class Replacement:
    """One text of a ConfigMap in the place of another."""

    key: str  # of the ConfigMap's data
    before: str | None  # None: there is no such key yet
    after: str

    def fields(self, resource_version: str) -> dict[str, object]:
        """What to merge into the ConfigMap, if it is still of this version. Raises InputError if it is too long."""
        record = None
        if self.before is not None:
            record = json.dumps({"key": self.key, "text": self.before})
            if len(record.encode()) > MOST_BYTES:
                raise InputError(f"the policy under {self.key!r} is too long to be kept for a rollback; use kubectl")
        return {
            "metadata": {"resourceVersion": resource_version, "annotations": {PREVIOUS: record}},
            "data": {self.key: self.after},
        }


def replace_text(place: str, data: Mapping[str, str], name: str, text: str) -> Replacement:
    """The step to a text for those nodes that ask for `name`. Raises InputError if it is that text already."""
    key = next((name + suffix for suffix in _SUFFIXES if name + suffix in data), name)
    if data.get(key) == text:
        raise InputError(f"{place} has this text under {key!r} already; nothing was changed")
    return Replacement(key=key, before=data.get(key), after=text)


def go_back(place: str, data: Mapping[str, str], annotations: Mapping[str, str]) -> Replacement:
    """The step to the text before. Raises InputError if none is recorded, or what is recorded is of no use."""
    record = annotations.get(PREVIOUS)
    if record is None:
        raise InputError(
            f"{place} has no record of a policy before this one: only `sharer policy apply` leaves one. Go back with"
            " the tool that changed it (helm rollback, git revert), or apply the older file"
        )
    try:
        found = json.loads(record)
        key, text = found["key"], found["text"]
    except (ValueError, TypeError, KeyError, RecursionError):
        key = text = None
    if not isinstance(key, str) or not isinstance(text, str):
        raise InputError(
            f"the annotation {PREVIOUS} of {place} is not as sharer wrote it; apply the older file instead"
        )
    if data.get(key) == text:
        raise InputError(f"{place} has the recorded text under {key!r} already; nothing was changed")
    return Replacement(key=key, before=data.get(key), after=text)
