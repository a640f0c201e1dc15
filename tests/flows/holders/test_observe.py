"""The ledger follows what the sources say, at the right moments, and silence is never taken for news."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable

import pytest

from sharer.core.change.rollout import PolicyInForce
from sharer.core.change.transition import CYCLE_S
from sharer.core.errors import AwayError, NodeError
from sharer.core.holders.evidence import CgroupReading, ListReading, SliceKey, SourceStatus
from sharer.core.holders.ledger import Entry, State
from sharer.core.holders.observations import ApiSync, ApiTrouble, ApiTroubleKind, PodPhase
from sharer.core.policy.model import Exclusive, Sharing
from sharer.flows.holders.observe import follow, follow_holders, next_look_s, observe
from sharer.flows.inbox import Allocated, Hint, Inbox, News
from sharer.flows.state import NodeState
from tests.core.builders import gpu, node, policy, time_slicing
from tests.core.evidence import SHARED, alive, checkpoint, given_to, listed, named, pod, seen
from tests.flows.sources import UUID, A, B, SaidBy, of_pod, running

TRAIN = named("train", uid="uid-train")
DOWN = NodeError("the kubelet does not list pod resources: connection refused")


class ObserveLab:
    """A node's state, its sources, and a clock."""

    def __init__(self, sharing: Sharing | None = None, gpus: int = 1) -> None:
        self.state, self.said, self.now_s = NodeState(), SaidBy(), 100.0
        self.state.change(
            inventory=node(*(gpu(n) for n in range(gpus))),
            policy=PolicyInForce(policy=policy(sharing or time_slicing(4))),
        )

    def look(self, *news: News, after_s: float = 0.0) -> str | None:
        """One look, after some time."""
        self.now_s += after_s
        return observe(self.state, self.said.sources(), self.now_s, news)

    def run(self, seconds: float) -> list[str]:
        """Look whenever it is due, and as often as the daemon does in any case. Returns what was said."""
        said, end_s, cycle_s = [], self.now_s + seconds, self.now_s
        while (due_s := max(min(next_look_s(self.state.view), cycle_s), self.now_s)) <= end_s:
            self.now_s = due_s
            if due_s >= cycle_s:
                cycle_s = due_s + CYCLE_S  # the daemon looks so often, whatever `next_look_s` says
            said.append(self.look())
        self.now_s = end_s
        return [one for one in said if one is not None]

    def entry(self, key: SliceKey = A) -> Entry:
        return self.state.view.ledger.entry(key)

    def source(self, name: str) -> SourceStatus:
        return self.state.view.sources[name]

    def list_calls(self) -> int:
        return self.said.take_asked().count("list")


def settled(lab: ObserveLab) -> ObserveLab:
    """With pod "train" on slice A, and some quiet time behind it."""
    lab.said.checkpoint = checkpoint(given_to("uid-train", A))
    lab.said.cgroups = alive("uid-train")
    lab.said.listed = listed({A: "train"})
    lab.run(30.0)
    lab.said.take_asked()
    return lab


def test_at_the_start_the_checkpoint_is_enough_to_register_and_the_list_comes_right_after() -> None:
    """DESIGN §3: registering waits for NVML and the checkpoint only."""
    lab = ObserveLab()
    lab.said.checkpoint, lab.said.cgroups = checkpoint(given_to("uid-train", A)), alive("uid-train")
    lab.said.listed = DOWN
    lab.look()
    assert lab.said.take_asked() == ["checkpoint", "cgroups"]
    assert lab.entry().state is State.HELD
    assert next_look_s(lab.state.view) <= lab.now_s


@pytest.mark.parametrize("nothing", [None, NodeError("the checkpoint is damaged")])
def test_at_the_start_the_list_is_asked_where_the_checkpoint_says_nothing(nothing: NodeError | None) -> None:
    """Its old IDs must be on the first list that the kubelet gets, too."""
    lab = ObserveLab()
    lab.said.checkpoint, lab.said.listed = nothing, listed({A: "train"})
    lab.look()
    assert lab.entry().state is State.HELD


