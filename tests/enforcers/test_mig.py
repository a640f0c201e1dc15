"""A MIG device is all that holds its container."""

from __future__ import annotations

import pytest

from sharer.core.device_id import DeviceId
from sharer.core.edits import DeviceFacts, Injection, NodeFacts
from sharer.core.grant import make_grant
from sharer.core.holders.evidence import ProcessReading
from sharer.core.injection import container_edits
from sharer.core.limits.limits import MemoryBound, Tenant
from sharer.core.limits.usage import Usage
from sharer.core.policy.enforcers import Choice, Promise
from sharer.core.policy.model import MemoryPolicy
from sharer.core.quantities import GIB
from sharer.core.slices.cut import Target
from sharer.enforcers import ENFORCERS
from sharer.enforcers.mig import MigEnforcer
from tests.core.builders import gpu, mig, node
from tests.enforcers.out_of_reach import NOTHING

MIG = mig(1, "1g.10gb").uuid
ENFORCER = MigEnforcer(NOTHING)


def test_a_container_with_a_mig_device_is_given_the_device_and_no_limit_besides() -> None:
    facts = NodeFacts(injection=(Injection.CDI,), devices={MIG: DeviceFacts(cdi_name=f"nvidia.com/gpu={MIG}")})
    given = container_edits(make_grant([DeviceId.parse(f"{MIG}::mig-0")]), facts, ENFORCERS)
    assert given.cdi_names == (f"nvidia.com/gpu={MIG}",)
    assert [name for name, _ in given.env] == ["SHARER_DEVICE_IDS", "SHARER_GPU_UUIDS", "SHARER_STRATEGY"]


@pytest.mark.parametrize(
    ("target", "why"),
    [
        (Target(gpu=gpu(0), mig=None), "it is no MIG device"),
        (Target(gpu=gpu(0, mig_enabled=True), mig=None), "it is no MIG device"),
        (Target(gpu=gpu(0), mig=mig(1, "1g.10gb", lost="deleted")), "the MIG device is gone: deleted"),
        (Target(gpu=gpu(0, lost="off the bus"), mig=mig(1, "1g.10gb")), "the MIG device is gone: off the bus"),
        (Target(gpu=gpu(0), mig=mig(1, None, memory_mib=None)), "the driver does not say how much memory it has"),
        (Target(gpu=gpu(0), mig=mig(1, "1g.10gb+me")), None),
    ],
)
def test_an_instance_holds_if_it_exists_and_its_size_is_known(target: Target, why: str | None) -> None:
    assert ENFORCER.available(target) == why


def test_a_container_is_held_as_long_as_it_uses_no_other_device() -> None:
    inventory = node(gpu(0, mig_enabled=True, mig_devices=(mig(1, "1g.10gb"),)), gpu(1))
    bound = MemoryBound(uuid=MIG, at_least_bytes=GIB, at_most_bytes=GIB, policy=MemoryPolicy(), choice=Choice(by="mig"))
    main = Tenant(uid="p", container="main", container_id="1" * 64, held=frozenset({MIG}), memory=(bound,))
    pod = Tenant(uid="p", container=None, memory=(bound,))
    lists = ProcessReading(asked=frozenset({MIG, gpu(1).uuid}))
    key = (main.key, Promise.MEMORY, MIG)
    assert ENFORCER.verify([pod, main], Usage(lists, inventory))[key].problem is None
    unseen = ENFORCER.verify([pod, main], Usage(None, inventory))
    assert set(unseen) == {key}
    assert unseen[key].problem is not None
    assert (ENFORCER.apply([main]), ENFORCER.release([main])) == ({}, None)
