"""What an agent follows in the API: its pods, its Node, its policies; each on its own, from `start` to `close`."""

from __future__ import annotations

import contextlib
import logging
import queue
import threading
import time
from collections.abc import Callable, Iterator
from typing import Protocol

import pytest

from sharer.adapters.kube.access import KubeAccess, Kubeconfig
from sharer.adapters.kube.client import KubeClient
from sharer.adapters.kube.connect import connect as connect_api
from sharer.adapters.kube.follow import FollowedApi
from sharer.adapters.kube.timings import KubeTimings
from sharer.adapters.kube.watch import STOP_PATIENCE_S
from sharer.core.holders.observations import ApiSync, ApiTroubleKind, PodsSeen
from sharer.simulation.apiserver import (
    CONFIG_MAP,
    NODE,
    POD,
    ApiServer,
    Ending,
    Hang,
    config_map_object,
    node_object,
    pod_object,
)
from tests.adapters.kube.lab import NODE_NAME, PATIENCE_S, KubeLab, names

QUICK = KubeTimings(retry_first_s=0.02, retry_cap_s=0.05, slow_retry_s=0.03, settled_s=0.0)
POLICIES = ("gpu", "policies")
EACH = {(verb, resource): 1 for verb in ("list", "watch") for resource in ("pods", "nodes", "configmaps")}


Connect = Callable[[KubeAccess], KubeClient]


class Agent:
    """Follows the API, and keeps what it was told."""

    def __init__(self, access: KubeAccess, config_map: tuple[str, str] | None, connect: Connect) -> None:
        self._rang = queue.SimpleQueue[None]()
        self.pods: PodsSeen | None = None
        self.api = FollowedApi(access, NODE_NAME, config_map, connect=connect)

    def start(self) -> Agent:
        self.api.start(self._told, lambda: self._rang.put(None))
        return self

    def wait(self, holds: Callable[[], bool]) -> None:
        """Until this is so. Something may change without a ring, such as how current a watch is."""
        end_s = time.monotonic() + PATIENCE_S
        while not holds():
            assert time.monotonic() < end_s, "it has not come true"
            try:
                self._rang.get(timeout=0.02)
            except queue.Empty:
                continue

    def sync(self, what: str) -> ApiSync:
        return self.api.sync_of(what)

    def wait_trouble(self, what: str, kind: ApiTroubleKind) -> str:
        """Returns what is said about it."""

        def is_there() -> bool:
            trouble = self.sync(what).trouble
            return trouble is not None and trouble.kind is kind

        self.wait(is_there)
        trouble = self.sync(what).trouble
        assert trouble is not None
        return trouble.message

    def _told(self, pods: PodsSeen) -> None:
        self.pods = pods
        self._rang.put(None)


class MakeAgent(Protocol):
    """Makes an agent, which is not started yet."""

    def __call__(
        self,
        timings: KubeTimings = QUICK,
        *,
        config_map: tuple[str, str] | None = POLICIES,
        connect: Connect | None = None,
    ) -> Agent: ...


@pytest.fixture
def make_agent(lab: KubeLab, server: ApiServer) -> Iterator[MakeAgent]:
    """Agents of one cluster: a node, a pod on it, a policy."""
    server.put(NODE, node_object(NODE_NAME, labels={"sharer.dev/policy": "a100"}))
    server.put(POD, pod_object("train", node=NODE_NAME))
    server.put(CONFIG_MAP, config_map_object("policies", {"default": "rules: []"}, namespace="gpu"))
    with contextlib.ExitStack() as closing:

        def make(
            timings: KubeTimings = QUICK,
            *,
            config_map: tuple[str, str] | None = POLICIES,
            connect: Connect | None = None,
        ) -> Agent:
            connect = connect or (lambda access: connect_api(access, timings))
            agent = Agent(Kubeconfig(path=lab.kubeconfig("t1")), config_map, connect)
            closing.callback(agent.api.close)
            return agent

        yield make


def test_nothing_is_asked_and_nothing_known_before_the_start(make_agent: MakeAgent, server: ApiServer) -> None:
    api = make_agent().api
    assert (api.client, api.node, api.policies) == (None, None, None)
    assert api.sync == api.sync_of("node") == ApiSync(synced_at_s=None, trouble=None)
    api.close()
    assert server.requests() == ()


def test_pods_node_and_policies_cost_one_list_and_one_watch_each(make_agent: MakeAgent, server: ApiServer) -> None:
    """P33."""
    agent = make_agent().start()
    server.wait_watches(3)
    agent.wait(lambda: agent.api.node is not None and agent.api.policies is not None and agent.pods is not None)
    assert agent.pods is not None
    assert agent.api.node is not None
    assert agent.api.policies is not None
    assert names(agent.pods) == ["train"]
    assert agent.api.node.labels["sharer.dev/policy"] == "a100"
    assert agent.api.policies.data == {"default": "rules: []"}
    assert server.counts() == EACH


def test_without_a_configmap_none_is_asked_for(make_agent: MakeAgent, server: ApiServer) -> None:
    agent = make_agent(config_map=None).start()
    server.wait_watches(2)
    agent.wait(lambda: agent.api.node is not None)
    assert server.requests(resource="configmaps") == ()
    assert agent.sync("policies") == ApiSync(synced_at_s=None, trouble=None)


