"""The GpuNode and the Lease: what is asked of the API server, and what is not."""

from __future__ import annotations

import datetime
import threading
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import pytest

from sharer.core.api_error import ApiError
from sharer.core.change.rollout import PolicyInForce
from sharer.core.holders.observations import ApiTroubleKind, NodeSeen
from sharer.core.known import About
from sharer.flows.state import NodeView
from sharer.flows.tell.announce import SLOW_RETRY_S, Announcing
from sharer.flows.tell.publish import APART_S, CHECK_S, FLEET_SPREAD_S, LEASE_S, RENEW_S, Living, Publishing
from sharer.flows.tell.report import stamper
from tests.core.builders import gpu, node

NAME = "node-1"
ABOUT = About(node_name=NAME, version="1.2.3")
VIEW = NodeView(inventory=node(gpu(0)))
OTHER = replace(VIEW, driver_problem="it hangs")
THIRD = replace(VIEW, driver_problem="it is gone")
NOW_S = 5000.0
NOW = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)


@dataclass(frozen=True)
class Version:
    uid: str
    resource_version: str


class Server:
    """The API server as far as publishing asks it: what it has, and what was asked, in order."""

    def __init__(self) -> None:
        self.node_uid = "node-uid"
        self.made = 0
        self.version = 100
        self.objects: dict[str, dict[str, Any]] = {}
        self.asked: list[str] = []
        self.refusals: dict[str, ApiError] = {}
        self.leases: list[dict[str, Any]] = []

    def take(self) -> list[str]:
        """What was asked since the last time."""
        asked, self.asked = self.asked, []
        return asked

    def node(self, name: str) -> NodeSeen:
        self._ask("get node")
        return NodeSeen(uid=self.node_uid, name=name)

    def gpu_node(self, name: str) -> Version | None:
        self._ask("get")
        return self._version(name) if name in self.objects else None

    def put_gpu_node(self, name: str, owner_uid: str, annotations: Mapping[str, str]) -> Version:
        self._ask("put")
        if name not in self.objects:
            self.made += 1
            self.objects[name] = {"uid": f"made-{self.made}", "version": self.version, "status": None}
        self._change(name, owner=owner_uid, annotations=dict(annotations))
        return self._version(name)

    def put_gpu_node_status(self, name: str, status: Mapping[str, object]) -> Version:
        self._ask("put status")
        if name not in self.objects:
            raise refusal(404)
        self._change(name, status=dict(status))
        return self._version(name)

    def renew_lease(self, namespace: str, name: str, **more: Any) -> None:
        self._ask("lease")
        self.leases.append({"namespace": namespace, "name": name, **more})

    def _ask(self, what: str) -> None:
        self.asked.append(what)
        if what in self.refusals:
            raise self.refusals[what]

    def _change(self, name: str, **fields: object) -> None:
        obj = self.objects[name]
        if any(obj.get(key) != value for key, value in fields.items()):
            self.version += 1
            obj.update(fields, version=self.version)

    def _version(self, name: str) -> Version:
        return Version(self.objects[name]["uid"], str(self.objects[name]["version"]))


def refusal(code: int, message: str = "404 page not found", retry_after_s: float | None = None) -> ApiError:
    kinds = {403: ApiTroubleKind.FORBIDDEN, 429: ApiTroubleKind.THROTTLED}
    kind = kinds.get(code, ApiTroubleKind.REFUSED)
    return ApiError(message, kind=kind, code=code, retry_after_s=retry_after_s)


class Link:
    def __init__(self, server: Server | None) -> None:
        self.client = server
        self.node: NodeSeen | None = NodeSeen(uid="node-uid", name=NAME)


class PublishLab:
    """One agent's publishing; every random time is the longest that is possible."""

    def __init__(self) -> None:
        self.server = Server()
        self.link = Link(self.server)
        stamp = stamper(NOW_S, 1_800_000_000.0)
        self.publishing = Publishing(self.link, ABOUT, stamp, lease="gpu/node-1", uniform=lambda least, most: most)
        self.now_s = NOW_S

    def publish(self, view: NodeView, after_s: float = 0.0) -> float | None:
        self.now_s += after_s
        return self.publishing.publish(view, self.now_s)

    @property
    def status(self) -> Any:  # JSON
        return self.server.objects[NAME]["status"]


@pytest.fixture
def lab() -> PublishLab:
    return PublishLab()


FIRST = ["get node", "put", "put status"]


def test_the_object_is_made_with_the_node_as_owner_and_then_its_status(lab: PublishLab) -> None:
    """Before the main object exists, its status is 404; under the UID of another Node it is collected (§3)."""
    assert lab.publish(VIEW) is None
    assert lab.server.take() == FIRST
    made = lab.server.objects[NAME]
    assert (made["owner"], made["annotations"]) == ("node-uid", {"sharer.dev/lease": "gpu/node-1"})
    assert (lab.status["agent"], lab.status["summary"]["gpus"]) == ("1.2.3", 1)


