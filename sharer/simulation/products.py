"""Real GPUs by short names, for simulated nodes: `8xA100-80GB,2xL4`.

Memory is what the driver reports as the total, in MiB as nvidia-smi prints it; other driver versions differ by some
MiB. The MIG profiles are those of NVIDIA's MIG user guide, with the memory that `nvidia-smi mig -lgip` shows. A GPU may
be cut: `1xA100-80GB:mig(3x1g.10gb,1x2g.20gb)`; `:mig()` is MIG mode without instances.
"""

from __future__ import annotations

import difflib
import re
import uuid
from collections import Counter
from dataclasses import dataclass, replace

from sharer.core.errors import InputError
from sharer.core.quantities import MIB
from sharer.simulation.hardware import SimulatedGpu, SimulatedMig

MAX_GPUS = 64  # more than any node has; the simulated PCI bus numbers end there
EXAMPLE = "8xA100-80GB,2xL4 or 1xA100-80GB:mig(3x1g.10gb,1x2g.20gb)"
_NAMESPACE = uuid.UUID(
    "6f1c2a52-5f0b-4f0e-9d53-0c6f8f2f7c11"
)  # any; makes the UUIDs of simulated GPUs the same each time
_TERM = re.compile(r"(?:([0-9]{1,6})[xX])?([A-Za-z0-9][A-Za-z0-9 .-]*?)(?::mig\(([^()]*)\))?")
_PROFILE_TERM = re.compile(r"(?:([0-9]{1,2})x)?([0-9]+g\.[0-9]+gb[a-z.+-]*)")


@dataclass(frozen=True, slots=True)
class MigProfile:
    """One way to cut a GPU: its name, and what an instance takes of the GPU."""

    name: str
    memory_mib: int
    compute_slices: int
    memory_slices: int
    most: int  # instances at a time


@dataclass(frozen=True, slots=True)
class Product:
    """A GPU that exists in real life."""

    name: str  # short: "A100-80GB"
    product: str  # as NVML reports it
    memory_mib: int | None  # None: unified memory, the driver reports none
    compute_capability: tuple[int, int]
    nvlinks: int = 0  # to the NVSwitches of its usual board
    mig_profiles: tuple[MigProfile, ...] = ()
    mig_slices: tuple[int, int] = (7, 8)  # of compute, of memory


def _seven(*memory_mib: int, names: str) -> tuple[MigProfile, ...]:
    """The profiles of a GPU with seven compute and eight memory slices, from 1g to 7g."""
    small, media, wide, two, three, four, whole = names.split()
    one_mib, two_mib, four_mib, whole_mib = memory_mib
    return (
        MigProfile(small, one_mib, 1, 1, 7),
        MigProfile(media, one_mib, 1, 1, 1),
        MigProfile(wide, two_mib, 1, 2, 4),
        MigProfile(two, two_mib, 2, 2, 3),
        MigProfile(three, four_mib, 3, 4, 2),
        MigProfile(four, four_mib, 4, 4, 1),
        MigProfile(whole, whole_mib, 7, 8, 1),
    )


