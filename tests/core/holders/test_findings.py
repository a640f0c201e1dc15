"""What is not as it should be is found, with whom it concerns and what to do; what cannot be told is no finding."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sharer.core.holders.evidence import (
    CheckpointReading,
    GpuProcess,
    Reading,
)
from sharer.core.holders.findings import UNSERVED_AFTER_S, Finding, FindingKind, Findings, find
from sharer.core.holders.ledger import Ledger, allocated, observe_all
from sharer.core.holders.observations import ContainerKind, ContainerSeen, PodPhase, PodSeen, PodsSeen
from sharer.core.policy.model import Mig
from sharer.core.quantities import GIB
from sharer.core.slices.plan import Plan, make_plan
from tests.core.builders import gpu, gpu_uuid, mig, node, policy, rule, time_slicing
from tests.core.evidence import SHARED, alive, checkpoint, given_to, key, listed, pod, process, reading, seen

NODE = node(gpu(0), gpu(1))
PLAN = make_plan(NODE, policy(time_slicing(4)))
ON_0, ON_1 = gpu_uuid(0), gpu_uuid(1)
A = key(0, 20480)


def ledger(*readings: Reading, before: Ledger | None = None) -> Ledger:
    return observe_all(before or Ledger(), readings, 0.0, quarantine_s=600.0)


def held_by_train(*processes: GpuProcess) -> Ledger:
    """Pod "train" holds a slice of GPU 0; these processes run, and pod "web" is on the node."""
    return ledger(
        checkpoint(given_to("uid-train", A)),
        alive("uid-train"),
        reading(*processes, asked=(ON_0, ON_1)),
        seen(pod("train"), pod("web")),
        listed({A: "train"}, others=["web"]),
    )


def found(
    ledger: Ledger, *, now_s: float = 0.0, before: Findings | None = None, plan: Plan = PLAN
) -> tuple[Finding, ...]:
    return find(before or Findings(), ledger, NODE, plan, {SHARED}, now_s).found


def kinds(ledger: Ledger) -> list[FindingKind]:
    return [one.kind for one in found(ledger)]


def test_a_pods_own_process_on_its_gpu_is_no_finding() -> None:
    assert kinds(held_by_train(process("uid-train"))) == []


def test_a_process_on_another_gpu_than_its_pod_holds_is_unauthorised() -> None:
    (one,) = found(held_by_train(process("uid-train", 3 * GIB, on=ON_1)))
    assert one.kind is FindingKind.UNAUTHORISED
    assert (one.namespace, one.pod, one.uid, one.pid, one.command) == ("default", "train", "uid-train", 7, "python")
    assert (one.gpu_uuid, one.used_bytes) == (ON_1, 3 * GIB)
    assert one.message == f"process 7 (python) uses 3 GiB of {ON_1}, and its pod default/train holds no slice of it"
    assert one.cure


def test_a_process_of_a_pod_that_asked_for_nothing_is_unauthorised() -> None:
    """gpu-limits §4: an image with NVIDIA_VISIBLE_DEVICES=all."""
    assert kinds(held_by_train(process("uid-web"))) == [FindingKind.UNAUTHORISED]


def test_a_process_of_a_pod_that_nobody_knows_is_unauthorised_and_has_its_uid() -> None:
    (one,) = found(held_by_train(process("uid-x")))
    assert (one.kind, one.pod) == (FindingKind.UNAUTHORISED, None)
    assert "its pod uid-x holds no slice" in one.message


def test_a_process_of_a_former_holder_is_leaked() -> None:
    """P30: force-deleted, and still running."""
    running = held_by_train(process("uid-train"))
    gone = ledger(seen(), listed(serial=2), before=running)
    gone = ledger(listed(serial=3), before=gone)
    (one,) = found(gone)
    assert (one.kind, one.namespace, one.pod) == (FindingKind.LEAKED, "default", "train")
    assert "kill 7" in one.cure


@pytest.mark.parametrize("phase", [PodPhase.SUCCEEDED, PodPhase.FAILED])
def test_a_process_of_a_pod_that_the_api_calls_over_is_leaked_wherever_it_is(phase: PodPhase) -> None:
    assert kinds(ledger(seen(pod("web", phase)), before=held_by_train(process("uid-web")))) == [FindingKind.LEAKED]


def test_a_process_of_a_pod_that_the_api_had_and_has_no_more_is_leaked() -> None:
    assert kinds(ledger(seen(pod("train")), before=held_by_train(process("uid-web")))) == [FindingKind.LEAKED]


def test_a_process_of_the_host_is_foreign() -> None:
    (one,) = found(held_by_train(process(None, command="Xorg")))
    assert (one.kind, one.pod, one.command) == (FindingKind.FOREIGN, None, "Xorg")


@pytest.mark.parametrize("command", ["nvidia-cuda-mps-server", "nvidia-cuda-mps-control", "nvidia-cuda-mps"])
@pytest.mark.parametrize("uid", [None, "uid-web"])
def test_the_servers_of_mps_are_infrastructure(command: str, uid: str | None) -> None:
    """gpu-limits §3. The kernel remembers 15 characters of a command."""
    assert kinds(held_by_train(process(uid, command=command))) == []


def test_a_process_that_may_be_anybodys_is_no_finding() -> None:
    assert kinds(held_by_train(process(None, attributed=False))) == []


def test_while_it_is_not_known_for_whom_a_slice_was_allocated_nobody_is_accused() -> None:
    """The process may be older than the next look at the checkpoint."""
    waiting = allocated(held_by_train(process("uid-web")), [key(1, 20480)], 0.0)
    assert kinds(waiting) == []


def test_a_holder_without_a_uid_may_be_the_one() -> None:
    """Without the checkpoint, the list gives names only."""
    assert kinds(ledger(reading(process("uid-train")), listed({A: "train"}))) == []


def test_on_a_mig_device_its_own_holders_count_and_on_the_whole_gpu_those_of_every_part() -> None:
    """A driver before 2.285 does not tell on which instance a process is."""
    cut = node(replace(gpu(0), mig_enabled=True, mig_devices=(mig(0, "1g.10gb"), mig(1, "1g.10gb"))))
    plan = make_plan(cut, policy(rule(Mig(replicas=1))))
    first, second = (one.uuid for one in cut.gpus[0].mig_devices)
    resource = "nvidia.com/mig-1g.10gb"
    for on, expected in ((first, []), (second, [FindingKind.UNAUTHORISED]), (ON_0, [])):
        at = ledger(
            checkpoint(given_to("uid-train", (resource, f"{first}::mig-0"))),
            alive("uid-train"),
            reading(process("uid-train", on=on)),
        )
        assert [one.kind for one in find(Findings(), at, cut, plan, {resource}, 0.0).found] == expected


# Contested.


@pytest.mark.parametrize("text", [ON_0, f"{ON_0}::3", f"{ON_0}-replica-1", f"MIG-{ON_0}/1/0"])
def test_a_gpu_that_another_plugin_offers_is_contested_however_it_writes_the_uuid(text: str) -> None:
    result = find(Findings(), ledger(checkpoint(registered={"nvidia.com/gpu": [text]})), NODE, PLAN, {SHARED}, 0.0)
    (one,) = result.found
    assert (one.kind, one.gpu_uuid, one.resource) == (FindingKind.CONTESTED, ON_0, "nvidia.com/gpu")
    assert result.contested == {ON_0}


def test_our_own_resources_are_no_rivals_nor_is_what_we_offered_before() -> None:
    registered = checkpoint(
        registered={"nvidia.com/gpu.shared": [f"{ON_0}::0"], "example.com/old": [f"{ON_0}::ts-0-1024"]}
    )
    assert found(ledger(registered)) == ()


def test_a_gpu_that_the_policy_leaves_to_another_plugin_is_not_contested() -> None:
    assert found(ledger(checkpoint(registered={"nvidia.com/gpu": [ON_0]})), plan=make_plan(NODE, policy())) == ()


def test_a_rival_with_the_whole_gpu_contests_its_mig_devices() -> None:
    cut = node(replace(gpu(0), mig_enabled=True, mig_devices=(mig(0, "1g.10gb"), mig(1, "2g.20gb"))))
    plan = make_plan(cut, policy(rule(Mig(replicas=1))))
    first, second = (one.uuid for one in cut.gpus[0].mig_devices)
    for rival, contested in ((ON_0, {first, second}), (first, {first})):
        at = ledger(checkpoint(registered={"nvidia.com/gpu": [rival]}))
        assert find(Findings(), at, cut, plan, set(), 0.0).contested == contested


def test_devices_of_other_kinds_are_nobodys_business() -> None:
    assert found(ledger(checkpoint(registered={"rdma/hca": ["mlx5_0"], "example.com/gpu": [gpu_uuid(9)]}))) == ()


# Unserved.


def asking(kind: ContainerKind = ContainerKind.APP) -> PodSeen:
    containers = (ContainerSeen(name="c", kind=kind, limits={SHARED: 1}),)
    return replace(pod("train"), containers=containers)


def unserved(pods: PodsSeen, given: CheckpointReading, seconds: float = UNSERVED_AFTER_S) -> tuple[Finding, ...]:
    """What is found when a node has been like this for so long."""
    at = ledger(given, pods)
    first = find(Findings(), at, NODE, PLAN, {SHARED}, 100.0)
    assert first.found == ()
    return find(first, at, NODE, PLAN, {SHARED}, 100.0 + seconds).found


def test_a_container_that_asks_and_was_given_nothing_is_unserved_after_a_grace() -> None:
    """Contract §22: `nodeName` set, and the pod runs without any device."""
    assert unserved(seen(asking()), checkpoint(), UNSERVED_AFTER_S - 0.1) == ()
    (one,) = unserved(seen(asking()), checkpoint())
    assert (one.kind, one.namespace, one.pod, one.container) == (FindingKind.UNSERVED, "default", "train", "c")
    assert one.resource == SHARED
    assert "nodeName" in one.cure


def test_a_static_pod_is_told_another_cure() -> None:
    (one,) = unserved(seen(replace(asking(), cgroup_uid="hash")), checkpoint())
    assert "static pod" in one.cure


@pytest.mark.parametrize("kind", list(ContainerKind))
def test_whoever_is_in_the_checkpoint_was_served(kind: ContainerKind) -> None:
    assert unserved(seen(asking(kind)), checkpoint(given_to("uid-train", A))) == ()


def test_whoever_is_in_the_list_was_served_though_a_lost_checkpoint_does_not_name_it() -> None:
    at = ledger(checkpoint(), seen(asking()), listed({A: "train"}))
    first = find(Findings(), at, NODE, PLAN, {SHARED}, 0.0)
    assert [one.kind for one in find(first, at, NODE, PLAN, {SHARED}, 100.0).found] == []


@pytest.mark.parametrize(
    "changed",
    [
        {"phase": PodPhase.PENDING},
        {"phase": PodPhase.SUCCEEDED},
        {"is_deleting": True},
        {"containers": (ContainerSeen(name="c", limits={"example.com/fpga": 1}),)},
    ],
)
def test_who_does_not_run_or_asks_for_something_else_is_not_unserved(changed: dict[str, object]) -> None:
    assert unserved(seen(replace(asking(), **changed)), checkpoint()) == ()  # type: ignore[arg-type]  # of one field


def test_without_a_checkpoint_nobody_is_called_unserved() -> None:
    at = ledger(seen(asking()))
    first = find(Findings(), at, NODE, PLAN, {SHARED}, 0.0)
    assert find(first, at, NODE, PLAN, {SHARED}, 100.0).found == ()


def test_the_grace_begins_anew_for_whoever_was_served_in_between() -> None:
    without, given = ledger(checkpoint(), seen(asking())), ledger(checkpoint(given_to("uid-train", A)), seen(asking()))
    findings = Findings()
    for at, now_s in ((without, 0.0), (given, 20.0), (without, 40.0), (without, 60.0)):
        findings = find(findings, at, NODE, PLAN, {SHARED}, now_s)
    assert findings.found == ()


def test_a_finding_is_the_same_one_whatever_memory_it_uses_now() -> None:
    (one,) = found(held_by_train(process("uid-web")))
    (other,) = found(held_by_train(process("uid-web", None)))
    assert one.key == other.key
    assert "memory of unknown size" in other.message
