"""Each news is told once, again when it matters, and a node in trouble does not flood the API server."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from sharer.core.holders.observations import PodPhase, PodSeen
from sharer.core.inventory import Inventory
from sharer.core.tell.news import News, Reason
from sharer.core.tell.notices import AGAIN_S, BURST, EVERY_S, LATE_S, REMIND_S, RETRY_S, Notices, heard, next_notice
from sharer.core.tell.notices import not_told as failed
from sharer.core.tell.notices import told as sent
from tests.core.builders import gpu, gpu_uuid, node

A = gpu_uuid(0)
FAULT = News(reason=Reason.GPU_FAULT, about=A, message="XID 79")
REFUSED = News(reason=Reason.POLICY_REFUSED, message="slices is 0")


def on_pod(number: int, lasting_s: float = 0.0) -> News:
    pod = PodSeen(uid=f"{number}", cgroup_uid=f"{number}", namespace="n", name=f"p{number}", phase=PodPhase.RUNNING)
    return News(reason=Reason.LIMIT_NOT_ENFORCED, message="no limit", about="main", pod=pod, lasting_s=lasting_s)


class Node:
    """Tells everything at the moment at which it may."""

    def __init__(self) -> None:
        self.notices = Notices()
        self.told: list[tuple[float, News, int]] = []  # when, what, which time
        self.inventory: Inventory = node(gpu(0))

    def at(self, now_s: float, *standing: News, happened: tuple[News, ...] = ()) -> float | None:
        """A look at what is so. Returns when to come again."""
        self.notices = heard(self.notices, standing, happened, self.inventory, now_s)
        return self.tell(now_s)

    def tell(self, now_s: float) -> float | None:
        while True:
            one, next_s = next_notice(self.notices, now_s)
            if one is None:
                return next_s
            self.notices = sent(self.notices, one.news.key, now_s)
            self.told.append((now_s, one.news, self.notices.notices[one.news.key].times))


def test_what_stays_so_is_told_once_and_again_before_the_api_server_forgets_it() -> None:
    made = Node()
    assert made.at(100.0, REFUSED) == 100.0 + REMIND_S
    made.at(200.0, REFUSED)
    made.at(100.0 + REMIND_S, REFUSED)
    assert made.told == [(100.0, REFUSED, 1), (100.0 + REMIND_S, REFUSED, 2)]


def test_what_is_over_within_its_time_is_never_told_and_counted() -> None:
    made = Node()
    assert made.at(100.0, on_pod(1, lasting_s=30.0)) == 130.0
    made.at(129.0)
    assert made.at(200.0, on_pod(1, lasting_s=30.0)) == 230.0
    made.at(230.0, on_pod(1, lasting_s=30.0))
    assert [at_s for at_s, _, _ in made.told] == [230.0]
    assert made.notices.counts.suppressed == {"LimitNotEnforced": 1}


def test_changed_words_are_told_after_a_while_and_only_the_last_ones() -> None:
    made = Node()
    made.at(100.0, FAULT)
    for passed_s in range(1, 10):
        assert made.at(100.0 + passed_s, replace(FAULT, message=f"XID {passed_s}")) == 100.0 + AGAIN_S
    made.at(100.0 + AGAIN_S, replace(FAULT, message="XID 9"))
    assert [(at_s, news.message) for at_s, news, _ in made.told] == [(100.0, "XID 79"), (100.0 + AGAIN_S, "XID 9")]


def test_what_comes_and_goes_is_told_rarely_with_a_count_of_all_times() -> None:
    made = Node()
    for number in range(60):
        made.at(100.0 + 10.0 * number, *([REFUSED] if number % 2 == 0 else []))
    assert [(at_s, times) for at_s, _, times in made.told] == [(100.0, 1), (400.0, 16)]


def test_a_recovery_is_told_of_a_fault_that_was_told() -> None:
    made = Node()
    made.at(100.0, FAULT)
    made.at(160.0)
    assert [news.reason for _, news, _ in made.told] == [Reason.GPU_FAULT, Reason.GPU_RECOVERED]
    assert made.at(200.0) is None


def test_of_a_gpu_that_is_not_there_any_more_no_recovery_is_told() -> None:
    made = Node()
    made.at(100.0, FAULT)
    made.inventory = node()
    made.at(160.0)
    assert [news.reason for _, news, _ in made.told] == [Reason.GPU_FAULT]


def test_what_has_happened_is_told_and_not_reminded_of() -> None:
    made = Node()
    happening = replace(on_pod(1), reason=Reason.EVICTED)
    assert made.at(100.0, happened=(happening,)) is None
    assert made.at(101.0) is None
    assert made.told == [(100.0, happening, 1)]


def test_a_node_in_trouble_tells_a_burst_and_then_one_at_a_time() -> None:
    made = Node()
    everything = tuple(on_pod(number) for number in range(100))
    now_s: float | None = made.at(1000.0, *everything)
    assert len(made.told) == BURST
    while now_s is not None and now_s < 1000.0 + 600.0:
        now_s = made.tell(now_s)
    assert len(made.told) == BURST + 600.0 / EVERY_S - 1
    assert len({news.key for _, news, _ in made.told}) == len(made.told)  # nobody twice while others wait


def test_the_node_comes_before_its_pods_and_the_new_before_what_was_told() -> None:
    made = Node()
    pods = tuple(on_pod(number) for number in range(30))
    made.at(1000.0, *pods)
    made.at(1001.0, *pods, REFUSED)
    made.tell(1000.0 + EVERY_S + 1.0)
    assert made.told[BURST][1] == REFUSED
    while len(made.told) < 31:
        made.tell(made.told[-1][0] + EVERY_S)
    assert {news.key for _, news, _ in made.told} == {one.key for one in (*pods, REFUSED)}


def test_what_could_not_be_told_lets_the_others_pass_and_is_tried_again() -> None:
    made = Node()
    made.notices = heard(made.notices, [REFUSED, FAULT], [], made.inventory, 100.0)
    first, _ = next_notice(made.notices, 100.0)
    assert first is not None
    made.notices = failed(made.notices, first.news.key, 100.0)
    second, _ = next_notice(made.notices, 100.0)
    assert second is not None
    assert second.news.key != first.news.key
    made.notices = sent(made.notices, second.news.key, 100.0)
    assert next_notice(made.notices, 101.0) == (None, 100.0 + RETRY_S)
    assert made.tell(100.0 + RETRY_S) is not None
    assert made.told[-1][1] == first.news
    assert (sum(made.notices.counts.failed.values()), sum(made.notices.counts.sent.values())) == (1, 2)


def test_what_has_happened_long_ago_is_not_told_when_the_api_server_is_back() -> None:
    made = Node()
    happening = replace(on_pod(1), reason=Reason.EVICTED)
    made.notices = heard(made.notices, [], [happening], made.inventory, 100.0)
    made.notices = failed(made.notices, happening.key, 100.0)
    made.at(100.0 + LATE_S)
    assert made.told == []
    assert made.notices.notices == {}
    assert made.notices.counts.suppressed == {"Evicted": 1}


def test_an_agent_that_starts_again_tells_the_same_keys_and_no_more_than_a_burst() -> None:
    everything = tuple(on_pod(number) for number in range(100))
    first, second = Node(), Node()
    first.at(1000.0, *everything)
    second.at(1010.0, *everything)
    assert len(second.told) == BURST
    assert {news.key for _, news, _ in second.told} <= {one.key for one in everything}


@given(
    st.lists(
        st.tuples(st.floats(0.0, 400.0), st.lists(st.integers(0, 30), max_size=30), st.booleans(), st.booleans()),
        max_size=40,
    )
)
def test_whatever_happens_no_more_is_sent_than_the_stated_limit_and_nothing_is_kept_for_ever(
    steps: list[tuple[float, list[int], bool, bool]],
) -> None:
    made, now_s, tries = Node(), 0.0, 0
    for passed_s, numbers, is_faulty, fails in steps:
        now_s += passed_s
        standing = [on_pod(number, lasting_s=10.0 * (number % 3)) for number in numbers] + [FAULT] * is_faulty
        made.notices = heard(made.notices, standing, [], made.inventory, now_s)
        while (one := next_notice(made.notices, now_s)[0]) is not None:
            tries += 1
            made.notices = (failed if fails else sent)(made.notices, one.news.key, now_s)
        again_s = next_notice(made.notices, now_s)[1]
        assert again_s is None or again_s > now_s
    assert tries <= BURST + now_s / EVERY_S + 1
    made.notices = heard(made.notices, [], [], made.inventory, now_s + 2 * REMIND_S)
    made.notices = heard(made.notices, [], [], made.inventory, now_s + 4 * REMIND_S)
    assert made.notices.notices == {}
