"""The policy of a live node: what is read, what is refused, when a change takes effect, what a restart remembers."""

from __future__ import annotations

import hashlib

import pytest

from sharer.adapters.yaml_text import read_policy_text
from sharer.core.change.choice import KnownLabels, NodeLabels, UnknownLabels
from sharer.core.errors import NodeError, PolicyError
from sharer.core.policy.model import Policy, TimeSlicing
from sharer.core.ports.policy import PolicyShelf, PolicyText
from sharer.core.slices.plan import make_plan
from sharer.core.tell.ready import why_not_ready
from sharer.flows.look.reload import LABELS_WAIT_S, reload
from sharer.flows.state import NodeState
from sharer.flows.tell.report import known_of
from tests.core.builders import gpu, node

HELD = KnownLabels(held=True)
UNKNOWN = UnknownLabels(reason="the API server has not been read yet")
WRONG = "rules: 1\n"
TWO = node(gpu(0), gpu(1))
UNLIMITED = "slices: 40000, memory: {limit: none}"


def slices(count: int, window: str = "0s") -> str:
    """A policy of so many slices."""
    return (
        "apiVersion: sharer.dev/v1alpha1\nkind: SharingPolicy\n"
        f"rules: [{{match: {{}}, strategy: time-slicing, slices: {count}}}]\nrollout: {{window: {window}}}\n"
    )


def as_text(text: str, source: str) -> PolicyText:
    return PolicyText(source=source, text=text.encode(), digest=hashlib.sha256(text.encode()).hexdigest())


TOO_MANY = slices(40_000).replace("slices: 40000", UNLIMITED)  # for two GPUs, and not for one


class Operator:
    """What is written where the agent reads its policy; it also remembers the last good one, as RUN_DIR does."""

    def __init__(self, **keys: str) -> None:
        self.keys = keys
        self.missing: str | None = None  # why nothing can be read
        self.kept: list[PolicyText] = []
        self.is_full = False  # nothing can be kept

    def shelf(self) -> PolicyShelf:
        if self.missing is not None:
            raise NodeError(self.missing)
        texts = {key: as_text(text, f"cm key {key}") for key, text in self.keys.items()}
        return PolicyShelf(place="cm", texts=texts)

    def keep(self, good: PolicyText) -> None:
        if not self.is_full and good not in self.kept[-1:]:
            self.kept.append(good)

    def last_good(self) -> PolicyText | None:
        return self.kept[-1] if self.kept else None


class Agent:
    """One run of the agent, as far as policies go."""

    def __init__(self, operator: Operator) -> None:
        self.state = NodeState()
        self.state.change(inventory=node(gpu(0)))
        self.parsed = 0
        self._operator = operator

    def look(self, now_s: float = 0.0, labels: NodeLabels = KnownLabels()) -> str | None:  # noqa: B008 - frozen
        return reload(
            self.state, self._operator, self._operator, self._read, node_name="node-1", labels=labels, now_s=now_s
        )

    def refusal(self, now_s: float = 0.0, labels: NodeLabels = KnownLabels()) -> str:  # noqa: B008 - frozen
        with pytest.raises((PolicyError, NodeError)) as refused:
            self.look(now_s, labels)
        return str(refused.value)

    @property
    def in_force(self) -> int | None:
        """How many slices the policy in force makes; None: there is none."""
        policy = self.state.view.policy.policy
        if policy is None:
            return None
        sharing = policy.rules[0].sharing
        assert isinstance(sharing, TimeSlicing)
        return sharing.slices

    def why_not_ready(self) -> str:
        """What the probe says."""
        return str(why_not_ready(known_of(self.state.view), {}, 0.0))

    def _read(self, wanted: PolicyText) -> Policy:
        self.parsed += 1
        return read_policy_text(wanted.text, wanted.source)


# ---- without a window


def test_the_first_policy_and_every_good_edit_take_effect_at_the_next_look() -> None:
    """P07: no restart is needed."""
    operator = Operator(default=slices(4))
    agent = Agent(operator)
    assert str(agent.look()).startswith("policy in force: cm key default, ")
    assert agent.in_force == 4
    assert agent.look(2.0) is None
    operator.keys["default"] = slices(8)
    assert str(agent.look(4.0)).startswith("policy in force: ")
    assert agent.in_force == 8
    assert [one.text.decode() for one in operator.kept] == [slices(4), slices(8)]


