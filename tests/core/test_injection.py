"""What a container is given, as a function of its grant and the node's facts."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sharer.core.device_id import DeviceId, Strategy
from sharer.core.edits import ContainerEdits, DeviceFacts, DeviceNode, Injection, Mount, NodeFacts, OptIns
from sharer.core.errors import RequestError
from sharer.core.grant import Grant, make_grant
from sharer.core.injection import (
    container_edits,
    slice_variables,
)
from tests.core.builders import gpu_uuid

A, B = gpu_uuid(0), gpu_uuid(1)
NULL_DEVICE = {"host_path": "/dev/null", "read_only": False}


@dataclass(frozen=True)
class Setting:
    """An enforcer that sets one variable."""

    name: str
    value: str = "1"

    def edits(self, grant: Grant, facts: NodeFacts) -> ContainerEdits:
        return ContainerEdits(env=((self.name, self.value),))


def ids(*texts: str) -> list[DeviceId]:
    return [DeviceId.parse(text) for text in texts]


def facts(*injection: Injection, **changes: object) -> NodeFacts:
    devices = {
        uuid: DeviceFacts(
            nodes=(DeviceNode(f"/dev/nvidia{number}", f"/dev/nvidia{number}"),), cdi_name=f"nvidia.com/gpu={uuid}"
        )
        for number, uuid in enumerate((A, B))
    }
    shared = (DeviceNode("/dev/nvidiactl", "/dev/nvidiactl"),)
    return replace(NodeFacts(injection=injection, devices=devices, shared_nodes=shared), **changes)  # type: ignore[arg-type]


def with_slice_specs(node: NodeFacts) -> NodeFacts:
    return replace(node, devices={uuid: replace(device, slice_spec=True) for uuid, device in node.devices.items()})


def edits(
    node: NodeFacts, *texts: str, enforcers: Sequence[Setting] = ()
) -> tuple[dict[str, str], list[Mount], list[DeviceNode], list[str]]:
    given = container_edits(make_grant(ids(*texts), node.devices), node, enforcers)
    return dict(given.env), list(given.mounts), list(given.device_nodes), list(given.cdi_names)


# ---- what a container is told


def test_a_container_is_told_its_ids_devices_strategy_and_promises() -> None:
    env, *_ = edits(facts(Injection.ENVVAR), f"{A}::mps-3-20480-25")
    assert env == {
        "NVIDIA_VISIBLE_DEVICES": A,
        "SHARER_DEVICE_IDS": f"{A}::mps-3-20480-25",
        "SHARER_GPU_UUIDS": A,
        "SHARER_STRATEGY": "mps",
        "SHARER_MEMORY_LIMIT_BYTES": f"{A}={20480 * 2**20}",
        "SHARER_COMPUTE_PERCENT": f"{A}=25",
    }


def test_what_was_not_promised_is_left_out_and_never_zero() -> None:
    env, *_ = edits(facts(Injection.ENVVAR), f"{A}::ts-0")
    assert env.keys() == {"NVIDIA_VISIBLE_DEVICES", "SHARER_DEVICE_IDS", "SHARER_GPU_UUIDS", "SHARER_STRATEGY"}


def test_several_slices_of_one_gpu_name_it_once_and_add_up() -> None:
    """Bug case P28: a container's slices lie on one GPU and count together."""
    env, *_ = edits(facts(Injection.ENVVAR), f"{A}::ts-1-1024", f"{A}::ts-0-1024")
    assert env["NVIDIA_VISIBLE_DEVICES"] == A
    assert env["SHARER_DEVICE_IDS"] == f"{A}::ts-0-1024,{A}::ts-1-1024"
    assert env["SHARER_MEMORY_LIMIT_BYTES"] == f"{A}={2048 * 2**20}"


# ---- one way of injection at a time


def test_envvar_names_the_devices_in_the_order_the_node_has_them() -> None:
    env, mounts, nodes, names = edits(facts(Injection.ENVVAR), f"{B}::ts-0", f"{A}::ts-0")
    assert env["NVIDIA_VISIBLE_DEVICES"] == f"{A},{B}"
    assert (mounts, nodes, names) == ([], [], [])


def test_volume_mounts_are_mounts_of_dev_null_and_a_variable_that_points_at_their_folder() -> None:
    """NVIDIA's runtime looks at mounts whose source is just /dev/null. To forge one takes a hostPath volume."""
    env, mounts, nodes, names = edits(facts(Injection.VOLUME_MOUNTS), f"{A}::ts-0")
    assert mounts == [Mount(container_path=f"/var/run/nvidia-container-devices/{A}", **NULL_DEVICE)]  # type: ignore[arg-type]
    assert env["NVIDIA_VISIBLE_DEVICES"] == "/var/run/nvidia-container-devices"
    assert (nodes, names) == ([], [])


