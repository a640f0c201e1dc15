"""`sharer policy plan --cluster`, `apply`, `rollback` and `hold`, against the simulated API server."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from sharer.core.change.choice import HOLD_LABEL, POLICY_LABEL
from sharer.core.policy.steps import PREVIOUS
from sharer.simulation.apiserver import CONFIG_MAP, NODE, ApiServer
from tests.cli.fleet import FleetServer, mixed, shared_node
from tests.cli.running import run, write_policy
from tests.core.evidence import SHARED

PLACE = ("--configmap", "gpu/policies")


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[FleetServer]:
    with ApiServer().start() as server:
        yield FleetServer(server, tmp_path)


# ---- plan --cluster


def test_the_plan_shows_each_gpu_before_and_after_who_is_in_the_way_and_who_cannot_be_told_of(
    fleet: FleetServer, tmp_path: Path
) -> None:
    wanted = write_policy(tmp_path, slices=8)
    ran = mixed(fleet).run("policy", "plan", wanted, "--cluster")
    assert (ran.status, ran.err) == (0, "")
    fleet.golden("cluster-plan.txt", ran.out.replace(str(tmp_path), "DIR"))


def test_a_plan_without_a_change_says_so_and_needs_no_right_to_list_pods(fleet: FleetServer, tmp_path: Path) -> None:
    mixed(fleet).server.forbid("list", "pods")
    ran = fleet.run("policy", "plan", write_policy(tmp_path, slices=4), "--cluster")
    assert ran.status == 0
    assert f"policy.yaml changes nothing on 4 nodes of {fleet.server.url}\n" in ran.out


def test_a_plan_can_be_for_the_nodes_that_ask_for_one_policy(fleet: FleetServer, tmp_path: Path) -> None:
    for name, labels in (("a", {POLICY_LABEL: "a100"}), ("b", {HOLD_LABEL: "true"})):
        fleet.add_node(name, {SHARED: 8}, labels=labels)
        fleet.add_agent(name, shared_node())
    wanted = write_policy(tmp_path, slices=8)
    ours = fleet.run("policy", "plan", wanted, "--cluster", "--name", "a100", "-o", "json").document()
    assert (ours["kind"], [one["node"] for one in ours["nodes"]]) == ("ClusterPlan", ["a"])
    other = fleet.run("policy", "plan", wanted, "--cluster", "--name", "default")
    assert "held back" in other.out
    assert "Held back by the label sharer.dev/hold:\n  b\n" in other.out


def test_a_plan_is_the_same_document_as_json_and_as_yaml(fleet: FleetServer, tmp_path: Path) -> None:
    command = ("policy", "plan", write_policy(tmp_path, slices=8), "--cluster", "-o")
    document = mixed(fleet).run(*command, "json").document()
    assert (document["apiVersion"], document["kind"], len(document["nodes"])) == (
        "sharer.dev/v1alpha1",
        "ClusterPlan",
        4,
    )
    assert yaml.safe_load(fleet.run(*command, "yaml").out) == document


def test_a_plan_without_gpunodes_is_partial_data(fleet: FleetServer, tmp_path: Path) -> None:
    mixed(fleet).server.forbid("list", "gpunodes")
    ran = fleet.run("policy", "plan", write_policy(tmp_path, slices=8), "--cluster")
    assert ran.status == 3
    assert ran.err.startswith("missing: gpunodes: sharer may not list gpunodes")


def test_options_of_a_cluster_s_plan_go_with_no_other(tmp_path: Path) -> None:
    wanted = write_policy(tmp_path, slices=8)
    assert run("policy", "plan", wanted, "--cluster", "--gpus", "1xL4").status == 2
    assert run("policy", "plan", wanted, "--gpus", "1xL4", "--name", "a100").status == 2


# ---- apply and rollback


def old_and_new(tmp_path: Path) -> tuple[Path, Path]:
    return write_policy(tmp_path, "old.yaml", slices=2), write_policy(tmp_path, "new.yaml", slices=8)


def stored(fleet: FleetServer) -> tuple[str, str | None]:
    """The default policy's text, and what is recorded."""
    found = fleet.server.get(CONFIG_MAP, "policies", "gpu")
    assert found is not None
    return found["data"]["default"], (found["metadata"].get("annotations") or {}).get(PREVIOUS)


def test_a_rollback_restores_the_text_before_the_last_apply_and_twice_goes_forward_again(
    fleet: FleetServer, tmp_path: Path
) -> None:
    old, new = old_and_new(tmp_path)
    fleet.add_policies(default=old.read_text(), a100="untouched")
    applied = fleet.run("policy", "apply", new, *PLACE, "--yes")
    assert applied.status == 0
    assert "-    slices: 2\n+    slices: 8\n" in applied.out
    assert stored(fleet)[0] == new.read_text()
    back = fleet.run("policy", "rollback", *PLACE, "--yes")
    assert back.status == 0
    assert "-    slices: 8\n+    slices: 2\n" in back.out
    assert back.out.endswith("configmap gpu/policies key default: as before; nodes take it at once\n")
    assert stored(fleet)[0] == old.read_text()
    assert fleet.run("policy", "rollback", *PLACE, "--yes").status == 0
    assert stored(fleet)[0] == new.read_text()
    found = fleet.server.get(CONFIG_MAP, "policies", "gpu")
    assert found is not None
    assert found["data"]["a100"] == "untouched"


