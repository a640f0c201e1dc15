"""The facts of a node: which way its GPUs go into containers, which devices can go, and why others cannot."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from sharer.core.device_id import DeviceId
from sharer.core.edits import Injection, NodeFacts, OptIns
from sharer.core.grant import make_grant
from sharer.core.injection import container_edits
from sharer.enforcers import ENFORCERS
from tests.adapters.injection.hosts import A, B, Host, spec_text, two_gpus
from tests.core.builders import gpu, mig, node

FALLBACK = (Injection.VOLUME_MOUNTS, Injection.DEVICE_NODES)


def unusable(facts: NodeFacts, uuid: str = A) -> str:
    return facts.devices[uuid].unusable or ""


# ---- auto


def test_auto_is_cdi_where_the_driver_s_spec_names_the_gpus(host: Host) -> None:
    host.write_driver_spec(A, B)
    facts = host.facts().read(two_gpus())
    assert facts.injection == (Injection.CDI,)
    assert facts.devices[A].cdi_name == f"nvidia.com/gpu={A}"
    assert unusable(facts) == ""
    assert "not verified" in facts.injection_reason


def test_auto_finds_specs_in_the_host_s_var_run_through_its_link_to_run(host: Host) -> None:
    host.write_driver_spec(A, B, directory=host.run_cdi)
    assert host.facts().read(two_gpus()).injection == (Injection.CDI,)


def test_auto_is_volume_mounts_and_device_nodes_where_no_spec_does_and_says_why(host: Host) -> None:
    facts = host.facts().read(two_gpus())
    assert facts.injection == FALLBACK
    assert f"no CDI spec in {host.etc_cdi}, {host.run_cdi} names nvidia.com/gpu={A}" in facts.injection_reason
    assert unusable(facts) == ""


def test_auto_says_which_refused_file_kept_it_from_cdi(host: Host) -> None:
    host.write_driver_spec(A, B).write_text(spec_text(A, B, version="1.1.0"))
    facts = host.facts().read(two_gpus())
    assert facts.injection == FALLBACK
    assert "nvidia.yaml is refused: cdiVersion '1.1.0' is not one of" in facts.injection_reason


def test_one_device_that_the_spec_lost_makes_that_device_unusable_not_the_node_another(host: Host) -> None:
    host.write_driver_spec(A)
    facts = host.facts().read(two_gpus())
    assert facts.injection == (Injection.CDI,)
    assert unusable(facts, A) == ""
    assert f"those of its kind are called {A}; write the spec again" in unusable(facts, B)


def test_auto_moves_to_cdi_when_the_spec_comes_late(host: Host) -> None:
    reader = host.facts()
    assert reader.read(two_gpus()).injection == FALLBACK
    host.write_driver_spec(A, B)
    assert reader.read(two_gpus()).injection == (Injection.CDI,)


def test_auto_never_moves_back_while_a_spec_is_being_rewritten(host: Host) -> None:
    reader = host.facts()
    path = host.write_driver_spec(A, B)
    reader.read(two_gpus())
    path.write_text("")
    facts = reader.read(two_gpus())
    assert facts.injection == (Injection.CDI,)
    assert "nvidia.yaml is refused" in unusable(facts)
    host.write_driver_spec(A, B)
    assert unusable(reader.read(two_gpus())) == ""


def test_auto_waits_for_a_gpu_before_it_settles(host: Host) -> None:
    host.write_driver_spec(A, B)
    reader = host.facts()
    assert reader.read(node()).injection_reason.startswith("auto: no GPU is known")
    assert reader.read(two_gpus()).injection == (Injection.CDI,)


def test_a_lost_gpu_s_name_does_not_make_a_node_a_cdi_node(host: Host) -> None:
    host.write_driver_spec(A)
    inventory = node(replace(gpu(0), lost="no longer listed by the driver"), gpu(1))
    assert host.facts().read(inventory).injection == FALLBACK


def test_mig_devices_are_named_by_their_own_uuids(host: Host) -> None:
    instance = mig(1, "1g.10gb")
    host.write_driver_spec(instance.uuid)
    facts = host.facts().read(node(gpu(0, mig_enabled=True, mig_devices=(instance,))))
    assert facts.injection == (Injection.CDI,)
    assert facts.devices[instance.uuid].cdi_name == f"nvidia.com/gpu={instance.uuid}"


# ---- cdi


def test_a_cdi_node_does_not_look_for_device_nodes_that_its_specs_do_not_need(host: Host) -> None:
    host.write_driver_spec(A, B)
    host.remove_node("nvidia-modeset")
    assert unusable(host.facts(Injection.CDI).read(two_gpus())) == ""


def test_a_node_that_the_spec_needs_and_that_is_gone_makes_its_device_unusable(host: Host) -> None:
    """The runtime would retry for ever (runtime-facts §1.14)."""
    host.write_driver_spec(A, B)
    host.remove_node("nvidia1")
    facts = host.facts(Injection.CDI).read(two_gpus())
    assert unusable(facts, A) == ""
    assert f"the CDI spec of nvidia.com/gpu={B} needs device node {host.root}/dev/nvidia1" in unusable(facts, B)
    assert facts.devices[B].cdi_name is None


def test_a_node_outside_dev_is_not_looked_for_since_it_may_be_out_of_our_sight(host: Host) -> None:
    paths = ("/dev/nvidia0", "/dev/nvidiactl", "/dev/nvidia-uvm")
    edits = {"deviceNodes": [{"path": path, "hostPath": f"/run/nvidia/driver{path}"} for path in paths]}
    (host.etc_cdi / "nvidia.json").write_text(spec_text(A, B, edits=edits))
    assert unusable(host.facts(Injection.CDI).read(two_gpus())) == ""


def test_the_kind_can_be_another_vendor_s_name_for_the_same_gpus(host: Host) -> None:
    (host.etc_cdi / "x.json").write_text(spec_text(A, B, kind="k8s.device-plugin.nvidia.com/gpu"))
    facts = host.facts(cdi_kind="k8s.device-plugin.nvidia.com/gpu").read(two_gpus())
    assert facts.devices[A].cdi_name == f"k8s.device-plugin.nvidia.com/gpu={A}"
    assert facts.injection == (Injection.CDI,)


def test_the_directories_can_be_others(host: Host, tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    mine.mkdir()
    host.write_driver_spec(A, B, directory=mine)
    facts = host.facts(cdi_dirs=[mine]).read(two_gpus())
    assert facts.injection == (Injection.CDI,)
    host.write_driver_spec(A, B)
    assert str(host.etc_cdi) not in host.facts(cdi_dirs=[tmp_path / "none"]).read(two_gpus()).injection_reason


ALL = OptIns(imex_channels=(0,), gds=True, mofed=True, gdrcopy=True)


def test_an_opt_in_whose_cdi_device_does_not_resolve_makes_the_gpus_unusable(host: Host) -> None:
    host.write_driver_spec(A, B)
    reader = host.facts(Injection.CDI, opt_ins=ALL)
    reason = unusable(reader.read(two_gpus()))
    for name in ("imex-channel=0", "gds=all", "mofed=all", "gdrcopy=all"):
        assert f"names nvidia.com/{name}" in reason
    for kind, name in (("imex-channel", "0"), ("gds", "all"), ("mofed", "all"), ("gdrcopy", "all")):
        (host.etc_cdi / f"{kind}.json").write_text(spec_text(name, kind=f"nvidia.com/{kind}"))
    assert unusable(reader.read(two_gpus())) == ""


# ---- combinations and warnings


def test_a_combination_has_the_conditions_of_all_its_ways(host: Host) -> None:
    host.remove_node("nvidia0")
    facts = host.facts(Injection.CDI, Injection.DEVICE_NODES).read(two_gpus())
    assert "dev/nvidia0" in unusable(facts)
    assert "no CDI spec" in unusable(facts)
    assert facts.injection == (Injection.CDI, Injection.DEVICE_NODES)


def test_envvar_is_used_on_request_only_and_with_a_warning(host: Host) -> None:
    facts = host.facts(Injection.ENVVAR).read(two_gpus())
    assert facts.injection_reason == "set by --injection"
    assert "a pod can set NVIDIA_VISIBLE_DEVICES itself" in facts.warnings[0]
    assert unusable(facts) == ""


# ---- repeated


def test_while_nothing_changes_the_facts_are_the_same_object(host: Host) -> None:
    host.write_driver_spec(A, B)
    reader = host.facts()
    assert reader.read(two_gpus()) is reader.read(two_gpus())


def test_a_new_order_of_devices_is_a_change(host: Host) -> None:
    reader = host.facts(Injection.ENVVAR)
    first = reader.read(two_gpus())
    assert list(reader.read(node(gpu(1), gpu(0))).devices) == [B, A] != list(first.devices)


@pytest.mark.parametrize("ways", [(way,) for way in Injection] + [FALLBACK, (Injection.CDI, Injection.ENVVAR), ()])
def test_everything_an_answer_names_is_there_at_that_moment(host: Host, ways: tuple[Injection, ...]) -> None:
    """Contract §19 row 35: host paths exist, CDI names resolve."""
    host.write_driver_spec(A, B)
    reader = host.facts(*ways, enforcers=ENFORCERS)
    held = [DeviceId.parse(f"{A}::ts-0-1024")]
    facts = reader.write(held, reader.read(two_gpus()))
    given = container_edits(make_grant(held, facts.devices), facts, ENFORCERS)
    assert given.env or given.cdi_names
    assert {mount.host_path for mount in given.mounts} <= {"/dev/null"}
    for one in given.device_nodes:
        assert (host.root / one.host_path.lstrip("/")).is_char_device()
    texts = [path.read_text() for path in (*host.etc_cdi.iterdir(), *host.run_cdi.iterdir())]
    for name in given.cdi_names:
        assert any(name.partition("=")[2] in text for text in texts)
