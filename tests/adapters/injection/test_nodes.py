"""Device nodes: what a container needs of /dev, and what is missing there."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from sharer.adapters.injection import HostPaths, InjectionFacts
from sharer.core.edits import Injection, NodeFacts, OptIns
from tests.adapters.injection.hosts import CONTROL_NODES, A, B, Host, two_gpus
from tests.core.builders import gpu, mig, node

MIG = mig(1, "1g.10gb")  # GPU instance 2, compute instance 0


def read(host: Host, opt_ins: OptIns | None = None) -> NodeFacts:
    return host.facts(Injection.DEVICE_NODES, opt_ins=opt_ins).read(two_gpus())


def container_paths(facts: NodeFacts) -> list[str]:
    return [node.container_path for node in facts.shared_nodes]


def test_a_gpu_s_node_has_its_minor_number_and_the_host_s_own_path(host: Host) -> None:
    """Not the path at which a pod sees the host: the container runtime does not live in our pod."""
    (one,) = read(host).devices[B].nodes
    assert (one.container_path, one.host_path, one.permissions) == ("/dev/nvidia1", "/dev/nvidia1", "rw")


def test_a_dev_that_is_mounted_beside_the_host_root_has_the_host_s_paths_too(host: Host) -> None:
    paths = HostPaths(host_root=Path("/nowhere"), dev_root=host.root / "dev")
    (one,) = InjectionFacts(paths, (Injection.DEVICE_NODES,)).read(two_gpus()).devices[A].nodes
    assert one.host_path == str(host.root / "dev/nvidia0")


def test_every_container_gets_the_control_nodes_that_exist(host: Host) -> None:
    assert container_paths(read(host)) == sorted(f"/dev/{name}" for name in CONTROL_NODES)
    host.remove_node("nvidia-modeset")
    facts = read(host)
    assert "/dev/nvidia-modeset" not in container_paths(facts)
    assert facts.devices[A].unusable is None


@pytest.mark.parametrize("name", ["nvidiactl", "nvidia-uvm"])
def test_without_a_node_that_cuda_opens_no_gpu_is_usable(host: Host, name: str) -> None:
    """The runtime would retry a container with a missing node for ever (runtime-facts §2.21)."""
    host.remove_node(name)
    facts = read(host)
    for uuid in (A, B):
        assert f"dev/{name}: No such file or directory; nvidia-modprobe" in (facts.devices[uuid].unusable or "")


def test_a_missing_node_makes_its_own_gpu_unusable_only(host: Host) -> None:
    host.remove_node("nvidia0")
    facts = read(host)
    assert "dev/nvidia0: No such file or directory" in (facts.devices[A].unusable or "")
    assert facts.devices[B].unusable is None


def test_a_file_where_a_node_belongs_is_not_taken_for_one(host: Host) -> None:
    host.remove_node("nvidia0")
    (host.root / "dev/nvidia0").write_text("")
    assert "is not a character device" in (read(host).devices[A].unusable or "")


def test_a_node_that_comes_late_makes_its_gpu_usable(host: Host) -> None:
    host.remove_node("nvidia0")
    reader = host.facts(Injection.DEVICE_NODES)
    assert reader.read(two_gpus()).devices[A].unusable
    host.make_node("nvidia0")
    assert reader.read(two_gpus()).devices[A].unusable is None


def test_a_gpu_without_a_minor_number_is_unusable_with_the_reason(host: Host) -> None:
    inventory = node(replace(gpu(0), minor_number=None))
    facts = host.facts(Injection.DEVICE_NODES).read(inventory)
    assert facts.devices[A].unusable == "the driver does not report its minor number, so its device node is unknown"


def test_without_device_nodes_nobody_looks_at_dev(host: Host) -> None:
    host.remove_node("nvidia0")
    facts = host.facts(Injection.VOLUME_MOUNTS).read(two_gpus())
    assert facts.devices[A].unusable is None
    assert (facts.shared_nodes, facts.devices[A].nodes) == ((), ())


# ---- MIG


def with_mig_access(host: Host) -> None:
    for path, minor in (("gi2", 12), ("gi2/ci0", 13)):
        folder = host.root / "proc/driver/nvidia/capabilities/gpu0/mig" / path
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "access").write_text(f"DeviceFileMinor: {minor}\nDeviceFileMode: 292\nDeviceFileModify: 1\n")
        host.make_node(f"nvidia-caps/nvidia-cap{minor}")


def read_mig(host: Host) -> NodeFacts:
    inventory = node(gpu(0, mig_enabled=True, mig_devices=(MIG,)))
    return host.facts(Injection.DEVICE_NODES).read(inventory)


def test_a_mig_device_needs_its_gpu_and_the_two_nodes_that_give_access_to_its_instances(host: Host) -> None:
    with_mig_access(host)
    device = read_mig(host).devices[MIG.uuid]
    assert device.unusable is None
    assert [one.container_path for one in device.nodes] == [
        "/dev/nvidia0",
        "/dev/nvidia-caps/nvidia-cap12",
        "/dev/nvidia-caps/nvidia-cap13",
    ]


def test_a_mig_device_without_its_capability_node_is_unusable_with_the_way_to_make_it(host: Host) -> None:
    with_mig_access(host)
    host.remove_node("nvidia-caps/nvidia-cap13")
    reason = read_mig(host).devices[MIG.uuid].unusable or ""
    assert "nvidia-cap13: No such file or directory; nvidia-modprobe -f " in reason


def test_a_mig_device_that_the_kernel_does_not_know_is_unusable(host: Host) -> None:
    assert "does not name a device file" in (read_mig(host).devices[MIG.uuid].unusable or "")


def test_a_mig_device_without_instance_numbers_is_unusable(host: Host) -> None:
    inventory = node(gpu(0, mig_enabled=True, mig_devices=(replace(MIG, gpu_instance_id=None),)))
    facts = host.facts(Injection.DEVICE_NODES).read(inventory)
    assert "does not report its instance numbers" in (facts.devices[MIG.uuid].unusable or "")


# ---- opt-ins

OPT_INS = [
    (OptIns(imex_channels=(0,)), "--imex-channels", ["nvidia-caps-imex-channels/channel0"]),
    (OptIns(gds=True), "--gds", ["nvidia-fs0", "nvidia-fs1"]),
    (OptIns(gdrcopy=True), "--gdrcopy", ["gdrdrv"]),
    (OptIns(mofed=True), "--mofed", ["infiniband/rdma_cm", "infiniband/uverbs0", "infiniband/uverbs1"]),
]


@pytest.mark.parametrize(("opt_ins", "flag", "names"), OPT_INS)
def test_an_opt_in_brings_the_nodes_that_nvidia_s_toolkit_would(
    host: Host, opt_ins: OptIns, flag: str, names: list[str]
) -> None:
    for name in names:
        host.make_node(name)
    facts = read(host, opt_ins)
    assert {f"/dev/{name}" for name in names} == set(container_paths(facts)) - {
        f"/dev/{name}" for name in CONTROL_NODES
    }
    assert facts.devices[A].unusable is None


def test_a_file_that_only_has_the_name_of_a_node_is_not_handed_over(host: Host) -> None:
    host.make_node("nvidia-fs0")
    (host.root / "dev/nvidia-fs.log").write_text("")
    assert "/dev/nvidia-fs.log" not in container_paths(read(host, OptIns(gds=True)))


@pytest.mark.parametrize(("opt_ins", "flag", "names"), OPT_INS)
def test_an_opt_in_that_cannot_be_kept_makes_the_gpus_unusable_rather_than_being_dropped(
    host: Host, opt_ins: OptIns, flag: str, names: list[str]
) -> None:
    reason = read(host, opt_ins).devices[A].unusable or ""
    assert f"{flag} asks for " in reason
    assert "or drop the flag" in reason