def test_what_people_change_is_told_and_a_deletion_is_none(make_agent: MakeAgent, server: ApiServer) -> None:
    agent = make_agent().start()
    server.wait_watches(3)
    server.put(NODE, node_object(NODE_NAME, annotations={"sharer.dev/recover": "x"}))
    agent.wait(lambda: agent.api.node is not None and bool(agent.api.node.annotations))
    server.delete(CONFIG_MAP, "policies", "gpu")
    agent.wait(lambda: agent.api.policies is None)
    server.delete(NODE, NODE_NAME)
    agent.wait(lambda: agent.api.node is None)
    assert agent.sync("node").synced_at_s is not None
    assert agent.sync("node").trouble is None


@pytest.mark.parametrize(
    ("verb", "resource", "what"),
    [
        ("list", "pods", "pods"),
        ("watch", "pods", "pods"),
        ("list", "nodes", "node"),
        ("watch", "configmaps", "policies"),
    ],
)
def test_a_missing_right_keeps_one_thing_away_until_it_is_granted(
    make_agent: MakeAgent, server: ApiServer, caplog: pytest.LogCaptureFixture, verb: str, resource: str, what: str
) -> None:
    """P36: one clear line with verb, resource, scope and rule; the other two are followed; no restart."""
    server.forbid(verb, resource)
    agent = make_agent().start()
    server.wait_watches(2)
    said = agent.wait_trouble(what, ApiTroubleKind.FORBIDDEN)
    assert f"sharer may not {verb} {resource} " in said
    assert f"resources: [{resource}], verbs: [list, watch]" in said
    server.wait_requests(4, verb=verb, resource=resource)
    lines = [record for record in caplog.records if "may not" in record.message and record.levelno >= logging.WARNING]
    assert len(lines) == 1
    assert all(agent.sync(other).trouble is None for other in {"pods", "node", "policies"} - {what})
    server.allow(verb, resource)
    server.wait_watches(3)
    agent.wait(lambda: agent.sync(what).trouble is None and agent.sync(what).synced_at_s is not None)


def test_a_watch_that_falls_silent_is_given_up_and_begun_anew(make_agent: MakeAgent, server: ApiServer) -> None:
    """P34 d: the connection stays open and carries nothing; the rest goes on meanwhile."""
    agent = make_agent(KubeTimings(watch_min_s=1, watch_max_s=1, watch_slack_s=0.2, settled_s=0.0)).start()
    server.wait_watches(3)
    server.interrupt_watches(Ending.SILENT, "nodes")
    server.put(NODE, node_object(NODE_NAME, labels={"sharer.dev/policy": "new"}))
    agent.wait(lambda: agent.api.node is not None and agent.api.node.labels["sharer.dev/policy"] == "new")


def test_an_api_that_is_away_is_named_and_found_when_it_is_back(make_agent: MakeAgent, server: ApiServer) -> None:
    server.stop()
    agent = make_agent().start()
    for what in ("pods", "node", "policies"):
        assert "cannot be reached" in agent.wait_trouble(what, ApiTroubleKind.UNREACHABLE)
    server.start()
    agent.wait(lambda: agent.api.node is not None and agent.api.policies is not None and agent.pods is not None)
    server.wait_watches(3)


def test_a_kubeconfig_that_comes_late_is_read_then(make_agent: MakeAgent, lab: KubeLab) -> None:
    agent = make_agent()
    path = lab.folder / "kubeconfig"
    path.unlink()
    agent.start()
    assert str(path) in agent.wait_trouble("pods", ApiTroubleKind.UNAUTHORIZED)
    lab.kubeconfig("t1")
    agent.wait(lambda: agent.pods is not None)


def test_a_client_that_cannot_be_loaded_is_said_for_everything_and_ends_nothing(
    make_agent: MakeAgent, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(_: KubeAccess) -> KubeClient:
        raise ImportError("No module named 'kubernetes'")

    agent = make_agent(connect=broken).start()
    for what in ("pods", "node", "policies"):
        message = agent.wait_trouble(what, ApiTroubleKind.UNREACHABLE)
        assert "cannot be loaded (ImportError: No module named 'kubernetes'); reinstall sharer" in message
    assert "goes on without it" in caplog.text


def test_it_can_be_closed_while_nothing_answers(make_agent: MakeAgent, server: ApiServer) -> None:
    """A server that takes connections and is silent: all three wait for it, and are waited for together."""
    server.fail_next(Hang(), times=None)
    agent = make_agent().start()
    server.wait_requests(3)
    began_s = time.monotonic()
    agent.api.close()
    assert time.monotonic() - began_s < 3 * STOP_PATIENCE_S, "one after the other"
    server.clear_faults()


def test_closed_while_it_connects_it_asks_nothing_afterwards(make_agent: MakeAgent, server: ApiServer) -> None:
    """The import of the client takes a while; SIGTERM does not wait for it."""
    closed = threading.Event()

    def slow(access: KubeAccess) -> KubeClient:
        closed.wait(PATIENCE_S)
        return connect_api(access, QUICK)

    agent = make_agent(connect=slow).start()
    agent.api.close()
    closed.set()
    for beginning in [thread for thread in threading.enumerate() if thread.name == "api"]:
        beginning.join(PATIENCE_S)
    assert agent.api.client is None
    assert server.requests() == ()
