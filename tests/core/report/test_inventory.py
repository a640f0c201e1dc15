from __future__ import annotations

from dataclasses import replace

import pytest

from sharer.core.errors import InputError
from sharer.core.inventory import Inventory
from sharer.core.report.inventory import GpuReport, InventoryReport, inventory_from, report_inventory
from tests.core.builders import gpu, gpu_uuid, mig, node


def test_an_inventory_comes_back_from_its_report_as_it_was() -> None:
    inventory = Inventory(
        driver_version=None,
        gpus=(
            gpu(0, memory_mib=None, unknown=(("memory_bytes", "not supported"),), lost="fell off the bus"),
            gpu(1, mig_enabled=True, mig_devices=(replace(mig(3, None), unknown=(("profile", "unnamed"),)),)),
        ),
        warnings=("GPU 2 cannot be asked",),
    )
    assert inventory_from(report_inventory(inventory)) == inventory


def test_reasons_stand_under_the_name_that_the_document_gives_the_field() -> None:
    (reported,) = report_inventory(node(gpu(0, memory_mib=None, unknown=(("memory_bytes", "not supported"),)))).gpus
    assert (reported.memory_bytes, reported.unknown) == (None, {"memoryBytes": "not supported"})


def test_a_described_gpu_needs_no_more_than_uuid_and_index() -> None:
    (found,) = inventory_from(InventoryReport(gpus=(GpuReport(uuid="GPU-a", index=0),))).gpus
    assert (found.memory_bytes, found.compute_capability, found.mig_devices) == (None, None, ())


@pytest.mark.parametrize(
    ("described", "complaint"),
    [
        (GpuReport(uuid="", index=0), "gpus: the UUID '' is empty"),
        (GpuReport(uuid=gpu_uuid(0), index=0, memory_bytes=0), "gpus[1].memoryBytes: 0 is not above 0"),
        (GpuReport(uuid="GPU-b", index=0, compute_capability="8"), "gpus[1].computeCapability: '8' is not"),
        (GpuReport(uuid="GPU-b", index=0, unknown={"size": "?"}), "gpus[1].unknown: 'size' is not a field"),
        (GpuReport(uuid=gpu_uuid(0), index=1), f"gpus: the UUID {gpu_uuid(0)!r} occurs twice"),
    ],
)
def test_a_value_that_no_gpu_can_have_is_refused_with_its_path(described: GpuReport, complaint: str) -> None:
    (good,) = report_inventory(node(gpu(0))).gpus
    with pytest.raises(InputError) as refusal:
        inventory_from(InventoryReport(gpus=(good, described)))
    assert complaint in str(refusal.value)
