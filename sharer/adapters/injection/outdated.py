"""Whether the driver's CDI spec still says what is true of this node.

A spec is written once, and then the node changes: the driver is upgraded, a GPU is added, device numbers move, a module
is loaded or a MIG device made only afterwards. A container runtime notices nothing of it and gives what is written:
another GPU, the number of some other driver's device, a library that is gone (which is the end of a pod that is not to
be restarted: runtime-facts §1.15, §1.20). So a device whose spec is out of date is given to nobody until it is written
again. Only what is certain counts: what a spec leaves out, or we cannot see, is no evidence.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # imported with the first spec: see `spec_dirs`
    from sharer.adapters.injection.spec_format import SpecEdits, SpecNode

_GPU = re.compile(r"/dev/nvidia([0-9]+)")
_LIBRARY = re.compile(r".*/libcuda\.so\.([0-9]{3,}\.[0-9.]*[0-9])")  # a Jetson's ends in .1.1, which is no driver's


def outdated(
    edits: Sequence[SpecEdits],
    *,
    minor_number: int | None,
    needed: Sequence[str],
    driver_version: str | None,
    number_of: Callable[[str], tuple[int, int] | None],
) -> str | None:
    """What a container would get wrong by these edits, which are those of one device; None: nothing that shows.

    `minor_number` of its physical GPU. `needed`: the paths of other device nodes that are there, and without which
    CUDA finds no such device. `number_of` tells the major and minor number that a path has now; None: not known.
    """
    nodes = [node for one in edits for node in one.device_nodes or ()]
    libraries = [mount.host_path for one in edits for mount in one.mounts or ()]
    found = [
        *_other_gpus(nodes, minor_number),
        *_missing(nodes, minor_number, needed),
        *_other_numbers(nodes, number_of),
        *_other_driver(libraries, driver_version),
    ]
    return "; ".join(found) or None


def _gpus(nodes: Sequence[SpecNode]) -> set[int]:
    return {int(found[1]) for node in nodes if (found := _GPU.fullmatch(node.path))}


def _other_gpus(nodes: Sequence[SpecNode], minor_number: int | None) -> Iterator[str]:
    others = sorted(_gpus(nodes) - {minor_number})
    if minor_number is not None and others:
        given = ", ".join(f"/dev/nvidia{other}" for other in others)
        yield f"gives {given}, and its GPU is /dev/nvidia{minor_number}"


def _missing(nodes: Sequence[SpecNode], minor_number: int | None, needed: Sequence[str]) -> Iterator[str]:
    if minor_number not in _gpus(nodes):
        return  # whoever gives the GPU itself may give these too
    given = {node.path for node in nodes}
    if missing := [path for path in needed if path not in given]:
        yield f"does not give {', '.join(missing)}, which CUDA needs"


def _other_numbers(nodes: Sequence[SpecNode], number_of: Callable[[str], tuple[int, int] | None]) -> Iterator[str]:
    for node in nodes:
        path, written = node.host_path or node.path, (node.major, node.minor)
        now = number_of(path) if node.major else None
        if now is not None and now != written:
            yield f"makes {node.path} the device {written[0]}:{written[1]}, and {path} is {now[0]}:{now[1]}"


def _other_driver(libraries: Sequence[str], driver_version: str | None) -> Iterator[str]:
    versions = sorted({found[1] for path in libraries if (found := _LIBRARY.fullmatch(path))})
    if driver_version is not None and versions and driver_version not in versions:
        yield f"mounts the libraries of driver {', '.join(versions)}, and {driver_version} is loaded"