def test_device_nodes_are_the_gpu_s_and_the_shared_ones() -> None:
    """Threat 1."""
    env, mounts, nodes, names = edits(facts(Injection.DEVICE_NODES), f"{B}::ts-0")
    assert [node.container_path for node in nodes] == ["/dev/nvidia1", "/dev/nvidiactl"]
    assert "NVIDIA_VISIBLE_DEVICES" not in env
    assert (mounts, names) == ([], [])


def test_cdi_names_the_driver_s_devices_and_sets_no_variable_of_nvidia_s() -> None:
    env, mounts, nodes, names = edits(facts(Injection.CDI), f"{A}::ts-0", f"{B}::ts-0")
    assert names == [f"nvidia.com/gpu={A}", f"nvidia.com/gpu={B}"]
    assert not [name for name in env if name.startswith("NVIDIA")]
    assert (mounts, nodes) == ([], [])


def test_a_name_that_does_not_resolve_is_refused_rather_than_answered() -> None:
    """The runtime would retry it for ever, and the pod's author would never read why (runtime-facts §1.7)."""
    node = facts(Injection.CDI, devices={A: DeviceFacts(unusable="no spec names it")})
    with pytest.raises(RequestError, match=rf"{A} cannot be given to a container: no spec names it"):
        edits(node, f"{A}::ts-0")


# ---- our own CDI specs: what a pod's author cannot override


def test_with_a_spec_of_its_own_a_single_slice_s_information_travels_there_only() -> None:
    """Threats 1 and 3, pitfall 37. Precedence was measured: plugin variable < the pod's own < CDI."""
    env, _, _, names = edits(with_slice_specs(facts(Injection.CDI)), f"{A}::ts-0-1024")
    assert names == [f"nvidia.com/gpu={A}", f"sharer.dev/slice={A}::ts-0-1024"]
    assert env == {}


def test_what_enforcers_set_travels_both_ways() -> None:
    """A hook reads the first entry of a name, the process the last (gpu-limits §2)."""
    node = with_slice_specs(facts(Injection.CDI))
    enforcers = [Setting("NVIDIA_GPU_MEMORY_LIMIT", "1024")]
    env, *_ = edits(node, f"{A}::ts-0-1024", enforcers=enforcers)
    assert env == {"NVIDIA_GPU_MEMORY_LIMIT": "1024"}
    in_spec = slice_variables(ids(f"{A}::ts-0-1024")[0], node, enforcers)
    assert in_spec["NVIDIA_GPU_MEMORY_LIMIT"] == "1024"
    assert in_spec["SHARER_DEVICE_IDS"] == f"{A}::ts-0-1024"


def test_several_slices_in_one_container_name_no_spec_of_ours() -> None:
    """The later device's variable would win, and tell of one slice only (runtime-facts §1.4)."""
    env, _, _, names = edits(with_slice_specs(facts(Injection.CDI)), f"{A}::ts-0-1024", f"{A}::ts-1-1024")
    assert names == [f"nvidia.com/gpu={A}"]
    assert env["SHARER_MEMORY_LIMIT_BYTES"] == f"{A}={2048 * 2**20}"


def test_no_spec_of_ours_is_named_where_cdi_is_not_in_use() -> None:
    _, _, _, names = edits(with_slice_specs(facts(Injection.DEVICE_NODES)), f"{A}::ts-0")
    assert names == []


def test_the_spec_leaves_visible_devices_to_the_driver_s_spec() -> None:
    node = facts(Injection.CDI, Injection.ENVVAR)
    assert "NVIDIA_VISIBLE_DEVICES" not in slice_variables(ids(f"{A}::ts-0")[0], node, ())


# ---- combinations


def test_volume_mounts_and_device_nodes_go_together() -> None:
    env, mounts, nodes, _ = edits(facts(Injection.VOLUME_MOUNTS, Injection.DEVICE_NODES), f"{A}::ts-0")
    assert len(mounts) == 1
    assert len(nodes) == 2
    assert env["NVIDIA_VISIBLE_DEVICES"] == "/var/run/nvidia-container-devices"


def test_cdi_and_envvar_go_together() -> None:
    env, _, _, names = edits(facts(Injection.CDI, Injection.ENVVAR), f"{A}::ts-0")
    assert names == [f"nvidia.com/gpu={A}"]
    assert env["NVIDIA_VISIBLE_DEVICES"] == A


@pytest.mark.parametrize("ways", [("envvar", "volume-mounts"), ("volume-mounts", "envvar")])
def test_of_envvar_and_volume_mounts_the_mounts_decide_in_either_order(ways: tuple[str, str]) -> None:
    env, *_ = edits(facts(*map(Injection, ways)), f"{A}::ts-0")
    assert env["NVIDIA_VISIBLE_DEVICES"] == "/var/run/nvidia-container-devices"


# ---- the operator's opt-ins