def test_the_sources_are_asked_in_their_order_and_the_list_is_the_last() -> None:
    lab = ObserveLab()
    lab.look()
    lab.said.take_asked()
    lab.look()
    assert lab.said.take_asked() == ["checkpoint", "cgroups", "processes", "list"]


def test_a_pod_that_was_given_a_slice_holds_it_with_uid_and_name() -> None:
    lab = settled(ObserveLab())
    assert lab.entry().state is State.HELD
    assert lab.entry().owner == TRAIN


def test_who_holds_what_is_said_once() -> None:
    lab = ObserveLab()
    lab.said.listed = listed({A: "train"})
    assert lab.run(30.0) == [f"default/train (c) holds {A[1]}"]


def test_an_answered_allocate_is_taken_in_and_looked_after_at_once() -> None:
    lab = settled(ObserveLab())
    lab.look(Allocated(resource=SHARED, ids=(B[1],)))
    assert lab.entry(B).state is State.ALLOCATED
    lab.said.listed = listed({A: "train", B: "next"})
    lab.said.take_asked()
    assert lab.run(1.0) == [f"default/next (c) holds {B[1]}"]
    assert lab.list_calls() == 3


def test_an_allocate_that_came_to_nothing_is_forgotten_after_its_grace() -> None:
    lab = settled(ObserveLab())
    lab.look(Allocated(resource=SHARED, ids=(B[1],)))
    lab.run(59.0)
    assert lab.entry(B).state is State.ALLOCATED
    lab.run(2.0)
    assert lab.entry(B) == Entry()


def test_a_slice_is_free_when_two_lists_are_without_it_and_the_second_is_asked_for_at_once() -> None:
    lab = settled(ObserveLab())
    lab.said.cgroups, lab.said.listed = alive(), listed()
    lab.look(after_s=5.0)
    assert lab.entry().state is State.RELEASING
    assert lab.run(0.25) == [f"{A[1]} free again"]
    assert lab.entry() == Entry()


def test_the_end_of_a_pods_last_process_brings_three_calls() -> None:
    lab = settled(ObserveLab())
    lab.said.cgroups = alive()
    lab.look(Hint.CGROUPS, after_s=0.5)
    assert lab.said.take_asked() == ["checkpoint", "cgroups"]
    lab.run(0.5)
    assert lab.list_calls() == 3


def test_the_end_of_another_pod_brings_none() -> None:
    lab = settled(ObserveLab())
    lab.said.cgroups = alive("uid-train", "uid-other")
    lab.look(Hint.CGROUPS, after_s=0.5)
    lab.said.cgroups = alive("uid-train")
    lab.look(Hint.CGROUPS, after_s=0.5)
    assert lab.state.view.pace.burst == 0


def test_hints_about_cgroups_in_a_row_are_read_together_and_none_is_lost() -> None:
    lab = settled(ObserveLab())
    for _ in range(10):
        lab.look(Hint.CGROUPS, after_s=0.001)
    assert lab.said.take_asked().count("cgroups") == 1
    lab.run(0.2)
    assert lab.said.take_asked().count("cgroups") == 1


@pytest.mark.parametrize("hint", [Hint.START, Allocated(resource=SHARED, ids=(A[1],))])
def test_what_the_kubelet_does_is_worth_a_burst(hint: News) -> None:
    lab = settled(ObserveLab())
    lab.look(hint, after_s=0.5)
    lab.run(0.6)
    assert lab.list_calls() == 3


def test_a_written_checkpoint_is_worth_a_burst_and_the_same_one_again_is_not() -> None:
    lab = settled(ObserveLab())
    lab.said.checkpoint = checkpoint(given_to("uid-train", A), given_to("uid-next", B))
    lab.look(Hint.CHECKPOINT, after_s=0.5)
    lab.run(0.6)
    assert lab.list_calls() == 3
    lab.look(Hint.CHECKPOINT, after_s=0.5)
    lab.run(0.6)
    assert lab.list_calls() == 0


