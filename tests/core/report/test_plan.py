from __future__ import annotations

from dataclasses import replace

from sharer.core.errors import PolicyError, Problem
from sharer.core.policy.model import ComputePolicy, MemoryPolicy, Mig, Mps
from sharer.core.quantities import GIB, MIB
from sharer.core.report.plan import Offered, accepted_policy, refused_policy, report_changes, report_plan
from sharer.core.slices.plan import make_plan
from tests.core.builders import gpu, gpu_uuid, mig, node, policy, rule, time_slicing


def test_a_plan_s_report_names_each_device_its_slices_and_what_each_promises() -> None:
    inventory = node(gpu(0), gpu(1, memory_mib=40960))
    wanted = policy(rule(Mps(slices=4, slice_memory_bytes=None), compute=ComputePolicy(percent=25)))
    (resource,) = report_plan(wanted, make_plan(inventory, wanted), inventory).resources
    assert (resource.name, resource.strategy, resource.request_max) == ("nvidia.com/gpu.shared", "mps", 1)
    assert resource.slices == 8
    assert [(one.gpu_index, one.promise_bytes, one.compute_percent) for one in resource.devices] == [
        (0, 20 * GIB, 25),
        (1, 10 * GIB, 25),
    ]
    assert resource.devices[1].ids[3] == f"{gpu_uuid(1)}::mps-3-10240-25"


def test_slices_of_a_mig_device_are_reported_with_its_profile_and_the_gpu_it_is_on() -> None:
    inventory = node(gpu(0, mig_enabled=True, mig_devices=(mig(0, "1g.10gb"),)))
    wanted = policy(Mig())
    (resource,) = report_plan(wanted, make_plan(inventory, wanted), inventory).resources
    (device,) = resource.devices
    assert (device.uuid, device.gpu_uuid, device.mig_profile) == (mig(0, None).uuid, gpu_uuid(0), "1g.10gb")
    assert device.promise_bytes == 9856 * MIB


def test_no_promise_is_reported_as_none_and_never_as_zero() -> None:
    inventory = node(gpu(0))
    wanted = policy(rule(time_slicing(4), memory=MemoryPolicy(limit=None)))
    (resource,) = report_plan(wanted, make_plan(inventory, wanted), inventory).resources
    assert (resource.devices[0].promise_bytes, resource.devices[0].compute_percent) == (None, None)


def test_two_equal_plans_have_no_changes() -> None:
    plan = make_plan(node(gpu(0)), policy(time_slicing(4)))
    assert report_changes(plan, plan) == ()


def test_another_count_is_a_change_of_every_device_with_the_ids_that_go_and_come() -> None:
    inventory = node(gpu(0), gpu(1))
    before, after = (make_plan(inventory, policy(time_slicing(slices))) for slices in (2, 4))
    first, second = report_changes(before, after)
    assert (first.uuid, second.uuid) == (gpu_uuid(0), gpu_uuid(1))
    assert first.before == Offered(strategy="time-slicing", slices=2, promise_bytes=40 * GIB, compute_percent=None)
    assert first.after == Offered(strategy="time-slicing", slices=4, promise_bytes=20 * GIB, compute_percent=None)
    assert first.ids_going == tuple(f"{gpu_uuid(0)}::ts-{replica}-40960" for replica in range(2))
    assert first.ids_coming == tuple(f"{gpu_uuid(0)}::ts-{replica}-20480" for replica in range(4))


def test_a_renamed_resource_shows_as_one_that_ends_and_one_that_begins() -> None:
    inventory = node(gpu(0))
    before = make_plan(inventory, policy(time_slicing(2)))
    after = make_plan(inventory, policy(rule(time_slicing(2), resource="example.com/gpu")))
    begins, ends = report_changes(before, after)
    assert (begins.resource, begins.before, len(begins.ids_coming)) == ("example.com/gpu", None, 2)
    assert (ends.resource, ends.after, len(ends.ids_going)) == ("nvidia.com/gpu.shared", None, 2)


def test_replicas_are_listed_by_number_and_not_by_text() -> None:
    inventory = node(gpu(0))
    before = make_plan(inventory, policy(rule(time_slicing(11), memory=MemoryPolicy(limit=None))))
    (change,) = report_changes(before, make_plan(inventory, replace(policy(), rules=())))
    assert change.ids_going[-2:] == (f"{gpu_uuid(0)}::ts-9", f"{gpu_uuid(0)}::ts-10")


def test_without_an_inventory_nothing_is_said_about_refusals() -> None:
    checked = accepted_policy(policy(time_slicing(2)), None)
    assert (checked.accepted, checked.refusals) == (True, None)


def test_with_an_inventory_the_gpus_that_offer_nothing_are_named() -> None:
    wanted = policy(rule(time_slicing(2), memory=MemoryPolicy(reserve_bytes=100 * GIB)))
    checked = accepted_policy(wanted, make_plan(node(gpu(0)), wanted))
    assert checked.refusals is not None
    assert [refusal.uuid for refusal in checked.refusals] == [gpu_uuid(0)]


def test_a_refused_policy_is_reported_with_every_problem_in_order() -> None:
    problems = tuple(Problem(source="a", line=n, column=1, path="rules", message="no") for n in (1, 2))
    checked = refused_policy("a", PolicyError(problems))
    assert (checked.accepted, checked.problems) == (False, problems)