_A30 = (
    MigProfile("1g.6gb", 5952, 1, 1, 4),
    MigProfile("1g.6gb+me", 5952, 1, 1, 1),
    MigProfile("2g.12gb", 11968, 2, 2, 2),
    MigProfile("2g.12gb+me", 11968, 2, 2, 1),
    MigProfile("4g.24gb", 24000, 4, 4, 1),
)
_RTX_PRO_6000 = (
    MigProfile("1g.24gb", 24192, 1, 1, 4),
    MigProfile("1g.24gb+me", 24192, 1, 1, 1),
    MigProfile("1g.24gb+gfx", 24192, 1, 1, 4),
    MigProfile("1g.24gb+me.all", 24192, 1, 1, 1),
    MigProfile("1g.24gb-me", 24192, 1, 1, 4),
    MigProfile("2g.48gb", 48512, 2, 2, 2),
    MigProfile("2g.48gb+gfx", 48512, 2, 2, 2),
    MigProfile("4g.96gb", 97280, 4, 4, 1),
    MigProfile("4g.96gb+gfx", 97280, 4, 4, 1),
)
_FORTY = _seven(4864, 9856, 19968, 40192, names="1g.5gb 1g.5gb+me 1g.10gb 2g.10gb 3g.20gb 4g.20gb 7g.40gb")
_A100_80 = _seven(9728, 19968, 40192, 80896, names="1g.10gb 1g.10gb+me 1g.20gb 2g.20gb 3g.40gb 4g.40gb 7g.80gb")
_H100_80 = _seven(9984, 20096, 40448, 81152, names="1g.10gb 1g.10gb+me 1g.20gb 2g.20gb 3g.40gb 4g.40gb 7g.80gb")
_H100_94 = _seven(11264, 23552, 47488, 95232, names="1g.12gb 1g.12gb+me 1g.24gb 2g.24gb 3g.47gb 4g.47gb 7g.94gb")
_H200 = _seven(16384, 33536, 71424, 143360, names="1g.18gb 1g.18gb+me 1g.35gb 2g.35gb 3g.71gb 4g.71gb 7g.141gb")
_B200 = _seven(21888, 45312, 91136, 182784, names="1g.23gb 1g.23gb+me 1g.45gb 2g.45gb 3g.90gb 4g.90gb 7g.180gb")
_GB200 = _seven(22656, 46848, 94208, 188928, names="1g.24gb 1g.24gb+me 1g.47gb 2g.47gb 3g.95gb 4g.95gb 7g.189gb")

PRODUCTS = (
    Product("A100-40GB", "NVIDIA A100-SXM4-40GB", 40960, (8, 0), 12, _FORTY),
    Product("A100-80GB", "NVIDIA A100-SXM4-80GB", 81920, (8, 0), 12, _A100_80),
    Product("A100-PCIE-80GB", "NVIDIA A100 80GB PCIe", 81920, (8, 0), 0, _A100_80),
    Product("A30", "NVIDIA A30", 24576, (8, 0), 0, _A30, (4, 4)),
    Product("H100-80GB", "NVIDIA H100 80GB HBM3", 81559, (9, 0), 18, _H100_80),
    Product("H100-NVL", "NVIDIA H100 NVL", 95830, (9, 0), 0, _H100_94),
    Product("H200", "NVIDIA H200", 143771, (9, 0), 18, _H200),
    Product("B200", "NVIDIA B200", 183359, (10, 0), 18, _B200),
    Product("GB200", "NVIDIA GB200", 189471, (10, 0), 18, _GB200),
    Product(
        "RTX-PRO-6000",
        "NVIDIA RTX PRO 6000 Blackwell Server Edition",
        97887,
        (12, 0),
        mig_profiles=_RTX_PRO_6000,
        mig_slices=(4, 4),
    ),
    Product("L4", "NVIDIA L4", 23034, (8, 9)),
    Product("L40S", "NVIDIA L40S", 46068, (8, 9)),
    Product("A10", "NVIDIA A10", 23028, (8, 6)),
    Product("A40", "NVIDIA A40", 46068, (8, 6)),
    Product("T4", "Tesla T4", 15360, (7, 5)),
    Product("V100-16GB", "Tesla V100-SXM2-16GB", 16384, (7, 0), 6),
    Product("V100-32GB", "Tesla V100-SXM2-32GB", 32768, (7, 0), 6),
    Product("P100", "Tesla P100-PCIE-16GB", 16384, (6, 0)),
    Product("P4", "Tesla P4", 7680, (6, 1)),
    Product("RTX-4090", "NVIDIA GeForce RTX 4090", 24564, (8, 9)),
    Product("RTX-6000-Ada", "NVIDIA RTX 6000 Ada Generation", 49140, (8, 9)),
    Product("GB10", "NVIDIA GB10", None, (12, 1)),
)


def find_product(name: str) -> Product:
    """The product with this short name, in any case. Raises InputError that lists the known ones, nearest first.

    >>> find_product("a100-80gb").product
    'NVIDIA A100-SXM4-80GB'
    """
    by_name = {product.name.lower(): product for product in PRODUCTS}
    found = by_name.get(name.lower())
    if found is not None:
        return found
    nearness = {key: difflib.SequenceMatcher(None, name.lower(), key).ratio() for key in by_name}
    known = [by_name[key].name for key in sorted(by_name, key=lambda key: (-nearness[key], key))]
    raise InputError(f"GPU {name!r} is not known. Known, the nearest first: {', '.join(known)}")