def test_a_policy_that_asks_too_much_of_gpus_that_come_late_gives_way_to_the_last_good_one() -> None:
    """Neighbour of P04: it was taken while no driver answered. A restart would follow the one before, and so does this.

    And that stays the one that is kept, until there is another whose lists the kubelet can receive.
    """
    operator = Operator(default=TOO_MANY)
    operator.keep(as_text(slices(4), "cm key default"))
    agent = Agent(operator)
    agent.state.change(inventory=None)
    agent.look()
    assert agent.in_force == 40_000
    agent.state.change(inventory=TWO)
    assert "would have 80000 slices" in agent.refusal()
    assert agent.in_force == 4
    assert agent.look() is None, "the same text is no news"
    assert [one.text.decode() for one in operator.kept] == [slices(4)]
    operator.keys["default"] = slices(8)
    agent.look()
    assert [one.text.decode() for one in operator.kept] == [slices(4), slices(8)]


@pytest.mark.parametrize("kept", [None, TOO_MANY, TOO_MANY.replace("40000", "39999")])
def test_a_policy_of_which_nothing_can_be_offered_is_not_in_force_and_the_node_is_not_ready(kept: str | None) -> None:
    """Neighbour of P04: a probe that says "ready" would have the fault looked for in pods. `kept`: by the last run."""
    operator = Operator(default=TOO_MANY)
    if kept is not None:
        operator.keep(as_text(kept, "cm key default"))
    agent = Agent(operator)
    agent.state.change(inventory=None)
    agent.look()
    assert "driver" in agent.why_not_ready()
    agent.state.change(inventory=TWO)
    refusal = agent.refusal()
    assert agent.why_not_ready() == f"no policy is in force: {refusal}"
    assert agent.look() is None, "the same text is no news"
    assert agent.why_not_ready() == f"no policy is in force: {refusal}"


def test_a_text_that_asked_too_much_is_judged_anew_when_the_gpus_are_others_and_not_before() -> None:
    """MIG devices, say, of which there are fewer now."""
    operator = Operator(default=TOO_MANY)
    agent = Agent(operator)
    agent.state.change(inventory=TWO)
    agent.refusal()
    parsed = agent.parsed
    agent.state.change(inventory=node(gpu(0), gpu(1)))
    assert agent.look() is None, "they are the same"
    assert agent.parsed == parsed
    agent.state.change(inventory=node(gpu(0)))
    agent.look()
    assert (agent.in_force, agent.state.view.policy.refused) == (40_000, None)


def test_slices_that_are_offered_stay_when_more_gpus_make_the_policy_ask_too_much() -> None:
    """`offer` says so: a policy that gave way would take free slices from under pods that are on their way."""
    agent = Agent(Operator(default=TOO_MANY))
    agent.look()
    policy = agent.state.view.policy.policy
    assert policy is not None
    agent.state.change(plan=make_plan(node(gpu(0)), policy), inventory=TWO)
    agent.look()
    assert agent.in_force == 40_000


def test_a_policy_that_could_not_be_kept_when_it_came_into_force_is_kept_later() -> None:
    """P32's kind; found by `tests/faults`: a restart beside a wrong policy would go back to an older one."""
    operator = Operator(default=slices(4))
    agent = Agent(operator)
    operator.is_full = True
    agent.look()
    operator.is_full = False
    agent.look(2.0)
    assert [one.text.decode() for one in operator.kept] == [slices(4)]


def test_a_wrong_policy_is_refused_once_and_the_one_in_force_stays() -> None:
    """P07: a swap to broken content, then to a good one."""
    operator = Operator(default=slices(4))
    agent = Agent(operator)
    agent.look()
    operator.keys["default"] = WRONG
    assert "cm key default:1" in agent.refusal()
    assert agent.look() is None, "the same text is no news"
    assert agent.in_force == 4
    assert "cm key default:1" in str(agent.state.view.policy.refused)
    operator.keys["default"] = slices(8)
    agent.look()
    assert (agent.in_force, agent.state.view.policy.refused) == (8, None)


def test_a_policy_with_a_list_that_the_kubelet_cannot_receive_is_refused_as_a_whole() -> None:
    operator = Operator(default=slices(4))
    agent = Agent(operator)
    agent.state.change(inventory=node(gpu(0), gpu(1)))
    agent.look()
    operator.keys["default"] = slices(40_000).replace("slices: 40000", "slices: 40000, memory: {limit: none}")
    assert "Lower slices" in agent.refusal()
    assert agent.in_force == 4


def test_a_source_that_cannot_be_read_changes_nothing_but_says_so() -> None:
    operator = Operator(default=slices(4))
    agent = Agent(operator)
    agent.look()
    operator.missing = "gone"
    assert agent.refusal() == "gone"
    assert (agent.in_force, agent.state.view.policy.unread) == (4, "gone")
    operator.missing = None
    assert agent.look() is None
    assert agent.state.view.policy.unread is None


