"""What probes are told."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sharer.core.change.rollout import PolicyInForce
from sharer.core.holders.evidence import SourceStatus
from sharer.core.known import Known
from sharer.core.tell.ready import ALIVE_S, API_SYNC_S, SYNC_S, why_not_alive, why_not_ready
from tests.core.builders import gpu, node, policy, time_slicing
from tests.core.evidence import SHARED
from tests.core.nodes import NOW_S, known

FOUR = policy(time_slicing(4))
READ = {name: SourceStatus(read_s=NOW_S) for name in ("checkpoint", "list", "cgroups", "processes", "pods")}
YES = {SHARED: True}


def ready(**parts: object) -> Known:
    """A node that has everything, but for these parts."""
    whole = known(node(gpu(0)), FOUR, policy=PolicyInForce(policy=FOUR), sources=READ)
    return replace(whole, **parts)  # type: ignore[arg-type]  # of `Known`


def test_a_node_with_policy_driver_and_kubelet_is_ready() -> None:
    assert why_not_ready(ready(), YES, NOW_S) is None


def test_a_new_agent_is_not_ready() -> None:
    assert why_not_ready(Known(), None, NOW_S) == "no policy is in force: it has not been read yet"


@pytest.mark.parametrize(
    ("parts", "reason"),
    [
        ({"policy": PolicyInForce(refused="p.yaml:1: no")}, "no policy is in force: p.yaml:1: no"),
        ({"policy": PolicyInForce(unread="the API is away")}, "no policy is in force: the API is away"),
        ({"paused": "paused by a label"}, "paused by a label"),
        ({"inventory": None}, "the driver is not known to work: it has not been asked yet"),
        ({"driver_problem": "NVML hangs"}, "the driver is not known to work: NVML hangs"),
        ({"sources": {}}, "the kubelet's checkpoint has not been read yet"),
        (
            {"sources": {**READ, "list": SourceStatus(problem="no socket")}},
            "the kubelet's list has not been read yet: no socket",
        ),
        (
            {"sources": {**READ, "list": SourceStatus(read_s=NOW_S - SYNC_S - 1, problem="no socket")}},
            "the kubelet's list was last read 61 s ago: no socket",
        ),
        (
            {"sources": {**READ, "pods": SourceStatus(read_s=NOW_S - API_SYNC_S - 1, problem="no route")}},
            "the API server was last heard of 601 s ago: no route",
        ),
    ],
)
def test_what_is_missing_is_said(parts: dict[str, object], reason: str) -> None:
    """P34: an API server that was followed and is lost for long."""
    assert why_not_ready(ready(**parts), YES, NOW_S) == reason


def test_a_node_that_has_made_no_list_yet_is_not_ready() -> None:
    assert why_not_ready(ready(), None, NOW_S) == "nothing has been offered yet"


def test_resources_that_the_kubelet_does_not_read_are_named() -> None:
    assert why_not_ready(ready(), {}, NOW_S) == f"not registered with the kubelet: {SHARED}"
    assert why_not_ready(ready(), {SHARED: False}, NOW_S) == f"not registered with the kubelet: {SHARED}"


def test_a_refused_policy_beside_one_in_force_is_no_reason() -> None:
    standing = PolicyInForce(policy=FOUR, refused="p.yaml:1: no")
    assert why_not_ready(ready(policy=standing), YES, NOW_S) is None


def test_an_api_server_that_was_never_reached_is_no_reason() -> None:
    """P36: sharing works without it."""
    assert why_not_ready(ready(sources={**READ, "pods": SourceStatus(problem="403")}), YES, NOW_S) is None


def test_a_node_without_gpus_is_ready() -> None:
    assert why_not_ready(ready(inventory=node(), offers={}), {}, NOW_S) is None


def test_who_goes_round_is_alive_however_slow_the_driver_opens() -> None:
    assert why_not_alive(NOW_S - 100.0, NOW_S) is None
    assert why_not_alive(NOW_S - ALIVE_S - 10.0, NOW_S) == "the agent has not gone round for 160 s"