def test_while_nothing_changes_nothing_is_asked(lab: PublishLab) -> None:
    """P33."""
    lab.publish(VIEW)
    lab.server.take()
    for _ in range(100):
        assert lab.publish(replace(VIEW), after_s=60.0) is None
    assert lab.server.take() == []


def test_a_change_is_one_request(lab: PublishLab) -> None:
    lab.publish(VIEW)
    lab.server.take()
    lab.publish(OTHER, after_s=100.0)
    assert lab.server.take() == ["put status"]
    assert lab.status["gpus"][0]["reason"] == "it hangs"


def test_changes_in_a_row_are_told_ten_seconds_apart_and_only_the_last_of_them(lab: PublishLab) -> None:
    """P33: a pod that crashes in a loop changes its node all the time."""
    lab.publish(VIEW)
    lab.server.take()
    assert lab.publish(OTHER, after_s=1.0) == NOW_S + APART_S
    assert lab.publish(THIRD, after_s=1.0) == NOW_S + APART_S
    assert lab.server.take() == []
    lab.publish(THIRD, after_s=APART_S - 2.0)
    assert lab.server.take() == ["put status"]
    assert lab.status["gpus"][0]["reason"] == "it is gone"


def test_a_change_that_is_taken_back_before_it_was_told_is_told_all_the_same_and_harmless(lab: PublishLab) -> None:
    """The times in it are another: what is told is what is so, not what was told before."""
    lab.publish(VIEW)
    lab.publish(OTHER, after_s=1.0)
    lab.publish(VIEW, after_s=1.0)
    lab.publish(VIEW, after_s=APART_S)
    assert lab.status["gpus"][0]["reason"] is None


def test_what_a_whole_fleet_says_at_once_is_spread(lab: PublishLab) -> None:
    """P33: a policy changes on 5,000 nodes in one moment."""
    lab.publish(VIEW)
    lab.server.take()
    refused = replace(VIEW, policy=PolicyInForce(refused="rules[0]: no"))
    assert lab.publish(refused, after_s=100.0) == lab.now_s + FLEET_SPREAD_S
    assert lab.server.take() == []
    lab.publish(refused, after_s=FLEET_SPREAD_S)
    assert lab.server.take() == ["put status"]


def test_news_of_this_node_alone_does_not_wait_for_the_fleets(lab: PublishLab) -> None:
    lab.publish(VIEW)
    refused = replace(VIEW, policy=PolicyInForce(refused="rules[0]: no"))
    lab.publish(refused, after_s=100.0)
    lab.server.take()
    lab.publish(replace(refused, driver_problem="it hangs"), after_s=1.0)
    assert lab.server.take() == ["put status"]


def test_an_object_that_somebody_deleted_is_made_again_at_the_next_change(lab: PublishLab) -> None:
    lab.publish(VIEW)
    del lab.server.objects[NAME]
    lab.server.take()
    lab.publish(OTHER, after_s=100.0)
    assert lab.server.take() == ["put status", *FIRST]


def test_an_object_that_somebody_deleted_is_made_again_without_any_change(lab: PublishLab) -> None:
    lab.publish(VIEW)
    del lab.server.objects[NAME]
    lab.server.take()
    after_s = NOW_S + CHECK_S[1]
    assert lab.publishing.check(VIEW, after_s) == after_s + CHECK_S[1]
    assert lab.server.take() == ["get", *FIRST]
    assert lab.status["agent"] == "1.2.3"


def test_an_object_as_we_left_it_is_only_looked_at(lab: PublishLab) -> None:
    lab.publish(VIEW)
    lab.server.take()
    for number in range(1, 6):
        lab.publishing.check(VIEW, NOW_S + CHECK_S[1] * number)
    assert lab.server.take() == ["get"] * 5


def test_an_object_that_somebody_changed_is_put_right(lab: PublishLab) -> None:
    lab.publish(VIEW)
    told = lab.status
    lab.server.put_gpu_node_status(NAME, {"agent": "nonsense"})
    lab.publishing.check(VIEW, NOW_S + CHECK_S[1])
    assert lab.status == told
    lab.server.take()
    lab.publishing.check(VIEW, NOW_S + CHECK_S[1] * 2)
    assert lab.server.take() == ["get"]


def test_nothing_is_looked_at_before_it_was_published(lab: PublishLab) -> None:
    assert lab.publishing.check(VIEW, NOW_S) == NOW_S + CHECK_S[1]
    assert lab.server.take() == []


def test_a_change_is_no_reason_to_look(lab: PublishLab) -> None:
    lab.publish(VIEW)
    lab.server.take()
    assert lab.publishing.check(OTHER, NOW_S + 1.0) == NOW_S + CHECK_S[1]
    assert lab.server.take() == []


def test_a_node_made_anew_under_the_same_name_gets_its_object_again(lab: PublishLab) -> None:
    """The old one went with the old Node, 0.09 s after it (api-server-facts §3)."""
    lab.publish(VIEW)
    del lab.server.objects[NAME]
    lab.server.node_uid = "another-uid"
    lab.link.node = NodeSeen(uid="another-uid", name=NAME)
    lab.server.take()
    lab.publish(VIEW, after_s=1.0)
    assert lab.server.take() == FIRST
    assert lab.server.objects[NAME]["owner"] == "another-uid"