def test_a_changed_phase_of_a_pod_that_matters_is_worth_a_burst_and_another_pods_is_not() -> None:
    lab = settled(ObserveLab())
    lab.look(seen(pod("train"), pod("web", PodPhase.PENDING)))
    lab.run(1.0)
    lab.said.take_asked()
    lab.look(seen(pod("train"), pod("web")), after_s=0.5)
    lab.run(0.6)
    assert lab.list_calls() == 0
    lab.look(seen(pod("train", PodPhase.SUCCEEDED), pod("web")), after_s=0.5)
    lab.run(0.6)
    assert lab.list_calls() == 3


def idle(lab: ObserveLab) -> None:
    lab.run(30.0)
    lab.said.take_asked()


def blind(lab: ObserveLab) -> None:
    settled(lab)
    lab.said.cgroups = NodeError("no pod cgroup can be found")
    lab.run(10.0)
    lab.said.take_asked()


def silent(lab: ObserveLab) -> None:
    settled(lab)
    lab.said.listed = DOWN
    lab.run(10.0)
    lab.said.take_asked()


@pytest.mark.parametrize(
    ("sentence", "prepare", "calls"),
    [
        ("nobody holds anything", idle, 3),
        ("slices are held", settled, 12),
        ("slices are held, and cgroups cannot be read", blind, 60),
        ("the kubelet does not answer", silent, 30),
    ],
)
def test_the_list_is_asked_as_often_as_it_may_be_the_only_one_to_tell(
    sentence: str, prepare: Callable[[ObserveLab], object], calls: int
) -> None:
    lab = ObserveLab()
    prepare(lab)
    lab.run(60.0)
    assert abs(lab.list_calls() - calls) <= 1, sentence


def test_while_nobody_holds_anything_the_list_is_no_reason_to_wake_the_daemon() -> None:
    """A wake-up of an idle process costs more than what it is for; the daemon's own cycles come soon enough."""
    lab = ObserveLab()
    idle(lab)
    assert next_look_s(lab.state.view) == math.inf
    lab.look(Allocated(resource=SHARED, ids=(B[1],)))
    assert next_look_s(lab.state.view) <= lab.now_s + 0.25


# No news is not "no pods".


@pytest.mark.parametrize(
    "partial",
    [
        listed(age_s=0.5),  # contract §22: List succeeds and is empty although pods run
        listed(others=["static"], age_s=3.0),  # static pods come first
        listed({A: "train"}, age_s=9.9),  # a pod without slices is missing: so might be others
    ],
)
def test_a_kubelet_that_has_only_just_started_is_not_believed_when_it_names_less_than_before(
    partial: ListReading,
) -> None:
    lab = ObserveLab()
    lab.said.listed = listed({A: "train", B: "next"}, others=["web"])
    lab.run(30.0)
    lab.said.listed = partial
    lab.run(60.0)
    assert (lab.entry(A).state, lab.entry(B).state) == (State.HELD, State.HELD)
    assert lab.source("list").problem is None, "it did answer"


def test_a_young_kubelet_that_names_everything_is_believed_and_an_older_one_in_any_case() -> None:
    lab = ObserveLab()
    lab.said.listed = listed({A: "train"})
    lab.run(30.0)
    lab.said.listed = listed({A: "train", B: "next"}, age_s=2.0)
    lab.run(10.0)
    assert lab.entry(B).state is State.HELD
    lab.said.listed = listed(age_s=10.0)
    lab.run(10.0)
    assert lab.state.view.ledger.entries == {}


@pytest.mark.parametrize("cgroups", [alive("uid-train"), NodeError("no pod cgroup can be found")])
def test_agent_and_kubelet_may_restart_together(cgroups: CgroupReading | NodeError) -> None:
    """What the checkpoint names must be in a young kubelet's first answer, unless cgroups say that it is stale."""
    lab = ObserveLab()
    lab.said.checkpoint, lab.said.cgroups = checkpoint(given_to("uid-train", A)), cgroups
    lab.said.listed = listed(others=["static"], age_s=1.0)
    lab.run(5.0)
    assert lab.state.view.ledger.evidence.listed is None
    lab.said.listed = listed({A: "train"}, others=["static"], age_s=2.0)
    lab.run(2.0)
    assert lab.entry().state is State.HELD
    assert lab.entry().owner == TRAIN


