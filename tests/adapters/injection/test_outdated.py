"""A CDI spec that was true when it was written and is not any more: its devices are given to nobody until it is again.

A container runtime looks at names only. What follows from an old spec is seen in the container, or not even there.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from sharer.core.edits import Injection
from sharer.core.inventory import Inventory
from tests.adapters.injection.hosts import A, B, Host, spec_text, two_gpus
from tests.core.builders import gpu, mig, node

CONTROL: tuple[dict[str, object], ...] = ({"path": "/dev/nvidiactl"}, {"path": "/dev/nvidia-uvm"})
OF_A: dict[str, object] = {"path": "/dev/nvidia0"}
INSTANCE = mig(1, "1g.10gb")  # GPU instance 2, compute instance 0
WRITE_ANEW = "write the spec again with nvidia-ctk cdi generate"


def reason(
    host: Host,
    nodes: Sequence[dict[str, object]],
    *,
    mounts: Sequence[str] = (),
    uuid: str = A,
    inventory: Inventory | None = None,
    ways: Sequence[Injection] = (Injection.CDI,),
) -> str:
    """Why a device of which the driver's spec says this cannot be given to a container; empty: it can."""
    mounted = [{"hostPath": path, "containerPath": path, "options": ["ro", "bind"]} for path in mounts]
    text = spec_text(uuid, edits={"deviceNodes": list(nodes), "mounts": mounted})
    (host.etc_cdi / "nvidia.json").write_text(text)
    facts = host.facts(*ways).read(two_gpus() if inventory is None else inventory)
    return facts.devices[uuid].unusable or ""


def test_a_spec_that_gives_another_gpu_s_node_is_not_used(host: Host) -> None:
    """Reported of other systems: GPUs were numbered anew after a card had gone or come, and the old spec was still
    there, so that a container had the GPU of another one.
    """
    said = reason(host, [{"path": "/dev/nvidia1"}, *CONTROL])
    assert f"the CDI spec of nvidia.com/gpu={A} is out of date: it gives /dev/nvidia1, and its GPU is" in said
    assert said.endswith(f"/dev/nvidia0; {WRITE_ANEW}")
    assert reason(host, [OF_A, *CONTROL]) == ""


def test_a_spec_that_gives_another_gpu_s_node_beside_the_right_one_is_not_used(host: Host) -> None:
    """Who holds one GPU would have two."""
    assert "it gives /dev/nvidia1, and its GPU is /dev/nvidia0" in reason(host, [OF_A, {"path": "/dev/nvidia1"}])


def test_a_number_that_is_written_down_has_to_be_the_node_s_number_now(host: Host) -> None:
    """Reported of other systems: the kernel gave nvidia-uvm another major number after an update of the driver. The
    runtime makes a node with a number as it is written, so CUDA opened another driver's device and found no GPU.
    """
    number = os.stat(host.root / "dev/nvidia-uvm").st_rdev
    now = os.major(number), os.minor(number)
    old = {"path": "/dev/nvidia-uvm", "type": "c", "major": 510, "minor": 0}
    said = reason(host, [OF_A, CONTROL[0], old])
    assert f"it makes /dev/nvidia-uvm the device 510:0, and /dev/nvidia-uvm is {now[0]}:{now[1]}" in said
    assert "510:0" in reason(host, [OF_A, CONTROL[0], {**old, "type": ""}])  # looked at, and the number stays
    assert reason(host, [OF_A, CONTROL[0], {**old, "major": now[0], "minor": now[1]}]) == ""


def test_a_number_of_a_node_that_is_out_of_our_sight_is_believed(host: Host) -> None:
    far = {"path": "/dev/nvidia-uvm", "hostPath": "/run/nvidia/driver/dev/nvidia-uvm", "type": "c", "major": 510}
    assert reason(host, [OF_A, CONTROL[0], far]) == ""


def test_a_spec_that_was_written_before_a_module_was_loaded_is_not_used(host: Host) -> None:
    """Neighbour of P17. Reported of NVIDIA's toolkit: nvidia-uvm was loaded after the spec had been written at boot, so
    containers had a GPU that nvidia-smi shows and CUDA cannot use.
    """
    said = reason(host, [OF_A, CONTROL[0]])
    assert "it does not give /dev/nvidia-uvm, which CUDA needs" in said