def test_without_a_connection_nothing_is_done(lab: PublishLab) -> None:
    lab.link.client = None
    assert lab.publish(VIEW) is None
    assert lab.publishing.check(VIEW, NOW_S) == NOW_S + CHECK_S[1]
    assert Living(lab.link, NAME, "gpu").renew(VIEW, NOW_S) is None


# ---- what is in the way


def test_a_cluster_without_the_crd_is_told_what_is_missing_and_what_still_works(lab: PublishLab) -> None:
    lab.server.refusals["put"] = refusal(404)
    with pytest.raises(ApiError, match="gpunodes.sharer.dev.yaml") as raised:
        lab.publish(VIEW)
    assert "--publish=off" in str(raised.value)
    assert raised.value.kind is ApiTroubleKind.REFUSED  # so that it is asked rarely
    lab.server.refusals.clear()
    lab.server.take()
    lab.publish(VIEW, after_s=1.0)
    assert lab.server.take() == FIRST


def test_what_failed_is_still_to_be_told(lab: PublishLab) -> None:
    """P33: throttled, and not given up."""
    lab.publish(VIEW)
    lab.server.refusals["put status"] = refusal(429, "too many requests", retry_after_s=7.0)
    with pytest.raises(ApiError) as raised:
        lab.publish(OTHER, after_s=100.0)
    assert raised.value.retry_after_s == 7.0
    lab.server.refusals.clear()
    lab.server.take()
    lab.publish(OTHER, after_s=8.0)
    assert lab.server.take() == ["put status"]


def test_without_the_right_to_look_the_object_is_published_all_the_same(lab: PublishLab) -> None:
    """P36: each step waits for its own right only."""
    lab.server.refusals["get"] = refusal(403, "no right to get gpunodes")
    announcing = Announcing(lab.link, now_s=lambda: lab.now_s, uniform=lambda least, most: most)
    announcing.add("the GpuNode", lab.publishing.publish)
    announcing.add("the GpuNode's check", lab.publishing.check)
    for view in (VIEW, OTHER):
        announcing.look_at(view)
        announcing.round(lab.now_s, threading.Event())
        lab.now_s += CHECK_S[1]
    announcing.round(lab.now_s, threading.Event())
    assert lab.server.asked == [*FIRST, "put status", "get"]
    announcing.look_at(THIRD)
    announcing.round(lab.now_s, threading.Event())
    assert lab.server.take()[-1] == "put status"
    assert announcing.due_s() == lab.now_s + SLOW_RETRY_S * 1.5


# ---- the Lease


def test_a_lease_is_renewed_at_its_time_and_not_at_changes(lab: PublishLab) -> None:
    """P33: 5,000 agents renew 50 to 62 times a second in all; a kubelet's own node lease takes ten times that."""
    living = Living(lab.link, NAME, "gpu", uniform=lambda least, most: most, now=lambda: NOW)
    assert living.renew(VIEW, NOW_S) == NOW_S + RENEW_S[1]
    for number in range(50):
        assert living.renew(OTHER, NOW_S + number) == NOW_S + RENEW_S[1]
    assert lab.server.take() == ["lease"]
    living.renew(VIEW, NOW_S + RENEW_S[1])
    assert (
        lab.server.leases
        == [
            {
                "namespace": "gpu",
                "name": NAME,
                "holder": NAME,
                "duration_s": LEASE_S,
                "now": NOW,
                "owner_uid": "node-uid",
            }
        ]
        * 2
    )
    assert RENEW_S[1] * 2 < LEASE_S  # two renewals may fail


def test_a_lease_is_the_nodes_even_where_nobody_told_who_that_is(lab: PublishLab) -> None:
    lab.link.node = None
    Living(lab.link, NAME, "gpu", now=lambda: NOW).renew(VIEW, NOW_S)
    assert lab.server.leases[0]["owner_uid"] == "node-uid"


def test_an_idle_fleet_writes_no_gpu_node() -> None:
    """P33: 5,000 nodes for an hour, computed: what one asks of the server, times 5,000."""
    lab = PublishLab()
    living = Living(lab.link, NAME, "gpu", now=lambda: NOW)
    lab.publish(VIEW)
    lab.server.take()
    renewals_s = checks_s = NOW_S
    for second in range(3600):
        now_s = NOW_S + second
        assert lab.publishing.publish(replace(VIEW), now_s) is None
        if now_s >= renewals_s:
            renewals_s = living.renew(VIEW, now_s) or 0.0
        if now_s >= checks_s:
            checks_s = lab.publishing.check(VIEW, now_s) or 0.0
    asked = lab.server.take()
    assert set(asked) == {"get", "lease"}
    assert asked.count("get") * 5000 / 3600 < 7  # reads a second, of 5,000 nodes
    assert asked.count("lease") * 5000 / 3600 < 63
