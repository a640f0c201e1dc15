"""P05: a node that asks for a policy which is not there."""

from __future__ import annotations

import hashlib

import pytest

from sharer.core.change.choice import KnownLabels, NodeLabels, PolicyChoice, UnknownLabels, choose_policy, labels_of
from sharer.core.holders.observations import ApiSync, ApiTrouble, ApiTroubleKind, NodeSeen
from sharer.core.ports.policy import PolicyShelf, PolicyText

NO_LABEL, A100, TYPO = KnownLabels(), KnownLabels(policy_name="a100"), KnownLabels(policy_name="a10O")
UNKNOWN = UnknownLabels(reason="the API server has not been read yet")
SYNCED = ApiSync(synced_at_s=1.0, trouble=None)


def text(key: str) -> PolicyText:
    return PolicyText(
        source=f"configmap gpu/p key {key}", text=key.encode(), digest=hashlib.sha256(key.encode()).hexdigest()
    )


def shelf(*keys: str, is_for_every_node: bool = False) -> PolicyShelf:
    return PolicyShelf(
        place="configmap gpu/p", texts={key: text(key) for key in keys}, is_for_every_node=is_for_every_node
    )


def chosen(choice: PolicyChoice) -> str | None:
    return None if choice.text is None else choice.text.text.decode()


def troubled(kind: ApiTroubleKind) -> ApiSync:
    return ApiSync(synced_at_s=None, trouble=ApiTrouble(kind=kind, message="it is so", since_s=0.0))


def labelled(**labels: str) -> NodeLabels:
    seen = NodeSeen(uid="u", name="n", labels={f"sharer.dev/{name}": value for name, value in labels.items()})
    return labels_of(seen, SYNCED, "n")


# ---- the key


@pytest.mark.parametrize("first", [True, False])
def test_the_label_names_the_key_and_without_it_default_is_meant(first: bool) -> None:
    keys = shelf("a100", "default")
    assert chosen(choose_policy(keys, A100, is_first=first)) == "a100"
    assert chosen(choose_policy(keys, NO_LABEL, is_first=first)) == "default"


@pytest.mark.parametrize("key", ["default", "default.yaml", "default.yml"])
def test_a_key_may_end_in_yaml(key: str) -> None:
    assert chosen(choose_policy(shelf(key), NO_LABEL, is_first=False)) == key


def test_a_key_without_an_ending_goes_before_one_with() -> None:
    assert chosen(choose_policy(shelf("default.yaml", "default"), NO_LABEL, is_first=False)) == "default"


def test_a_missing_key_changes_nothing_on_a_node_that_has_a_policy() -> None:
    """P05: the label has a typo, or the key was deleted while in use."""
    choice = choose_policy(shelf("a100", "default"), TYPO, is_first=False)
    assert (choice.name, choice.text) == ("a10O", None)
    assert choice.problem is not None
    assert "did you mean 'a100'?" in choice.problem


def test_a_missing_key_is_stood_in_for_by_the_declared_default_on_a_node_without_a_policy() -> None:
    """P05: the wanted and the used one are both told."""
    choice = choose_policy(shelf("a100", "default"), TYPO, is_first=True)
    assert (choice.name, chosen(choice)) == ("a10O", "default")
    assert "has no key 'a10O'" in str(choice.problem)


def test_without_the_key_and_without_a_default_there_is_no_policy() -> None:
    choice = choose_policy(shelf("b", "c"), TYPO, is_first=True)
    assert choice.text is None
    assert "it has b, c" in str(choice.problem)
    assert "it has no key at all" in str(choose_policy(shelf(), NO_LABEL, is_first=True).problem)


def test_one_file_serves_every_node_and_a_label_that_chooses_nothing_is_warned_of() -> None:
    one = shelf("policy.yaml", is_for_every_node=True)
    assert choose_policy(one, NO_LABEL, is_first=False) == PolicyChoice(name=None, text=text("policy.yaml"))
    choice = choose_policy(one, A100, is_first=False)
    assert chosen(choice) == "policy.yaml"
    assert len(choice.warnings) == 1
    assert "sharer.dev/policy=a100 chooses nothing" in choice.warnings[0]


@pytest.mark.parametrize("first", [True, False])
def test_a_key_that_is_hidden_by_another_is_warned_of(first: bool) -> None:
    """Neighbour of P07: `--from-file=default.yaml` beside a key `default`: an edit of the hidden one does nothing."""
    choice = choose_policy(shelf("default.yaml", "default", "a100.yml", "a100.yaml"), NO_LABEL, is_first=first)
    assert chosen(choice) == "default"
    [warning] = choice.warnings
    assert "has default.yaml beside default, which is followed" in warning