def test_a_node_that_this_host_does_not_have_is_not_missed_in_a_spec(host: Host) -> None:
    host.remove_node("nvidia-uvm")
    assert reason(host, [OF_A, CONTROL[0]]) == ""


def test_what_is_given_as_device_nodes_need_not_be_in_the_spec(host: Host) -> None:
    assert reason(host, [OF_A], ways=(Injection.CDI, Injection.DEVICE_NODES)) == ""


def test_a_spec_without_the_two_nodes_of_a_mig_device_is_not_used(host: Host) -> None:
    """Neighbour of P19. Reported of NVIDIA's DRA driver: what was written before these nodes were made gives the whole
    GPU's node alone, which is of no use to the container.
    """
    caps = give_access(host)
    inventory = node(gpu(0, mig_enabled=True, mig_devices=(INSTANCE,)))
    said = reason(host, [OF_A, *CONTROL], uuid=INSTANCE.uuid, inventory=inventory)
    assert f"it does not give {', '.join(caps)}, which CUDA needs" in said
    access: list[dict[str, object]] = [{"path": path} for path in caps]
    assert reason(host, [OF_A, *CONTROL, *access], uuid=INSTANCE.uuid, inventory=inventory) == ""


def give_access(host: Host) -> list[str]:
    """The files and nodes that the driver makes for a MIG device. Returns the nodes' paths."""
    instance = host.root / "proc/driver/nvidia/capabilities/gpu0/mig/gi2"
    for minor, access in ((66, instance / "access"), (67, instance / "ci0/access")):
        access.parent.mkdir(parents=True, exist_ok=True)
        access.write_text(f"DeviceFileMinor: {minor}\nDeviceFileMode: 292\n")
        host.make_node(f"nvidia-caps/nvidia-cap{minor}")
    return ["/dev/nvidia-caps/nvidia-cap66", "/dev/nvidia-caps/nvidia-cap67"]


def test_a_spec_with_the_libraries_of_the_driver_before_is_not_used(host: Host) -> None:
    """Neighbour of P17. Reported of NVIDIA's toolkit again and again: after an upgrade every container failed, for the
    old version's files are gone. A pod that is not to be restarted ends of that (runtime-facts §1.20).
    """
    folder = "/usr/lib/x86_64-linux-gnu"
    said = reason(host, [OF_A, *CONTROL], mounts=[f"{folder}/libcuda.so.535.129.03"])
    assert "it mounts the libraries of driver 535.129.03, and 580.95.05 is loaded" in said
    assert reason(host, [OF_A, *CONTROL], mounts=[f"{folder}/libcuda.so.580.95.05"]) == ""
    both = [f"{folder}/libcuda.so.580.95.05", "/usr/lib/i386-linux-gnu/libcuda.so.580.95.05"]
    assert reason(host, [OF_A, *CONTROL], mounts=both) == ""


@pytest.mark.parametrize(
    "path",
    [
        "/usr/lib/aarch64-linux-gnu/nvidia/libcuda.so.1.1",
        "/usr/lib/wsl/lib/libcuda.so.1",
        "/usr/lib/libcudart.so.535.1",
        "/usr/bin/nvidia-smi",
    ],
)
def test_a_library_without_a_driver_s_version_says_nothing_of_it(host: Host, path: str) -> None:
    assert reason(host, [OF_A, *CONTROL], mounts=[path]) == ""


def test_of_a_driver_whose_version_is_unknown_every_library_is_believed(host: Host) -> None:
    inventory = Inventory(driver_version=None, gpus=two_gpus().gpus)
    assert reason(host, [OF_A, *CONTROL], mounts=["/usr/lib/libcuda.so.535.129.03"], inventory=inventory) == ""


def test_a_device_is_used_again_as_soon_as_its_spec_is_written_anew(host: Host, tmp_path: Path) -> None:
    reader = host.facts()
    host.write_driver_spec(B, A)  # each has the other's node
    facts = reader.read(two_gpus())
    assert facts.injection == (Injection.CDI,)
    assert {uuid: facts.devices[uuid].cdi_name for uuid in (A, B)} == {A: None, B: None}
    host.write_driver_spec(A, B)
    facts = reader.read(two_gpus())
    assert {uuid: facts.devices[uuid].unusable for uuid in (A, B)} == {A: None, B: None}