def test_nothing_is_changed_unless_the_answer_is_yes(fleet: FleetServer, tmp_path: Path) -> None:
    old, new = old_and_new(tmp_path)
    fleet.add_policies(default=old.read_text())
    for answer, status in (("n\n", 1), ("", 1), ("y\n", 0)):
        assert stored(fleet) == (old.read_text(), None)
        assert fleet.run("policy", "apply", new, *PLACE, stdin=answer).status == status
    assert stored(fleet)[0] == new.read_text()
    assert fleet.run("policy", "rollback", *PLACE, stdin="n\n").status == 1
    assert stored(fleet)[0] == new.read_text()


def test_the_key_of_a_name_may_end_in_yaml(fleet: FleetServer, tmp_path: Path) -> None:
    old, new = old_and_new(tmp_path)
    fleet.add_policies(**{"a100.yaml": old.read_text()})
    assert fleet.run("policy", "apply", new, *PLACE, "--name", "a100", "--yes").status == 0
    found = fleet.server.get(CONFIG_MAP, "policies", "gpu")
    assert found is not None
    assert found["data"] == {"a100.yaml": new.read_text()}


def test_without_a_record_a_rollback_says_who_can_go_back(fleet: FleetServer, tmp_path: Path) -> None:
    fleet.add_policies(default=old_and_new(tmp_path)[0].read_text())
    ran = fleet.run("policy", "rollback", *PLACE, "--yes")
    assert (ran.status, ran.out) == (2, "")
    assert "no record of a policy before this one" in ran.err
    assert "helm rollback" in ran.err


def test_a_record_that_is_not_as_it_was_written_or_is_no_policy_restores_nothing(
    fleet: FleetServer, tmp_path: Path
) -> None:
    text = old_and_new(tmp_path)[0].read_text()
    for record in ("{", "[]", '{"key": 1}', json.dumps({"key": "default", "text": "rules: []"})):
        metadata = {"name": "policies", "namespace": "gpu", "annotations": {PREVIOUS: record}}
        fleet.server.put(CONFIG_MAP, {"metadata": metadata, "data": {"default": text}})
        assert fleet.run("policy", "rollback", *PLACE, "--yes").status == 2
        assert stored(fleet)[0] == text


def test_a_wrong_policy_is_not_applied_and_neither_is_the_one_that_is_there(fleet: FleetServer, tmp_path: Path) -> None:
    old, _ = old_and_new(tmp_path)
    fleet.add_policies(default=old.read_text())
    wrong = write_policy(tmp_path, "wrong.yaml", slices=0)
    for file, says in ((wrong, "slices"), (old, "already")):
        ran = fleet.run("policy", "apply", file, *PLACE, "--yes")
        assert ran.status == 2
        assert says in ran.err
    assert stored(fleet) == (old.read_text(), None)


def test_a_config_map_that_changed_meanwhile_is_left_alone(fleet: FleetServer, tmp_path: Path) -> None:
    from sharer.adapters.kube.calls import CONFIG_MAPS
    from sharer.adapters.kube.errors import ApiError
    from sharer.cli.cluster_access import open_cluster
    from sharer.core.policy.steps import replace_text

    old, new = old_and_new(tmp_path)
    fleet.add_policies(default=old.read_text())
    step = replace_text("here", {"default": old.read_text()}, "default", new.read_text())
    with open_cluster(str(fleet.kubeconfig), None) as client, pytest.raises(ApiError, match="modified"):
        client.merge(CONFIG_MAPS, "policies", step.fields("1000"), namespace="gpu")
    assert stored(fleet) == (old.read_text(), None)


@pytest.mark.parametrize("verb", ["get", "patch"])
def test_a_missing_right_is_named_with_the_rule_that_grants_it(fleet: FleetServer, tmp_path: Path, verb: str) -> None:
    old, new = old_and_new(tmp_path)
    fleet.add_policies(default=old.read_text())
    fleet.server.forbid(verb, "configmaps")
    ran = fleet.run("policy", "apply", new, *PLACE, "--yes")
    assert ran.status == 1
    assert f"sharer may not {verb} configmaps in namespace gpu; grant it" in ran.err
    assert f"verbs: [{verb}]" in ran.err


def test_a_config_map_without_a_namespace_is_wrong_input(fleet: FleetServer) -> None:
    assert fleet.run("policy", "rollback", "--configmap", "policies").status == 2


# ---- hold


def test_hold_sets_the_label_that_agents_obey_and_release_takes_it_away(fleet: FleetServer) -> None:
    fleet.add_node("n", {}, labels={"pool": "a"})
    ran = fleet.run("policy", "hold", "n")
    assert (ran.status, ran.out) == (0, "n: keeps the policy in force; --release ends that\n")
    held = fleet.server.get(NODE, "n")
    assert held is not None
    assert (held["metadata"]["labels"][HOLD_LABEL], held["metadata"]["labels"]["pool"]) == ("true", "a")
    assert fleet.run("policy", "hold", "n", "--release").status == 0
    free = fleet.server.get(NODE, "n")
    assert free is not None
    assert HOLD_LABEL not in free["metadata"]["labels"]


def test_hold_says_which_node_is_missing_and_which_right(fleet: FleetServer) -> None:
    ran = fleet.run("policy", "hold", "nowhere")
    assert ran.status == 1
    assert "nowhere" in ran.err
    fleet.server.forbid("patch", "nodes")
    assert 'grant it {apiGroups: [""], resources: [nodes], verbs: [patch]}' in fleet.run("policy", "hold", "n").err