@pytest.mark.parametrize("window", ["0s", "10m"])
def test_a_source_that_was_deleted_and_made_anew_with_another_text_is_an_edit_like_any_other(window: str) -> None:
    """Neighbour of P07: `kubectl replace --force`, or the release installed again."""
    operator = Operator(default=slices(4))
    agent = Agent(operator)
    agent.look()
    operator.missing = "there is no cm"
    agent.refusal(2.0)
    operator.missing = None
    operator.keys["default"] = slices(8, window)
    agent.look(4.0)
    staged = agent.state.view.policy.staged
    assert (agent.in_force, staged is None) == ((8, True) if window == "0s" else (4, False))
    assert agent.state.view.policy.unread is None


def test_a_staged_policy_whose_key_is_deleted_never_takes_effect_and_counts_anew_when_it_is_back() -> None:
    """Neighbour of P05: the key goes between the first look and the node's turn."""
    operator = Operator(default=slices(4))
    agent = Agent(operator)
    agent.look()
    operator.keys["default"] = slices(8, "10m")
    agent.look(100.0)
    first = agent.state.view.policy.staged
    del operator.keys["default"]
    assert "it has no key at all" in agent.refusal(102.0)
    assert (agent.in_force, agent.state.view.policy.staged) == (4, None)
    operator.keys["default"] = slices(8, "10m")
    agent.look(2000.0)
    again = agent.state.view.policy.staged
    assert first is not None
    assert again is not None
    assert again.turn_s == pytest.approx(first.turn_s + 1900.0)
    assert agent.in_force == 4


def test_a_refusal_is_still_told_after_the_source_was_away() -> None:
    operator = Operator(default=slices(4))
    agent = Agent(operator)
    agent.look()
    operator.keys["default"] = WRONG
    agent.refusal()
    operator.missing = "gone"
    agent.refusal()
    operator.missing = None
    assert agent.look() is None
    assert "cm key default:1" in str(agent.state.view.policy.refused)


# ---- P05: which policy


def test_a_label_with_a_typo_keeps_the_policy_in_force_and_both_names_are_told() -> None:
    """P05."""
    agent = Agent(Operator(default=slices(4), a100=slices(8)))
    agent.look(labels=KnownLabels(policy_name="a100"))
    assert "did you mean 'a100'?" in agent.refusal(labels=KnownLabels(policy_name="a10O"))
    standing = agent.state.view.policy
    assert standing.policy is not None
    assert (standing.wanted_name, standing.policy.source, agent.in_force) == ("a10O", "cm key a100", 8)


def test_a_removed_label_means_the_default() -> None:
    """P05."""
    agent = Agent(Operator(default=slices(4), a100=slices(8)))
    agent.look(labels=KnownLabels(policy_name="a100"))
    agent.look()
    assert agent.in_force == 4


def test_a_key_that_is_deleted_while_in_use_leaves_its_policy_in_force_over_a_restart() -> None:
    """P05."""
    operator = Operator(default=slices(4), a100=slices(8))
    wants = KnownLabels(policy_name="a100")
    agent = Agent(operator)
    agent.look(labels=wants)
    del operator.keys["a100"]
    assert "has no key 'a100'" in agent.refusal(labels=wants)
    again = Agent(operator)
    again.refusal(labels=wants)
    assert (agent.in_force, again.in_force) == (8, 8)


def test_on_the_first_start_the_declared_default_stands_in_for_a_missing_key() -> None:
    """P05."""
    agent = Agent(Operator(default=slices(4)))
    wants = KnownLabels(policy_name="a10O")
    agent.look(labels=wants)
    assert agent.in_force == 4
    assert "has no key 'a10O'" in agent.refusal(labels=wants)


def test_no_good_policy_at_all_is_no_policy_and_no_end() -> None:
    agent = Agent(Operator(b=slices(4)))
    assert "it has b" in agent.refusal()
    assert agent.in_force is None


def test_a_new_node_waits_for_its_labels_and_then_takes_the_default() -> None:
    agent = Agent(Operator(default=slices(4), a100=slices(8)))
    assert "is not known" in str(agent.look(0.0, UNKNOWN))
    assert "is not known" in str(agent.look(LABELS_WAIT_S - 0.1, UNKNOWN))
    assert agent.state.view.policy.policy is None
    agent.look(LABELS_WAIT_S, UNKNOWN)
    assert agent.in_force == 4
    assert "count as absent" in agent.state.view.policy.warnings[0]


def test_a_new_node_whose_labels_come_in_time_takes_the_policy_that_they_name() -> None:
    agent = Agent(Operator(default=slices(4), a100=slices(8)))
    agent.look(0.0, UNKNOWN)
    agent.look(2.0, KnownLabels(policy_name="a100"))
    assert agent.in_force == 8


# ---- the rollout window