def test_a_new_node_need_not_wait_for_its_kubelet_to_grow_old() -> None:
    lab = ObserveLab()
    lab.said.checkpoint, lab.said.cgroups = checkpoint(given_to("uid-gone", A)), alive()
    lab.said.listed = listed({B: "next"}, age_s=1.0)
    lab.run(2.0)
    assert lab.entry(B).state is State.HELD


def test_readings_are_counted_as_they_are_believed() -> None:
    """Two readings without a holder let an ID be dropped (core/change): one that is no news must not count."""
    lab = ObserveLab()
    lab.said.listed = listed({A: "train"})
    lab.run(30.0)
    evidence = lab.state.view.ledger.evidence
    assert evidence.listed is not None
    lab.said.listed = listed(age_s=1.0)
    lab.run(30.0)
    assert lab.state.view.ledger.evidence.listed == evidence.listed


@pytest.mark.parametrize("source", ["checkpoint", "cgroups", "processes", "list"])
def test_a_source_that_does_not_answer_leaves_the_ledger_as_it_was_and_is_said_once(
    source: str, caplog: pytest.LogCaptureFixture
) -> None:
    lab = settled(ObserveLab())
    before = lab.state.view.ledger.entries
    setattr(lab.said, "listed" if source == "list" else source, NodeError(f"{source}: broken"))
    with caplog.at_level(logging.WARNING, logger="sharer"):
        lab.run(60.0)
    assert lab.state.view.ledger.entries == before
    assert [record.getMessage() for record in caplog.records] == [f"{source}: broken"]
    assert lab.source(source).problem == f"{source}: broken"


def test_a_source_that_is_away_as_expected_is_told_of_without_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    lab = settled(ObserveLab())
    lab.said.listed = AwayError("the kubelet restarts")
    with caplog.at_level(logging.INFO, logger="sharer"):
        lab.run(60.0)
    assert [(one.levelname, one.getMessage()) for one in caplog.records] == [("INFO", "the kubelet restarts")]


def test_the_last_time_that_a_source_answered_is_known_and_its_return_is_said() -> None:
    lab = settled(ObserveLab())
    answered_s = lab.source("list").read_s
    lab.said.listed = DOWN
    lab.run(20.0)
    assert lab.source("list").read_s == answered_s
    lab.said.listed = listed({A: "train"})
    assert lab.run(5.0) == ["the kubelet's list of pod resources can be read again"]
    assert lab.source("list").problem is None
    assert (lab.source("list").read_s or 0.0) > lab.now_s - 5.0


def test_a_checkpoint_that_is_gone_is_no_error_and_its_last_reading_stands() -> None:
    lab = settled(ObserveLab())
    lab.said.checkpoint = None
    lab.run(30.0)
    assert lab.entry().owner == TRAIN
    assert lab.source("checkpoint").problem is None


def test_the_pods_of_the_api_come_by_the_inbox_and_how_current_they_are_is_asked() -> None:
    lab = ObserveLab()
    trouble = ApiTrouble(kind=ApiTroubleKind.FORBIDDEN, message="may not list pods", since_s=90.0)
    lab.said.sync = ApiSync(synced_at_s=70.0, trouble=trouble)
    lab.look(seen(pod("train")))
    assert lab.state.view.ledger.evidence.pods == seen(pod("train"))
    assert lab.source("pods") == SourceStatus(read_s=70.0, problem="may not list pods")


def test_of_two_snapshots_of_the_pods_the_last_one_counts() -> None:
    lab = ObserveLab()
    lab.look(seen(pod("train", PodPhase.PENDING)), seen(pod("train")))
    assert lab.state.view.ledger.evidence.pods == seen(pod("train"))


# Whose slices these are.


def test_the_slices_of_other_plugins_are_kept_out_and_old_names_of_ours_are_not() -> None:
    rdma, renamed = ("rdma/hca", "mlx5_0"), ("example.com/old", A[1])
    lab = ObserveLab()
    lab.said.checkpoint = checkpoint(given_to("uid-train", rdma), given_to("uid-train", renamed))
    lab.said.cgroups = alive("uid-train")
    lab.said.listed = listed({rdma: "train", renamed: "train"})
    lab.run(10.0)
    assert set(lab.state.view.ledger.entries) == {renamed}
    evidence = lab.state.view.ledger.evidence
    assert evidence.checkpoint is not None
    assert [one.resource for one in evidence.checkpoint.entries] == ["example.com/old"]


