"""What `sharer simulate` prints, without running it."""

from __future__ import annotations

import pytest

from sharer.cli.simulate import print_slices
from sharer.simulation.story import GpuSlices, SimulationReport


@pytest.mark.parametrize(
    ("width", "missing"), [(80, ["MEMORY", "PRODUCT", "RESOURCE"]), (100, ["MEMORY", "PRODUCT"]), (None, [])]
)
def test_in_a_narrow_terminal_a_gpu_is_still_one_line_and_whole_words(
    capsys: pytest.CaptureFixture[str], width: int | None, missing: list[str]
) -> None:
    gpu = GpuSlices(
        gpu=0, product="NVIDIA A100-SXM4-80GB", uuid="GPU-1", resource="nvidia.com/gpu.shared", slices=4,
        promise_bytes=20 * 2**30, held=3, draining=3, free=0, unhealthy=1, held_by=("driver",),
        pods=("notebook", "work-4"),
    )  # fmt: skip
    print_slices(SimulationReport(policy="p", steps=(), slices=(gpu,)), width)
    _, header, line = capsys.readouterr().out.splitlines()
    assert [name for name in ("MEMORY", "PRODUCT", "RESOURCE") if name not in header] == missing
    assert line.endswith("driver   notebook work-4")
    assert width is None or max(len(header), len(line)) <= width
