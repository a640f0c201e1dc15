from __future__ import annotations

from collections.abc import Mapping

import pytest

from sharer.core.errors import PolicyError
from sharer.simulation.kubelet import ContainerSpec
from sharer.simulation.manifests import PlannedPod
from sharer.simulation.planner import PodOutcome, PodPlanReport, PodState, plan_pods
from sharer.simulation.products import parse_gpus

SHARED = "nvidia.com/gpu.shared"


def policy(
    slices: int = 4, *, placement: str = "packed", request_max: int = 8, strategy: str = "time-slicing"
) -> bytes:
    return f"""\
apiVersion: sharer.dev/v1alpha1
kind: SharingPolicy
rules:
  - match: {{}}
    strategy: {strategy}
    slices: {slices}
    placement: {placement}
    request: {{max: {request_max}}}
""".encode()


def pod(name: str, slices: int = 1, *, start_after_s: float = 0, run_for_s: float | None = None) -> PlannedPod:
    containers = (ContainerSpec(limits={SHARED: slices} if slices else {}),)
    return PlannedPod(
        name=name, namespace="default", containers=containers, start_after_s=start_after_s, run_for_s=run_for_s
    )


def plan(*pods: PlannedPod, gpus: str = "A100-80GB", text: bytes | None = None) -> PodPlanReport:
    return plan_pods(parse_gpus(gpus), text or policy(), "policy.yaml", pods)


def by_name(report: PodPlanReport) -> Mapping[str, PodOutcome]:
    return {outcome.name: outcome for outcome in report.pods}


def test_pods_that_fit_run_and_the_rest_waits_with_the_reason() -> None:
    report = plan(pod("a", 3), pod("b", 2), pod("c"))
    pods = by_name(report)
    assert [pods[name].state for name in "abc"] == [PodState.RUNNING, PodState.WAITING, PodState.RUNNING]
    assert pods["b"].reason == f"asks for 2 {SHARED}; 0 of 4 are free"
    assert not report.all_fit


def test_a_pod_starts_when_another_one_ends_and_is_given_its_slices() -> None:
    report = plan(pod("a", 4, run_for_s=60), pod("b", 4, start_after_s=10, run_for_s=30))
    first, second = report.pods
    assert (first.started_at_s, first.ended_at_s) == (0, 60)
    assert (second.came_at_s, second.started_at_s, second.ended_at_s) == (10, 60, 90)
    assert first.holdings == second.holdings
    assert (report.ends_at_s, report.all_fit) == (90, True)


def test_at_one_moment_pods_end_before_others_start_in_the_order_in_which_they_came() -> None:
    late, early, first, _ = plan(
        pod("late", 4, start_after_s=60), pod("early", 4, start_after_s=1), pod("a", 4, run_for_s=60), pod("cpu", 0)
    ).pods
    assert (first.ended_at_s, early.started_at_s) == (60, 60)
    assert late.state is PodState.WAITING


def test_packed_and_spread_are_those_of_the_agent() -> None:
    pods = [pod(name) for name in "ab"]
    packed = plan(*pods, gpus="2xA100-80GB")
    spread = plan(*pods, gpus="2xA100-80GB", text=policy(placement="spread"))
    assert [holding.gpus for outcome in packed.pods for holding in outcome.holdings] == [(0,), (0,)]
    assert [holding.gpus for outcome in spread.pods for holding in outcome.holdings] == [(0,), (1,)]


def test_what_is_left_is_counted_for_each_gpu_at_the_end_and_at_the_fullest() -> None:
    report = plan(pod("a", 3, run_for_s=5), pod("b", 1), pod("c", 3), gpus="2xA100-80GB")
    assert report.pods[2].holdings[0].gpus == (1,)  # one container is on one GPU where it fits
    assert [(use.gpu, use.slices, use.held, use.free, use.most_held) for use in report.devices] == [
        (0, 4, 1, 3, 4),
        (1, 4, 3, 1, 3),
    ]


def test_slices_that_an_init_container_hands_on_are_counted_once() -> None:
    init = (ContainerSpec(name="init", limits={SHARED: 2}),)
    both = PlannedPod(
        name="p", namespace="default", containers=(ContainerSpec(limits={SHARED: 1}),), init_containers=init
    )
    report = plan(both, pod("other", 2))
    assert report.all_fit
    assert report.devices[0].held == 4


def test_a_pod_that_can_never_run_here_is_refused_with_the_reason() -> None:
    odd = {
        "typo": ({"nvidia.com/gpu.share": 1}, f"this node offers no nvidia.com/gpu.share; did you mean {SHARED}?"),
        "other": ({"example.com/nic": 1}, f"this node offers no example.com/nic; it offers {SHARED}"),
        "huge": ({SHARED: 5}, f"asks for 5 {SHARED}, and this node has 4"),
        "greedy": ({SHARED: 3}, f"container main asks for 3 {SHARED}, and request.max is 2"),
    }
    pods = [
        PlannedPod(name=name, namespace="default", containers=(ContainerSpec(limits=asked),))
        for name, (asked, _) in odd.items()
    ]
    *refused, fine, without_gpu = plan(*pods, pod("fine"), pod("cpu", 0), text=policy(request_max=2)).pods
    assert {outcome.name: outcome.reason for outcome in refused} == {name: reason for name, (_, reason) in odd.items()}
    assert {outcome.state for outcome in refused} == {PodState.REFUSED}
    assert (fine.state, without_gpu.state) == (PodState.RUNNING, PodState.RUNNING)


def test_of_a_job_s_pods_only_so_many_run_at_a_time() -> None:
    containers = (ContainerSpec(limits={SHARED: 1}),)

    def job(name: str, at_once: int, run_for_s: float | None) -> list[PlannedPod]:
        shared = {"namespace": "default", "containers": containers, "run_for_s": run_for_s}
        return [PlannedPod(name=f"{name}-{n}", job=name, at_once=at_once, **shared) for n in range(3)]  # type: ignore[arg-type]

    *short, first, second, _ = plan(*job("short", 2, 10), *job("long", 1, None)).pods
    assert [outcome.started_at_s for outcome in short] == [0, 0, 10]
    assert (first.started_at_s, second.started_at_s, second.reason) == (0, None, "its Job runs 1 at a time")


def test_gpus_that_offer_nothing_are_among_the_warnings() -> None:
    report = plan(pod("a"), gpus="L4,P4", text=policy().replace(b"slices: 4", b"sliceMemory: 10Gi"))
    assert any("GPU 1 (Tesla P4)" in warning and "offers nothing: no slice" in warning for warning in report.warnings)


def test_pods_are_planned_for_mps_slices_too() -> None:
    report = plan(*(pod(name) for name in "abc"), text=policy(slices=2, strategy="mps", request_max=1))
    assert [pod.state for pod in report.pods] == [PodState.RUNNING, PodState.RUNNING, PodState.WAITING]


def test_the_same_input_gives_the_same_plan() -> None:
    pods = [pod(f"p{n}", 1 + n % 3, start_after_s=n % 5, run_for_s=3 + n % 4) for n in range(12)]
    assert plan(*pods, gpus="2xA100-80GB,L4") == plan(*pods, gpus="2xA100-80GB,L4")


def test_a_wrong_policy_is_refused_as_everywhere() -> None:
    with pytest.raises(PolicyError, match=r"policy\.yaml:6:13: rules\[0\]\.slices"):
        plan(pod("a"), text=policy(slices=0))