def test_the_ids_of_a_plugin_whose_resource_we_take_over_are_in_the_ledger_before_anything_is_offered() -> None:
    """DESIGN §2: the NVIDIA plugin's ID under nvidia.com/gpu, and the policy offers just that name."""
    foreign = ("nvidia.com/gpu", f"{UUID}::0")
    for sharing, entries in ((time_slicing(4), set()), (Exclusive(), {foreign})):
        lab = ObserveLab(sharing)
        lab.said.checkpoint, lab.said.cgroups = checkpoint(given_to("uid-train", foreign)), alive("uid-train")
        lab.look()
        assert set(lab.state.view.ledger.entries) == entries


# Processes.


def test_a_process_of_a_forgotten_pod_keeps_its_slice_in_quarantine_until_it_ends() -> None:
    """P30: force delete."""
    lab = settled(ObserveLab())
    lab.said.processes, lab.said.identities = running(7), {7: of_pod("uid-train")}
    lab.said.listed = listed()
    said = lab.run(10.0)
    assert said == [f"{A[1]} in quarantine: its owner has ended, and something of it still runs"]
    lab.said.processes, lab.said.cgroups = running(), alive()
    assert lab.run(10.0) == [f"{A[1]} free again"]


def test_a_node_without_gpus_is_not_asked_for_processes() -> None:
    lab = ObserveLab(gpus=0)
    lab.run(30.0)
    assert "processes" not in lab.said.take_asked()
    assert "processes" not in lab.state.view.sources


def test_without_host_pids_nothing_is_known_of_processes_and_that_is_said_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    lab = ObserveLab()
    lab.said.host_pids, lab.said.processes = False, running(7)
    with caplog.at_level(logging.WARNING, logger="sharer"):
        lab.run(60.0)
    assert sum("hostPID: true" in record.getMessage() for record in caplog.records) == 1
    reading = lab.state.view.ledger.evidence.processes
    assert reading is not None
    assert reading.asked == frozenset()
    assert [process.attributed for process in reading.processes] == [False]


# Following.


def test_a_written_checkpoint_and_the_containers_of_holders_ring_the_bell() -> None:
    lab, inbox = settled(ObserveLab()), Inbox()
    follow(lab.said.sources(), inbox)
    follow_holders(lab.state, lab.said.sources(), inbox)
    assert lab.said.followed == {"uid-train"}
    assert lab.said.checkpoint_changed is not None
    assert lab.said.cgroups_changed is not None
    lab.said.checkpoint_changed()
    lab.said.cgroups_changed()
    assert inbox.wait(0.0) == [Hint.CHECKPOINT, Hint.CGROUPS]


# Rest.


def test_a_node_on_which_nothing_changes_keeps_the_very_same_entries() -> None:
    """Whoever compares can compare by identity."""
    lab = settled(ObserveLab())
    entries = lab.state.view.ledger.entries
    lab.run(60.0)
    assert lab.state.view.ledger.entries is entries


def test_what_only_the_kubelet_says_is_enough_with_every_other_source_broken() -> None:
    """--kubernetes off, no cgroups, no process list, no checkpoint."""
    lab = ObserveLab()
    lab.said.checkpoint = lab.said.cgroups = lab.said.processes = NodeError("broken")
    lab.said.listed = listed({A: "train"})
    lab.run(5.0)
    assert lab.entry().state is State.HELD
    lab.said.listed = listed()
    lab.run(5.0)
    assert lab.entry().state is State.QUARANTINED
    lab.run(600.0)
    assert lab.entry() == Entry()


def test_an_empty_reading_of_a_checkpoint_that_had_entries_is_believed() -> None:
    lab = settled(ObserveLab())
    lab.said.checkpoint, lab.said.cgroups, lab.said.listed = checkpoint(), alive(), listed()
    lab.run(10.0)
    assert lab.state.view.ledger.entries == {}
