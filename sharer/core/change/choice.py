"""Which of the policies that there are is this node's: its labels choose, and can hold it as it is (DESIGN §4).

A wrong choice re-cuts a live node, so what is not known is not guessed. Labels that the API server has not told (yet)
leave a policy in force as it is; a key that is missing does too, and only a node that never had a policy falls back to
the declared default (bug case P05).
"""

from __future__ import annotations

from collections.abc import Collection

from sharer.core.brief import some
from sharer.core.holders.observations import ApiSync, ApiTroubleKind, NodeSeen
from sharer.core.policy.values import nearest
from sharer.core.ports.policy import PolicyShelf, PolicyText
from sharer.core.values import dataclass

POLICY_LABEL = "sharer.dev/policy"  # of a Node: the key of its policy
HOLD_LABEL = "sharer.dev/hold"  # of a Node: whatever policy is wanted, the one in force stays
DEFAULT_NAME = "default"
_OUR_LABELS = "sharer.dev/"
_GPU_LABELS = "sharer.dev/gpu"  # by hand, for the chart's DaemonSets, and what the agent itself tells of the GPUs
_SUFFIXES = ("", ".yaml", ".yml")
_MANY_KEYS = 10  # are named in a message


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownLabels:
    """What a node's labels say about its policy; without the labels, what the API says by their absence."""

    policy_name: str = DEFAULT_NAME
    held: bool = False
    problem: str | None = None  # why the labels can never be read; the node is then taken to have none
    unknown: tuple[str, ...] = ()  # labels that look like ours and mean nothing


@dataclass(frozen=True, slots=True, kw_only=True)
class UnknownLabels:
    """The labels may say anything."""

    reason: str
    for_long: bool = False  # asking again soon will not help


NodeLabels = KnownLabels | UnknownLabels


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyChoice:
    """What a node is to follow, as far as it can be told."""

    name: str | None  # the key that its label asks for; None: not known, or one policy serves every node
    text: PolicyText | None  # None: that key is missing, or it is not known
    problem: str | None = None  # why the text is not, or may not be, the one asked for
    warnings: tuple[str, ...] = ()


def labels_of(node: NodeSeen | None, sync: ApiSync | None, node_name: str, others: Collection[str] = ()) -> NodeLabels:
    """What the API server says about a node's labels. `sync` None: it is not asked, so there are no labels.

    `others`: keys that mean something beside the choice, such as what pauses us. A Node that does not exist has no
    labels, but is not taken at its word: one that is made anew gets its own back.
    """
    if sync is None:
        return KnownLabels()
    if node is not None:
        name = node.labels.get(POLICY_LABEL) or DEFAULT_NAME
        return KnownLabels(
            policy_name=name,
            held=node.labels.get(HOLD_LABEL, "false") != "false",
            unknown=tuple(sorted(key for key in node.labels if _means_nothing(key) and key not in others)),
        )
    if sync.synced_at_s is not None:
        return UnknownLabels(reason=f"the API server has no Node called {node_name}; check --node-name")
    if sync.trouble is None:
        return UnknownLabels(reason="the API server has not been read yet")
    if sync.trouble.kind is ApiTroubleKind.FORBIDDEN:
        return UnknownLabels(reason=sync.trouble.message, for_long=True)
    return UnknownLabels(reason=sync.trouble.message)


def choose_policy(shelf: PolicyShelf, labels: NodeLabels, *, is_first: bool) -> PolicyChoice:
    """This node's policy. `is_first`: it follows none yet, so the declared default may stand in for a missing one."""
    if shelf.is_for_every_node:
        return PolicyChoice(name=None, text=next(iter(shelf.texts.values())), warnings=_warnings(shelf, labels))
    for_long = isinstance(labels, UnknownLabels) and labels.for_long
    default = _find(shelf, DEFAULT_NAME) if is_first or for_long else None
    if isinstance(labels, UnknownLabels):
        only = default if len(shelf.texts) == 1 else None  # whatever the label says, nothing else could be taken
        unknown = f"which policy of {shelf.place} this node wants is not known: {labels.reason}"
        return PolicyChoice(name=None, text=only, problem=unknown, warnings=shelf.warnings)
    name = labels.policy_name
    wanted = _find(shelf, name)
    problem = _missing(shelf, name) if wanted is None else None
    warnings = (*_warnings(shelf, labels), *_hidden(shelf, name))
    return PolicyChoice(name=name, text=wanted or default, problem=problem, warnings=warnings)


def _warnings(shelf: PolicyShelf, labels: NodeLabels) -> tuple[str, ...]:
    if isinstance(labels, UnknownLabels):
        return shelf.warnings
    found = [*shelf.warnings, *([labels.problem] if labels.problem is not None else [])]
    found += [f"the label {key} means nothing; did you mean {_meant(key)}?" for key in labels.unknown]
    if shelf.is_for_every_node and labels.policy_name != DEFAULT_NAME:
        found.append(f"the label {POLICY_LABEL}={labels.policy_name} chooses nothing: {shelf.place} is one policy")
    return tuple(found)


def _find(shelf: PolicyShelf, name: str) -> PolicyText | None:
    return next((shelf.texts[key] for key in _keys(shelf, name)), None)


def _keys(shelf: PolicyShelf, name: str) -> list[str]:
    """The keys that a name can mean. The first one is followed."""
    return [key for suffix in _SUFFIXES if (key := name + suffix) in shelf.texts]


def _hidden(shelf: PolicyShelf, name: str) -> list[str]:
    """A warning of keys that nobody reads, so that an edit of theirs would change nothing (bug case P07)."""
    followed, *others = _keys(shelf, name) or [name]
    return [f"{shelf.place} has {' and '.join(others)} beside {followed}, which is followed; remove one"] * bool(others)


def _means_nothing(label: str) -> bool:
    """Whether a label is in our name and none of ours (bug case P01): a slip of the pen chooses no policy."""
    return label.startswith(_OUR_LABELS) and label not in (POLICY_LABEL, HOLD_LABEL) and not _tells_of_gpus(label)


def _tells_of_gpus(label: str) -> bool:
    return label == _GPU_LABELS or label.startswith(f"{_GPU_LABELS}.")


def _meant(label: str) -> str:
    near = nearest(
        label.removeprefix(_OUR_LABELS), [one.removeprefix(_OUR_LABELS) for one in (POLICY_LABEL, HOLD_LABEL)]
    )
    return f"{POLICY_LABEL} or {HOLD_LABEL}" if near is None else _OUR_LABELS + near


def _missing(shelf: PolicyShelf, name: str) -> str:
    why = f"without another one in the label {POLICY_LABEL}" if name == DEFAULT_NAME else f"by its label {POLICY_LABEL}"
    return f"{shelf.place} has no key {name!r}, which this node asks for {why}; {_there_are(shelf.texts, name)}"


def _there_are(keys: Collection[str], name: str) -> str:
    if not keys:
        return "it has no key at all"
    from difflib import get_close_matches  # only a missing policy needs it

    near = get_close_matches(name, keys, n=1, cutoff=0.7)
    if near:
        return f"did you mean {near[0]!r}?"
    return f"it has {some(sorted(keys), _MANY_KEYS)}"
