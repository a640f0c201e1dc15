"""A node's facts: how the way of injection is chosen, and the digest that says whether answers are still the same."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import pytest

from sharer.core.edits import DeviceFacts, DeviceNode, Injection, NodeFacts, OptIns
from sharer.core.injection import choose_injection, injection_warnings
from tests.core.builders import gpu_uuid

A, B = gpu_uuid(0), gpu_uuid(1)


def facts(*injection: Injection, **changes: object) -> NodeFacts:
    devices = {uuid: DeviceFacts(cdi_name=f"nvidia.com/gpu={uuid}") for uuid in (A, B)}
    shared = (DeviceNode("/dev/nvidiactl", "/dev/nvidiactl"),)
    return replace(NodeFacts(injection=injection, devices=devices, shared_nodes=shared), **changes)  # type: ignore[arg-type]


# ---- the choice of a node


def test_auto_is_cdi_when_a_spec_names_a_device_and_says_what_was_not_seen() -> None:
    ways, reason = choose_injection(None, cdi_problem=None)
    assert ways == (Injection.CDI,)
    assert "not verified: that the container runtime has CDI enabled" in reason


def test_auto_is_volume_mounts_and_device_nodes_otherwise_with_the_reason() -> None:
    ways, reason = choose_injection(None, cdi_problem="no CDI spec names it")
    assert ways == (Injection.VOLUME_MOUNTS, Injection.DEVICE_NODES)
    assert "no CDI spec names it" in reason
    assert "accept-nvidia-visible-devices-as-volume-mounts" in reason


def test_auto_never_takes_the_variable_that_a_pod_can_override() -> None:
    for problem in (None, "some"):
        assert Injection.ENVVAR not in choose_injection(None, problem)[0]


def test_what_the_operator_asked_for_is_used_whatever_the_specs_say() -> None:
    assert choose_injection((Injection.ENVVAR,), None)[0] == (Injection.ENVVAR,)
    assert choose_injection((Injection.CDI,), "no spec")[0] == (Injection.CDI,)


def test_envvar_alone_is_warned_of() -> None:
    (warning,) = injection_warnings((Injection.ENVVAR,))
    assert "a pod can set NVIDIA_VISIBLE_DEVICES itself" in warning
    assert len(injection_warnings((Injection.ENVVAR, Injection.DEVICE_NODES))) == 1
    assert injection_warnings((Injection.CDI, Injection.ENVVAR)) == ()
    assert injection_warnings((Injection.VOLUME_MOUNTS, Injection.DEVICE_NODES)) == ()


# ---- the digest


def test_equal_facts_have_equal_digests_and_reasons_do_not_count() -> None:
    one, other = facts(Injection.CDI), facts(Injection.CDI, injection_reason="asked", warnings=("careful",))
    assert one.digest() == other.digest()


@pytest.mark.parametrize(
    "change",
    [
        {"injection": (Injection.ENVVAR,)},
        {"shared_nodes": ()},
        {"opt_ins": OptIns(gds=True)},
        {"cdi_kind": "k8s.nvidia.com/gpu"},
        {"devices": {A: DeviceFacts(driver_limit=True)}},
        {"devices": {A: DeviceFacts(slice_spec=True)}},
    ],
)
def test_whatever_changes_an_answer_changes_the_digest(change: dict[str, object]) -> None:
    assert facts(Injection.CDI, **change).digest() != facts(Injection.CDI).digest()


def test_the_order_of_devices_counts_since_containers_see_it() -> None:
    node = facts(Injection.CDI)
    turned = replace(node, devices={uuid: node.devices[uuid] for uuid in (B, A)})
    assert turned.digest() != node.digest()


def test_the_digest_is_the_same_in_every_process() -> None:
    """Reports of an earlier run are compared with it, so it may not rest on Python's random hashes."""
    program = (
        "from sharer.core.edits import *; devices = {'GPU-a': DeviceFacts(nodes=(DeviceNode('/a', '/b'),))};"
        "print(NodeFacts(injection=(*Injection,), devices=devices, opt_ins=OptIns(gds=True)).digest())"
    )
    digests = {
        subprocess.run(
            [sys.executable, "-c", program], env={"PYTHONHASHSEED": seed}, capture_output=True, text=True, check=True
        ).stdout
        for seed in ("1", "2")
    }
    assert len(digests) == 1
