from __future__ import annotations

import json
import threading

import pytest

from sharer.adapters.documents import to_json
from sharer.core.errors import InputError
from sharer.simulation.node import default_policy
from sharer.simulation.products import parse_gpus
from sharer.simulation.scenario import (
    STEPS,
    Step,
    admit,
    advertise,
    exceed,
    fill,
    hold,
    know_holders,
    outlive,
    play,
    recut,
    refuse,
    reuse,
)
from sharer.simulation.scene import Scene
from sharer.simulation.story import Audience, Observation, SimulationReport

MIG = b"""\
apiVersion: sharer.dev/v1alpha1
kind: SharingPolicy
rules:
  - {match: {}, strategy: mig}
  - {match: {product: "*L4*"}, strategy: exclusive}
"""

SAME_IDS = b"""\
apiVersion: sharer.dev/v1alpha1
kind: SharingPolicy
rules:
  - {match: {}, strategy: time-slicing, slices: 4, memory: {limit: none}}
rollout: {window: 10m}
"""
MPS = b"""\
apiVersion: sharer.dev/v1alpha1
kind: SharingPolicy
rules:
  - {match: {}, strategy: mps, slices: 4}
"""


class Watching(Audience):
    def __init__(self) -> None:
        self.seen: list[str] = []

    def begins(self, title: str) -> None:
        self.seen.append(title)

    def sees(self, observation: Observation) -> None:
        self.seen.append(f"{observation.by}: {observation.text}")

    def fails(self, failure: str) -> None:
        self.seen.append(f"failed: {failure}")


def demo(gpus: str, policy: bytes, *steps: Step, audience: Audience | None = None) -> SimulationReport:
    return play(parse_gpus(gpus), policy, "policy.yaml", audience or Audience(), steps=steps or STEPS)


def test_every_step_shows_what_it_should_on_mig_devices_and_on_whole_gpus_and_nothing_of_it_is_left() -> None:
    before = set(threading.enumerate())
    watching = Watching()
    report = demo("1xA100-80GB:mig(3x1g.10gb,1x2g.20gb),2xL4", MIG, audience=watching)
    assert [step.failure for step in report.steps] == [None] * len(STEPS)
    assert [step.title for step in report.steps] == [(step.__doc__ or "").splitlines()[0] for step in STEPS]
    told = [f"{one.by}: {one.text}" for step in report.steps for one in step.observations]
    assert [line for line in watching.seen if line in set(told)] == told
    assert [(one.gpu, one.resource, one.slices, one.free, one.unhealthy) for one in report.slices if one.gpu] == [
        (1, "nvidia.com/gpu", 1, 0, 0),
        (2, "nvidia.com/gpu", 1, 1, 0),
    ]
    assert sum(one.held for one in report.slices if one.resource == "nvidia.com/mig-1g.10gb") == 2
    left = set(threading.enumerate()) - before
    for thread in left:
        thread.join(30)
    assert [thread.name for thread in left if thread.is_alive()] == []


def test_a_container_is_seen_to_receive_its_promise() -> None:
    watching = Watching()
    demo("A100-80GB", default_policy(), advertise, admit, audience=watching)
    promised = [line for line in watching.seen if line.startswith("train: SHARER_MEMORY_LIMIT_BYTES=")]
    assert len(promised) == 1
    assert promised[0].endswith(f"={(81920 - 512) // 4 // 256 * 256 * 2**20}")


def test_a_node_with_one_slice_can_be_shown() -> None:
    report = demo("L4", MIG, advertise, admit, know_holders, fill, reuse, outlive, recut)
    assert [step.failure for step in report.steps] == [None] * 7
    assert [one.text for one in report.steps[-1].observations] == [
        "not shown: nvidia.com/gpu has no two time slices of a GPU that could become one"
    ]


def test_the_agent_is_seen_to_know_owner_uid_and_promise() -> None:
    report = demo("A100-80GB", default_policy(), advertise, admit, know_holders)
    told = [one.text for one in report.steps[-1].observations if one.by == "report"]
    assert [
        (line.partition(": held by ")[2].partition(", UID ")[0], line.partition(", promised ")[2]) for line in told
    ] == [
        ("default/train (main)", "19.8 GiB"),
        ("default/notebook (main)", "19.8 GiB + 19.8 GiB"),
    ]


REQUIRED = b"""\
apiVersion: sharer.dev/v1alpha1
kind: SharingPolicy
rules:
  - {match: {}, strategy: time-slicing, slices: 4, memory: {required: true}}
"""