def parse_gpus(text: str, *, node: str = "node") -> tuple[SimulatedGpu, ...]:
    """The GPUs of a node such as "8xA100-80GB,2xL4". Their UUIDs follow from the node's name and their order.

    Raises InputError that says what is wrong with which part.

    >>> [gpu.product for gpu in parse_gpus("2xL4,A30:mig(4x1g.6gb)")]
    ['NVIDIA L4', 'NVIDIA L4', 'NVIDIA A30']
    >>> [mig.profile for mig in parse_gpus("A30:mig(1g.6gb+me,2g.12gb)")[0].mig_devices]
    ['1g.6gb+me', '2g.12gb']
    """
    kinds: list[tuple[Product, list[MigProfile] | None]] = []
    for part in re.split(r",(?![^()]*\))", text):
        found = _TERM.fullmatch(part.strip())
        if found is None:
            raise InputError(f"{part.strip()!r} in {text!r} is no GPU; write something like {EXAMPLE}")
        count, name, layout = found.groups()
        product = find_product(name)
        profiles = None if layout is None else _parse_layout(product, layout)
        kinds += [(product, profiles)] * int(count or "1")
    if not 1 <= len(kinds) <= MAX_GPUS:
        raise InputError(f"{text!r} has {len(kinds)} GPUs; a simulated node has 1 to {MAX_GPUS}")
    return tuple(_gpu(node, index, len(kinds), product, profiles) for index, (product, profiles) in enumerate(kinds))


def _parse_layout(product: Product, layout: str) -> list[MigProfile]:
    by_name = {profile.name: profile for profile in product.mig_profiles}
    if not by_name:
        raise InputError(f"{product.name} has no MIG mode; write {product.name} without ':mig(...)'")
    profiles: list[MigProfile] = []
    for part in (part.strip() for part in layout.split(",") if layout.strip()):
        found = _PROFILE_TERM.fullmatch(part)
        if found is None or found[2] not in by_name:
            raise InputError(f"{product.name} has no MIG profile {part!r}; it has {', '.join(by_name)}")
        profiles += [by_name[found[2]]] * int(found[1] or "1")
    for name, count in Counter(profile.name for profile in profiles).items():
        if count > by_name[name].most:
            raise InputError(f"{product.name} holds at most {by_name[name].most} MIG devices {name}, not {count}")
    compute, memory = product.mig_slices
    used = sum(profile.compute_slices for profile in profiles), sum(profile.memory_slices for profile in profiles)
    if used[0] > compute or used[1] > memory:
        raise InputError(
            f"{layout!r} does not fit on {product.name}: it takes {used[0]} of {compute} compute slices and {used[1]} "
            f"of {memory} memory slices"
        )
    return profiles


def _gpu(node: str, index: int, count: int, product: Product, layout: list[MigProfile] | None) -> SimulatedGpu:
    gpu = SimulatedGpu(
        uuid=f"GPU-{uuid.uuid5(_NAMESPACE, f'{node}/{index}')}",
        product=product.product,
        memory_bytes=None if product.memory_mib is None else product.memory_mib * MIB,
        compute_capability=product.compute_capability,
        minor_number=index,
        pci_bus_id=f"00000000:{0x10 + index:02X}:00.0",
        numa_node=0 if index < (count + 1) // 2 else 1,  # two sockets, with half of the GPUs each
        pcie_switch=index // 2,
        nvlinks=("switch",) * product.nvlinks,
        mig_enabled=layout is not None if product.mig_profiles else None,
        max_mig_devices=product.mig_slices[0],
    )
    migs = (
        SimulatedMig(
            uuid=f"MIG-{uuid.uuid5(_NAMESPACE, f'{gpu.uuid}/{place}')}",
            index=place,
            gpu_instance_id=place + 1,
            profile=profile.name,
            memory_bytes=profile.memory_mib * MIB,
            gpu_slices=profile.compute_slices,
            compute_slices=profile.compute_slices,
        )
        for place, profile in enumerate(layout or ())
    )
    return replace(gpu, mig_devices=tuple(migs))
