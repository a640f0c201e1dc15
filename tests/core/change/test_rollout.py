from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from sharer.core.change.choice import KnownLabels, UnknownLabels
from sharer.core.change.rollout import (
    PolicyInForce,
    is_new,
    refuse,
    stage,
    take_turn,
    turn_s,
    wanted_as_it_is,
    why_staged,
    withdraw,
)
from sharer.core.policy.model import Policy
from sharer.core.ports.policy import PolicyText
from tests.core.builders import gpu, node

FREE, HELD = KnownLabels(), KnownLabels(held=True)
UNKNOWN = UnknownLabels(reason="the API server has not been read yet")
OLD, NEW = Policy(rules=()), Policy(rules=(), rollout_window_s=600.0, source="new.yaml")
TEXT = PolicyText(source="new.yaml", text=b"", digest="b" * 64)
IN_FORCE = PolicyInForce(policy=OLD, digest="a" * 64, wanted_digest="a" * 64)


def staged(policy: Policy = NEW, now_s: float = 0.0, standing: PolicyInForce = IN_FORCE) -> PolicyInForce:
    return stage(standing, policy, TEXT, "node-1", now_s)


def turn_of(standing: PolicyInForce) -> float:
    assert standing.staged is not None
    return standing.staged.turn_s


# ---- turns


@given(st.text(), st.text(), st.floats(0, 1e6), st.floats(0, 1e5))
def test_a_turn_is_within_the_window_and_the_same_for_everybody_who_works_it_out(
    node: str, digest: str, seen_s: float, window_s: float
) -> None:
    turn = turn_s(node, digest, seen_s, window_s)
    assert seen_s <= turn <= seen_s + window_s
    assert turn == turn_s(node, digest, seen_s, window_s)


def test_the_nodes_of_a_fleet_take_their_turns_evenly_over_the_window() -> None:
    turns = [turn_s(f"node-{number}", TEXT.digest, 0.0, 100.0) for number in range(1000)]
    tenths = [sum(lower <= turn < lower + 10 for turn in turns) for lower in range(0, 100, 10)]
    assert sum(tenths) == 1000
    assert min(tenths) > 60
    assert max(tenths) < 140


def test_each_change_has_another_order() -> None:
    orders = [
        sorted(range(20), key=lambda number: turn_s(f"node-{number}", digest, 0.0, 1.0)) for digest in ("a", "b", "c")
    ]
    assert orders[0] != orders[1] != orders[2] != orders[0]


# ---- staging


def test_a_changed_policy_is_staged_and_takes_effect_at_the_node_s_turn() -> None:
    standing = staged()
    turn = turn_of(standing)
    assert 0.0 < turn < 600.0
    assert take_turn(standing, FREE, turn - 0.01) == standing
    after = take_turn(standing, FREE, turn)
    assert (after.policy, after.digest, after.staged) == (NEW, TEXT.digest, None)


def test_without_a_window_a_changed_policy_takes_effect_at_once() -> None:
    standing = take_turn(staged(replace(NEW, rollout_window_s=0.0)), FREE, 0.0)
    assert standing.digest == TEXT.digest


def test_a_node_without_any_policy_takes_the_first_one_at_once_held_or_not() -> None:
    for labels in (FREE, HELD, UNKNOWN):
        standing = take_turn(staged(standing=PolicyInForce()), labels, 0.0)
        assert standing.digest == TEXT.digest


def test_a_held_node_keeps_its_policy_past_its_turn_and_follows_at_once_when_it_is_let_go() -> None:
    standing = take_turn(staged(), HELD, 10_000.0)
    assert standing.digest == IN_FORCE.digest
    assert "sharer.dev/hold holds this node" in str(why_staged(standing))
    assert take_turn(standing, FREE, 10_002.0).digest == TEXT.digest


def test_while_it_is_not_known_whether_a_node_is_held_its_policy_stays() -> None:
    standing = take_turn(staged(), UNKNOWN, 10_000.0)
    assert standing.digest == IN_FORCE.digest
    assert "has not been read yet" in str(why_staged(standing))


def test_what_a_staged_policy_waits_for_is_told_in_the_same_words_each_time() -> None:
    standing = staged()
    assert why_staged(standing) == why_staged(take_turn(standing, FREE, 1.0))
    assert "within a window of 10m" in str(why_staged(standing))
    assert why_staged(IN_FORCE) is None


# ---- what is wanted


def test_a_text_is_judged_once() -> None:
    assert is_new(IN_FORCE, TEXT)
    assert not is_new(staged(), TEXT)
    assert not is_new(refuse(IN_FORCE, "it is wrong", TEXT.digest), TEXT)
    assert not is_new(take_turn(staged(), FREE, 600.0), TEXT)


def test_a_text_that_asked_too_much_of_the_gpus_is_judged_again_when_they_are_others() -> None:
    one, two = node(gpu(0)), node(gpu(0), gpu(1))
    standing = refuse(IN_FORCE, "it asks too much", TEXT.digest, on=two)
    assert not is_new(standing, TEXT, node(gpu(0), gpu(1)))
    assert is_new(standing, TEXT, one)
    assert not is_new(refuse(standing, "it is wrong", TEXT.digest), TEXT, one), "wrong for whatever GPUs"


def test_without_the_policy_in_force_whatever_is_wanted_is_judged_anew() -> None:
    standing = withdraw(staged())
    assert (standing.policy, standing.digest, standing.staged) == (None, None, None)
    assert is_new(standing, TEXT)
    assert is_new(withdraw(refuse(IN_FORCE, "it asks too much", TEXT.digest)), TEXT)


def test_a_refusal_keeps_the_policy_in_force_and_drops_a_staged_one() -> None:
    standing = refuse(staged(), "it is wrong", "c" * 64)
    assert (standing.policy, standing.staged, standing.refused) == (OLD, None, "it is wrong")


def test_an_edit_that_is_taken_back_leaves_nothing_staged_or_refused() -> None:
    back = PolicyText(source="old.yaml", text=b"", digest="a" * 64)
    for standing in (staged(), refuse(IN_FORCE, "it is wrong", "c" * 64)):
        settled = wanted_as_it_is(standing, back)
        assert settled == IN_FORCE
        assert settled.policy is not None
        assert settled.policy.source == "old.yaml"