@pytest.mark.parametrize("policy", [default_policy(), REQUIRED], ids=["usual", "required"])
def test_a_container_is_seen_to_be_held_to_its_promise_and_caught_above_it(policy: bytes) -> None:
    report = demo("A100-80GB", policy, advertise, admit, hold, refuse, exceed)
    assert [step.failure for step in report.steps] == [None] * 5
    _, _, held, refused, exceeded = ([one.text for one in step.observations] for step in report.steps)
    assert "default/train (main): held by driver" in held
    assert any(line.endswith(" GiB of " + report.slices[0].uuid + ": granted") for line in refused)
    assert refused[-1].endswith("more: refused, CUDA_ERROR_OUT_OF_MEMORY")
    assert any(line.startswith("pod train: not held to its promise: driver: it uses more than") for line in exceeded)
    assert exceeded[-1].endswith(", set again")


def test_where_nothing_is_promised_nothing_is_said_to_be_held() -> None:
    report = demo("L4", SAME_IDS, advertise, admit, hold, refuse, exceed)
    assert [step.failure for step in report.steps] == [None] * 5
    assert "default/train (main): no memory is promised, so nothing is to be held" in {
        one.text for one in report.steps[2].observations
    }
    assert [one.held_by for one in report.slices] == [()]


def test_a_mig_device_is_seen_to_hold_its_container() -> None:
    report = demo("1xA100-80GB:mig(3x1g.10gb)", MIG, advertise, admit, hold, refuse)
    assert [step.failure for step in report.steps] == [None] * 4
    assert "default/train (main): held by mig" in {one.text for one in report.steps[2].observations}
    assert {by for one in report.slices for by in one.held_by} == {"mig"}


def test_a_slice_is_seen_in_quarantine_from_the_force_delete_until_the_last_process_has_ended() -> None:
    report = demo("L4", default_policy(), advertise, admit, outlive)
    assert not report.failed
    kubelet, kept, offered = [one.text for one in report.steps[-1].observations if one.by != "agent"]
    assert kubelet.startswith("pod notebook is not known any more; Unhealthy: ")
    assert kept.endswith(": quarantined, its owner has ended, and something of it still runs")
    assert offered.endswith(": offered, nobody holds it")
    assert [(one.held, one.free, one.unhealthy) for one in report.slices] == [(1, 3, 0)]


@pytest.mark.parametrize("policy", [default_policy(), SAME_IDS], ids=["other IDs", "fewer IDs"])
def test_a_re_cut_under_running_pods_drains_what_is_held_and_withdraws_what_is_free(policy: bytes) -> None:
    report = demo("L4", policy, advertise, admit, fill, reuse, outlive, recut)
    assert [step.failure for step in report.steps] == [None] * 6
    told = " / ".join(one.text for one in report.steps[-1].observations if one.by == "report")
    draining = sum(one.draining for one in report.slices)
    assert f"held slices that drain: {draining}; Healthy for 10m" in told
    assert "free slices withdrawn: 1; Unhealthy now, not listed any more in 30 s at the earliest" in told
    assert "GPU 0: " in told
    assert draining > 0
    assert [(one.slices, one.held, one.free, one.unhealthy) for one in report.slices] == [(4, 3, 0, 1)]


def test_mps_slices_are_served_by_the_supervisor_s_own_code_beside_the_agent() -> None:
    watching = Watching()
    report = demo("A100-80GB", MPS, advertise, admit, audience=watching)
    assert not report.failed, watching.seen
    assert any(text.startswith("mps: nvidia.com/gpu.shared: serves 1 GPU") for text in watching.seen)
    assert "train: CUDA_MPS_PIPE_DIRECTORY=/run/sharer/mps" in watching.seen


def test_what_is_not_as_expected_fails_the_step_and_ends_the_demo() -> None:
    def disappoint(scene: Scene) -> None:
        """Something is wrong."""
        scene.say("kubelet", "seen")
        scene.expect(False, "an eighth of a GPU")

    watching = Watching()
    report = demo("L4", default_policy(), advertise, disappoint, advertise, audience=watching)
    assert report.failed
    assert [(step.title, step.failure) for step in report.steps][1:] == [("Something is wrong.", "an eighth of a GPU")]
    assert watching.seen[-2:] == ["kubelet: seen", "failed: an eighth of a GPU"]


def test_a_report_is_a_document_of_kind_simulation() -> None:
    document = json.loads(to_json(demo("L4", default_policy(), advertise)))
    assert (document["apiVersion"], document["kind"]) == ("sharer.dev/v1alpha1", "Simulation")
    assert {one["by"] for one in document["steps"][0]["observations"]} == {"agent", "kubelet"}
    assert document["slices"][0]["promiseBytes"] > 0


def test_a_policy_that_offers_nothing_here_is_refused_with_the_reasons() -> None:
    with pytest.raises(InputError, match=r"policy\.yaml offers nothing on these GPUs: GPU 0 \(NVIDIA A30\)"):
        demo("A30:mig()", MIG)