def test_a_label_of_ours_with_a_slip_in_its_key_is_warned_of_with_the_one_that_was_meant() -> None:
    """Neighbour of P01 and P05: an unknown label is no error to anybody, and the node just keeps the default."""
    seen = {"sharer.dev/Policy": "a100", "sharer.dev/gpu": "true", "sharer.dev/gpu.count": "8", "x.dev/policy": "a"}
    labels = labels_of(NodeSeen(uid="u", name="n", labels=seen), SYNCED, "n")
    for one in (shelf("a100", "default"), shelf("policy.yaml", is_for_every_node=True)):
        [warning] = choose_policy(one, labels, is_first=False).warnings
        assert warning == "the label sharer.dev/Policy means nothing; did you mean sharer.dev/policy?"


def test_a_label_of_ours_that_resembles_nothing_names_both_that_there_are() -> None:
    """Neighbour of P01: somebody thinks that a label sets the slices."""
    [warning] = choose_policy(shelf("default"), labelled(slices="8"), is_first=False).warnings
    assert warning.endswith("did you mean sharer.dev/policy or sharer.dev/hold?")


def test_a_label_that_pauses_the_agent_is_no_slip_whatever_its_key() -> None:
    """`--pause-label` takes any key, also one below sharer.dev/."""
    seen = NodeSeen(uid="u", name="n", labels={"sharer.dev/maintenance": "paused-for-firmware", "sharer.dev/pol": "a"})
    labels = labels_of(seen, SYNCED, "n", ["example.com/gpu", "sharer.dev/maintenance"])
    [warning] = choose_policy(shelf("default"), labels, is_first=False).warnings
    assert warning.startswith("the label sharer.dev/pol means nothing")


# ---- labels that are not known


def test_while_the_labels_are_not_known_nothing_is_chosen_among_several_keys() -> None:
    for first in (True, False):
        choice = choose_policy(shelf("a100", "default"), UNKNOWN, is_first=first)
        assert (choice.name, choice.text) == (None, None)
        assert "has not been read yet" in str(choice.problem)


def test_a_node_without_a_policy_takes_the_only_key_default_before_its_labels_are_known() -> None:
    assert chosen(choose_policy(shelf("default"), UNKNOWN, is_first=True)) == "default"
    assert choose_policy(shelf("default"), UNKNOWN, is_first=False).text is None
    assert choose_policy(shelf("a100"), UNKNOWN, is_first=True).text is None


# ---- the labels


def test_labels_are_read_from_the_node() -> None:
    assert labelled() == KnownLabels()
    assert labelled(policy="a100") == KnownLabels(policy_name="a100")
    assert labelled(policy="") == KnownLabels()


@pytest.mark.parametrize(("value", "held"), [("true", True), ("", True), ("maintenance", True), ("false", False)])
def test_a_hold_label_holds_whatever_its_value_is_but_false(value: str, held: bool) -> None:
    assert labelled(hold=value) == KnownLabels(held=held)


def test_without_the_api_there_are_no_labels() -> None:
    assert labels_of(None, None, "n") == KnownLabels()


def test_an_api_that_never_answered_leaves_the_labels_unknown_and_one_that_forbids_leaves_them_so_for_long() -> None:
    assert isinstance(labels_of(None, ApiSync(synced_at_s=None, trouble=None), "n"), UnknownLabels)
    for kind in set(ApiTroubleKind) - {ApiTroubleKind.FORBIDDEN}:
        assert labels_of(None, troubled(kind), "n") == UnknownLabels(reason="it is so")
    forbidden = labels_of(None, troubled(ApiTroubleKind.FORBIDDEN), "n")
    assert forbidden == UnknownLabels(reason="it is so", for_long=True)


def test_a_node_object_that_is_gone_leaves_the_labels_unknown() -> None:
    """A Node that is made anew may get its labels back; until then nothing is re-cut."""
    assert labels_of(None, SYNCED, "n") == UnknownLabels(
        reason="the API server has no Node called n; check --node-name"
    )


def test_where_labels_may_never_be_read_a_single_policy_is_followed_and_of_several_none_is_guessed() -> None:
    """P36: an edit still reaches such a node; a node that had another policy is not re-cut to the default."""
    forbidden = UnknownLabels(reason="pods is forbidden", for_long=True)
    one = choose_policy(shelf("default"), forbidden, is_first=False)
    assert one.text is not None
    assert choose_policy(shelf("default", "a100"), forbidden, is_first=False).text is None
