"""Short names of real GPUs, and how a node of them is written."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sharer.core.errors import InputError
from sharer.core.quantities import MIB
from sharer.simulation.products import MAX_GPUS, PRODUCTS, find_product, parse_gpus


def test_a_node_is_a_list_of_counted_names() -> None:
    gpus = parse_gpus("2xA100-80GB, L4")
    assert [gpu.product for gpu in gpus] == ["NVIDIA A100-SXM4-80GB"] * 2 + ["NVIDIA L4"]
    assert [gpu.memory_bytes for gpu in gpus] == [81920 * MIB] * 2 + [23034 * MIB]
    assert [gpu.minor_number for gpu in gpus] == [0, 1, 2]


def test_every_gpu_of_a_node_is_a_different_one_and_the_same_each_time() -> None:
    gpus = parse_gpus("8xH200,8xL4")
    for field in ("uuid", "minor_number", "pci_bus_id"):
        assert len({getattr(gpu, field) for gpu in gpus}) == 16
    assert parse_gpus("8xH200,8xL4") == gpus
    assert {gpu.uuid for gpu in parse_gpus("8xH200", node="other")}.isdisjoint(gpu.uuid for gpu in gpus)


@pytest.mark.parametrize("product", PRODUCTS, ids=lambda product: product.name)
def test_every_product_is_found_by_its_name_in_any_case(product: object) -> None:
    name = product.name  # type: ignore[attr-defined]
    assert find_product(name) is find_product(name.upper()) is find_product(name.lower()) is product
    assert len(parse_gpus(f"2x{name}")) == 2


def test_an_unknown_name_lists_the_known_ones_with_the_nearest_first() -> None:
    with pytest.raises(
        InputError, match=r"GPU 'A100-80' is not known. Known, the nearest first: A100-80GB, "
    ) as caught:
        parse_gpus("4xA100-80")
    assert all(product.name in str(caught.value) for product in PRODUCTS)


@pytest.mark.parametrize(
    "text", ["", "8x", ",", "L4,", "8 x L4", "L4:mig", "L4:mig(", "-1xL4", "0xL4", "65xL4", "L4;L4"]
)
def test_what_is_no_list_of_gpus_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_gpus(text)
    assert "L4" in str(caught.value) or f"1 to {MAX_GPUS}" in str(caught.value)


def test_a_gpu_without_its_own_memory_has_none() -> None:
    assert parse_gpus("GB10")[0].memory_bytes is None


# MIG.


def test_a_gpu_can_be_cut_into_mig_devices() -> None:
    (gpu,) = parse_gpus("A100-80GB:mig(3x1g.10gb,1g.10gb+me,2g.20gb)")
    assert gpu.mig_enabled is True
    assert [mig.profile for mig in gpu.mig_devices] == ["1g.10gb"] * 3 + ["1g.10gb+me", "2g.20gb"]
    assert [mig.index for mig in gpu.mig_devices] == [0, 1, 2, 3, 4]
    assert len({mig.uuid for mig in gpu.mig_devices}) == len({mig.gpu_instance_id for mig in gpu.mig_devices}) == 5
    assert [mig.memory_bytes for mig in gpu.mig_devices] == [9728 * MIB] * 4 + [19968 * MIB]


def test_a_layout_belongs_to_each_of_its_gpus_and_to_no_other() -> None:
    gpus = parse_gpus("2xA30:mig(4x1g.6gb),A30,A30:mig(),L4")
    assert [(gpu.mig_enabled, len(gpu.mig_devices)) for gpu in gpus] == [
        (True, 4), (True, 4), (False, 0), (True, 0), (None, 0),
    ]  # fmt: skip
    assert len({mig.uuid for gpu in gpus for mig in gpu.mig_devices}) == 8


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("L4:mig(1g.10gb)", "L4 has no MIG mode"),
        ("A100-80GB:mig(1g.5gb)", "A100-80GB has no MIG profile '1g.5gb'; it has 1g.10gb, "),
        ("A100-80GB:mig(8x1g.10gb)", "at most 7 MIG devices 1g.10gb, not 8"),
        ("A100-80GB:mig(2x1g.10gb+me)", r"at most 1 MIG devices 1g.10gb\+me, not 2"),
        ("A100-80GB:mig(4g.40gb,3g.40gb,1g.10gb)", "takes 8 of 7 compute slices and 9 of 8 memory slices"),
        ("A100-80GB:mig(4x1g.20gb,1g.10gb)", "takes 5 of 7 compute slices and 9 of 8 memory slices"),
    ],
)
def test_a_layout_that_cannot_be_is_refused_with_the_reason(text: str, problem: str) -> None:
    with pytest.raises(InputError, match=problem):
        parse_gpus(text)


@pytest.mark.parametrize(
    "product", [product for product in PRODUCTS if product.mig_profiles], ids=lambda product: product.name
)
def test_as_many_instances_of_a_profile_fit_as_there_may_be(product: object) -> None:
    for profile in product.mig_profiles:  # type: ignore[attr-defined]
        (gpu,) = parse_gpus(f"{product.name}:mig({profile.most}x{profile.name})")  # type: ignore[attr-defined]
        assert len(gpu.mig_devices) == profile.most
        assert sum(mig.memory_bytes for mig in gpu.mig_devices) <= (gpu.memory_bytes or 0)


@given(st.text(alphabet="0123456789xgGbBlLaA.,-+:mig() ", max_size=40))
def test_any_text_is_a_list_of_gpus_or_an_input_error(text: str) -> None:
    with contextlib.suppress(InputError):
        assert 1 <= len(parse_gpus(text)) <= MAX_GPUS
