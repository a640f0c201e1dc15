"""What changed in the ledger, in sentences for the log: who holds what now, what is free again, what is not and why."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from sharer.core.brief import some, some_sentences
from sharer.core.holders.evidence import Holder, SliceKey
from sharer.core.holders.ledger import Entry, Ledger, State

_NOTHING = Entry()


def ledger_news(before: Ledger, after: Ledger) -> Iterator[str]:
    """One sentence for all slices of which the same is new."""
    if after.entries is before.entries:
        return
    changed = {
        key: (before.entry(key), entry) for key, entry in after.entries.items() if before.entry(key) is not entry
    }
    changed |= {key: (entry, _NOTHING) for key, entry in before.entries.items() if key not in after.entries}
    yield from _told(changed, _taken, lambda ids, holder: f"{holder} holds {ids}")
    yield from _told(changed, _free, lambda ids, _: f"{ids} free again")
    yield from _told(changed, _quarantined, lambda ids, reason: f"{ids} in quarantine: {reason}")
    yield from _told(changed, _shared, lambda ids, remnants: f"of {remnants} something still runs on {ids}")


def describe(holder: Holder) -> str:
    """A container, as far as it is known: "default/train (main)"."""
    pod = f"pod {holder.uid}" if holder.pod is None else f"{holder.namespace}/{holder.pod}"
    return f"{pod} ({holder.container})"


def _told(
    changed: Mapping[SliceKey, tuple[Entry, Entry]],
    what: Callable[[Entry, Entry], str | None],
    sentence: Callable[[str, str], str],
) -> list[str]:
    ids: dict[str, list[str]] = {}
    for key, (before, after) in sorted(changed.items()):
        if (news := what(before, after)) is not None:
            ids.setdefault(news, []).append(key[1])
    return some_sentences([sentence(some(found), news) for news, found in ids.items()])


def _taken(before: Entry, after: Entry) -> str | None:
    """A new owner, once it has a name: the checkpoint has only its UID, and a moment later the list follows."""
    if after.owner is None or after.owner.pod is None or after.state is not State.HELD:
        return None
    if before.owner is not None and before.owner.pod is not None and before.owner.is_same(after.owner):
        return None
    return describe(after.owner)


def _free(before: Entry, after: Entry) -> str | None:
    return "" if after == _NOTHING and before.state is not State.ALLOCATED else None


def _quarantined(before: Entry, after: Entry) -> str | None:
    return after.reason if after.state is State.QUARANTINED and before.state is not State.QUARANTINED else None


def _shared(before: Entry, after: Entry) -> str | None:
    """Former owners beside a new one."""
    known = {remnant.holder for remnant in before.remnants}
    new = [remnant.holder for remnant in after.remnants if remnant.holder not in known]
    return ", ".join(map(describe, new)) if new and after.owner is not None else None