def test_a_changed_policy_waits_for_this_node_s_turn() -> None:
    operator = Operator(default=slices(4))
    agent = Agent(operator)
    agent.look()
    operator.keys["default"] = slices(8, "10m")
    said = agent.look(100.0)
    assert "is staged" in str(said)
    staged = agent.state.view.policy.staged
    assert staged is not None
    assert 100.0 < staged.turn_s < 700.0
    assert agent.look(staged.turn_s - 0.1) == said, "in the same words"
    assert agent.in_force == 4
    assert "policy in force" in str(agent.look(staged.turn_s))
    assert agent.in_force == 8
    assert agent.parsed == 2, "a text is read once"


def test_a_turn_is_not_moved_by_a_source_that_is_away_for_a_while() -> None:
    operator = Operator(default=slices(4))
    agent = Agent(operator)
    agent.look()
    operator.keys["default"] = slices(8, "10m")
    agent.look(100.0)
    staged = agent.state.view.policy.staged
    operator.missing = "gone"
    agent.refusal(120.0)
    operator.missing = None
    agent.look(130.0)
    assert agent.state.view.policy.staged == staged


def test_another_edit_within_the_window_has_a_turn_of_its_own() -> None:
    operator = Operator(default=slices(4))
    agent = Agent(operator)
    agent.look()
    operator.keys["default"] = slices(8, "10m")
    agent.look(100.0)
    operator.keys["default"] = slices(2)  # a correction without a window
    agent.look(102.0)
    assert agent.in_force == 2
    assert agent.look(10_000.0) is None
    assert agent.in_force == 2


def test_an_edit_that_is_taken_back_within_the_window_never_takes_effect() -> None:
    operator = Operator(default=slices(4))
    agent = Agent(operator)
    agent.look()
    operator.keys["default"] = slices(8, "10m")
    agent.look(100.0)
    operator.keys["default"] = slices(4)
    assert agent.look(102.0) is None
    assert agent.look(10_000.0) is None
    assert agent.in_force == 4


def test_a_held_node_keeps_its_policy_until_the_label_is_gone() -> None:
    operator = Operator(default=slices(4))
    agent = Agent(operator)
    agent.look()
    operator.keys["default"] = slices(8)
    assert "sharer.dev/hold holds this node" in str(agent.look(2.0, HELD))
    assert "sharer.dev/hold holds this node" in str(agent.look(10_000.0, HELD))
    assert agent.in_force == 4
    agent.look(10_002.0)
    assert agent.in_force == 8


# ---- restarts


def test_a_restart_within_the_window_keeps_the_policy_in_force_and_counts_a_new_turn() -> None:
    operator = Operator(default=slices(4))
    agent = Agent(operator)
    agent.look()
    operator.keys["default"] = slices(8, "10m")
    agent.look(100.0)
    again = Agent(operator)
    said = again.look(50.0)  # a new process has a clock of its own
    assert again.in_force == 4
    assert "policy in force" in str(said)
    assert "is staged" in str(said)
    before, after = agent.state.view.policy.staged, again.state.view.policy.staged
    assert before is not None
    assert after is not None
    assert after.turn_s - after.seen_s == before.turn_s - before.seen_s
    again.look(after.turn_s)
    assert again.in_force == 8


def test_a_restart_with_a_wrong_policy_follows_the_last_good_one() -> None:
    operator = Operator(default=slices(4))
    Agent(operator).look()
    operator.keys["default"] = WRONG
    agent = Agent(operator)
    agent.refusal()
    assert agent.in_force == 4


def test_a_restart_while_the_api_is_away_changes_nothing_however_long_it_is_away() -> None:
    operator = Operator(default=slices(4), a100=slices(8))
    Agent(operator).look(labels=KnownLabels(policy_name="a100"))
    agent = Agent(operator)
    for now_s in (0.0, LABELS_WAIT_S, 100 * LABELS_WAIT_S):
        assert "is not known" in str(agent.look(now_s, UNKNOWN))
        assert agent.in_force == 8


def test_a_last_good_policy_that_this_version_does_not_accept_is_as_good_as_none() -> None:
    """P32."""
    operator = Operator(default=slices(4))
    operator.keep(as_text(WRONG, "cm key default"))
    agent = Agent(operator)
    agent.look()
    assert agent.in_force == 4


def test_after_a_restart_the_policy_is_told_by_where_it_is_wanted_from_now() -> None:
    operator = Operator(default=slices(4))
    operator.keep(as_text(slices(4), "cm key a100"))
    agent = Agent(operator)
    agent.look()
    policy = agent.state.view.policy.policy
    assert policy is not None
    assert policy.source == "cm key default"
    assert {one.digest for one in operator.kept} == {as_text(slices(4), "").digest}, "nothing new is to be kept"