EVERYTHING = OptIns(imex_channels=(0, 2), gds=True, mofed=True, gdrcopy=True)
FEATURES = {"NVIDIA_GDS": "enabled", "NVIDIA_MOFED": "enabled", "NVIDIA_GDRCOPY": "enabled"}


def nvidia_s(env: dict[str, str]) -> dict[str, str]:
    return {name: value for name, value in env.items() if name.startswith("NVIDIA_") and "VISIBLE" not in name}


def test_opt_ins_are_variables_with_envvar() -> None:
    env, *_ = edits(facts(Injection.ENVVAR, opt_ins=EVERYTHING), f"{A}::ts-0")
    assert nvidia_s(env) == FEATURES | {"NVIDIA_IMEX_CHANNELS": "0,2"}


def test_imex_channels_are_mounts_with_volume_mounts() -> None:
    """Which need not be accepted as a variable from unprivileged containers, then."""
    env, mounts, *_ = edits(facts(Injection.VOLUME_MOUNTS, opt_ins=EVERYTHING), f"{A}::ts-0")
    assert nvidia_s(env) == FEATURES
    root = "/var/run/nvidia-container-devices"
    assert {mount.container_path for mount in mounts} == {f"{root}/{A}", f"{root}/imex/0", f"{root}/imex/2"}


def test_opt_ins_are_names_of_the_gpus_vendor_with_cdi() -> None:
    node = facts(Injection.CDI, opt_ins=EVERYTHING, cdi_kind="k8s.nvidia.com/gpu")
    env, _, _, names = edits(node, f"{A}::ts-0")
    assert names[1:] == [
        "k8s.nvidia.com/imex-channel=0",
        "k8s.nvidia.com/imex-channel=2",
        "k8s.nvidia.com/gds=all",
        "k8s.nvidia.com/mofed=all",
        "k8s.nvidia.com/gdrcopy=all",
    ]
    assert nvidia_s(env) == {}


def test_nothing_is_given_that_the_operator_did_not_ask_for() -> None:
    env, mounts, _, names = edits(facts(*Injection), f"{A}::ts-0")
    assert nvidia_s(env) == {}
    assert len(mounts) == 1
    assert names == [f"nvidia.com/gpu={A}"]


# ---- what cannot run


@pytest.mark.parametrize("promise", [{"limit_mib": 0}, {"percent": 0}, {"percent": 101}])
def test_a_computed_limit_of_zero_is_refused_and_never_injected(promise: dict[str, int]) -> None:
    """Bug case P23: to an enforcer 0 means no limit at all."""
    wrong = DeviceId(uuid=A, strategy=Strategy.TIME_SLICING, replica=0, **promise)
    grant = make_grant([wrong])
    if promise == {"percent": 101}:
        grant = replace(grant, shares=(replace(grant.shares[0], percent=101),))  # `make_grant` caps sums at 100
    with pytest.raises(RequestError, match="was promised"):
        container_edits(grant, facts(Injection.ENVVAR), ())


# ---- one answer for ever

WAYS = st.lists(st.sampled_from(list(Injection)), unique=True, min_size=1).map(tuple)
HELD = st.lists(
    st.builds(
        DeviceId,
        uuid=st.sampled_from([A, B]),
        strategy=st.just(Strategy.TIME_SLICING),
        replica=st.integers(0, 9),
        limit_mib=st.none() | st.integers(1, 10**6),
    ),
    min_size=1,
    max_size=6,
)


@given(ways=WAYS, held=HELD, specs=st.booleans(), seed=st.randoms(use_true_random=False))
def test_the_same_ids_under_the_same_facts_get_the_same_answer(
    ways: tuple[Injection, ...], held: list[DeviceId], specs: bool, seed: random.Random
) -> None:
    """The kubelet replays answers for ever and asks again in any order (kubelet-contract §7)."""
    node = with_slice_specs(facts(*ways)) if specs else facts(*ways)
    first = container_edits(make_grant(held, node.devices), node, ())
    again = [*held, *held]
    seed.shuffle(again)
    assert container_edits(make_grant(again, node.devices), node, ()) == first


@given(ways=WAYS, held=HELD)
def test_every_answer_passes_the_kubelet_and_the_runtime(ways: tuple[Injection, ...], held: list[DeviceId]) -> None:
    """Contract §19 row 35: absolute paths, permissions of rwm and never empty, one value a name."""
    node = facts(*ways, opt_ins=EVERYTHING)
    given = container_edits(make_grant(held, node.devices), node, ())
    assert all(mount.container_path.startswith("/") and mount.host_path.startswith("/") for mount in given.mounts)
    assert all(node.permissions and not set(node.permissions) - set("rwm") for node in given.device_nodes)
    for keys in (
        [name for name, _ in given.env],
        [mount.container_path for mount in given.mounts],
        [node.container_path for node in given.device_nodes],
        given.cdi_names,
    ):
        assert len(set(keys)) == len(keys)
    assert list(given.env) == sorted(given.env)
