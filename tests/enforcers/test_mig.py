"""A MIG device is its own limit."""

from __future__ import annotations

from sharer.core.device_id import DeviceId
from sharer.core.edits import DeviceFacts, Injection, NodeFacts
from sharer.core.grant import make_grant
from sharer.core.injection import container_edits
from sharer.enforcers import ENFORCERS

MIG = "MIG-bbbbbbbb-0000-0000-0000-000000000001"


def test_a_mig_slice_brings_its_device_and_nothing_that_would_limit_it() -> None:
    """NVML rejects memory limits on MIG handles, and MPS is not offered there."""
    node = NodeFacts(
        injection=(Injection.CDI,), devices={MIG: DeviceFacts(cdi_name=f"nvidia.com/gpu={MIG}", slice_spec=True)}
    )
    given = container_edits(make_grant([DeviceId.parse(f"{MIG}::mig-0")]), node, ENFORCERS)
    assert given.cdi_names == (f"nvidia.com/gpu={MIG}", f"sharer.dev/slice={MIG}::mig-0")
    assert (given.env, given.mounts, given.device_nodes) == ((), (), ())
