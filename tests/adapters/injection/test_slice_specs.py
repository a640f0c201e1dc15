"""sharer's own CDI specs: valid, in place before they are named, and never taken away from a container that has one."""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sharer.adapters.injection import InjectionFacts
from sharer.adapters.injection.facts import MAX_SLICES
from sharer.adapters.injection.spec_dirs import SpecDirs
from sharer.core.device_id import DeviceId
from sharer.core.edits import Injection, NodeFacts
from sharer.core.grant import make_grant
from sharer.core.injection import container_edits
from sharer.core.ports.injection import SliceSpecs
from sharer.enforcers import ENFORCERS
from tests.adapters.injection.hosts import A, B, Host, two_gpus
from tests.fakes.full_disk import full_disk
from tests.fakes.no_descriptor_left import no_descriptor_left


@pytest.fixture
def host(host: Host) -> Host:
    host.write_driver_spec(A, B)
    return host


def reader(host: Host) -> InjectionFacts:
    return host.facts(Injection.CDI, enforcers=ENFORCERS)


def slices(uuid: str, count: int, limit_mib: int = 1024) -> list[DeviceId]:
    return [DeviceId.parse(f"{uuid}::ts-{replica}-{limit_mib}") for replica in range(count)]


def write(specs: InjectionFacts, ids: Iterable[DeviceId]) -> NodeFacts:
    return specs.write(ids, specs.read(two_gpus()))


def spec_of(host: Host, uuid: str) -> dict[str, list[str]]:
    """Name -> variables, as a runtime would read the file."""
    spec: dict[str, Any] = json.loads((host.run_cdi / f"sharer.dev-slice_{uuid}.json").read_text())
    assert (spec["cdiVersion"], spec["kind"]) == ("0.3.0", "sharer.dev/slice")
    return {device["name"]: device["containerEdits"]["env"] for device in spec["devices"]}


def stamps(host: Host) -> dict[str, int]:
    return {path.name: path.stat().st_ino for path in host.run_cdi.iterdir()}


def test_the_reader_is_the_writer_that_the_flows_ask_for(host: Host) -> None:
    specs: SliceSpecs = reader(host)
    assert specs.write([], NodeFacts(injection=())) == NodeFacts(injection=())


def test_there_is_one_file_a_device_and_in_it_one_device_a_slice_with_its_variables(host: Host) -> None:
    write(reader(host), [*slices(A, 2), *slices(B, 1)])
    assert set(spec_of(host, B)) == {f"{B}::ts-0-1024"}
    assert spec_of(host, A) == {
        f"{A}::ts-{replica}-1024": [
            f"SHARER_DEVICE_IDS={A}::ts-{replica}-1024",
            f"SHARER_GPU_UUIDS={A}",
            f"SHARER_MEMORY_LIMIT_BYTES={A}={1024 * 2**20}",
            "SHARER_STRATEGY=time-slicing",
        ]
        for replica in range(2)
    }


def test_the_files_are_accepted_and_do_not_hide_the_driver_s(host: Host) -> None:
    """Read here as a stranger's, under another name: our own are not read back at every look."""
    write(reader(host), slices(A, 2))
    specs = SpecDirs(lambda: [host.etc_cdi, host.run_cdi])
    assert set(specs.look().nodes) == {f"nvidia.com/gpu={A}", f"nvidia.com/gpu={B}"}
    (host.run_cdi / f"sharer.dev-slice_{A}.json").rename(host.run_cdi / "any.json")
    names = specs.look()
    assert names.refused == {}
    assert set(names.nodes) == {
        f"nvidia.com/gpu={A}",
        f"nvidia.com/gpu={B}",
        f"sharer.dev/slice={A}::ts-0-1024",
        f"sharer.dev/slice={A}::ts-1-1024",
    }


def test_an_answer_names_a_slice_s_spec_from_the_moment_it_is_in_place(host: Host) -> None:
    specs = reader(host)
    before = specs.read(two_gpus())
    after = specs.write(slices(A, 1), before)
    grant = make_grant(slices(A, 1))
    assert container_edits(grant, before, ENFORCERS).cdi_names == (f"nvidia.com/gpu={A}",)
    assert container_edits(grant, after, ENFORCERS).cdi_names == (
        f"nvidia.com/gpu={A}",
        f"sharer.dev/slice={grant.ids[0]}",
    )
    assert specs.read(two_gpus()) is after, "the next look at the node says the same"


def test_a_device_without_slices_of_its_own_is_not_marked(host: Host) -> None:
    facts = write(reader(host), slices(A, 1))
    assert (facts.devices[A].slice_spec, facts.devices[B].slice_spec) == (True, False)


def test_without_cdi_nothing_is_written(host: Host) -> None:
    specs = host.facts(Injection.DEVICE_NODES)
    facts = specs.read(two_gpus())
    assert specs.write(slices(A, 1), facts) is facts
    assert stamps(host) == {}


# ---- writing only what changed


def test_nothing_is_written_again_while_nothing_changes(host: Host) -> None:
    specs = reader(host)
    first = write(specs, [*slices(A, 3), *slices(B, 3)])
    before = stamps(host)
    assert write(specs, [*slices(B, 3), *slices(A, 3)]) is first
    assert stamps(host) == before


def test_a_new_agent_finds_its_files_and_writes_nothing(host: Host) -> None:
    write(reader(host), slices(A, 3))
    before = stamps(host)
    assert write(reader(host), slices(A, 3)).devices[A].slice_spec
    assert stamps(host) == before


def test_a_change_on_one_gpu_leaves_the_other_s_file_alone(host: Host) -> None:
    specs = reader(host)
    write(specs, [*slices(A, 3), *slices(B, 3)])
    before = stamps(host)
    write(specs, [*slices(A, 4), *slices(B, 3)])
    changed = {name for name, inode in stamps(host).items() if before[name] != inode}
    assert changed == {f"sharer.dev-slice_{A}.json"}


def test_facts_that_a_slice_s_variables_rest_on_change_its_spec(host: Host) -> None:
    specs = reader(host)
    facts = write(specs, slices(A, 1))
    checked = replace(facts, devices={uuid: replace(one, driver_limit=True) for uuid, one in facts.devices.items()})
    specs.write(slices(A, 1), checked)
    (variables,) = spec_of(host, A).values()
    assert "NVIDIA_GPU_MEMORY_LIMIT=1024" in variables


def test_no_temporary_file_stays_and_none_would_be_read(host: Host) -> None:
    """A temporary name that ended in .json would be loaded, dot or not (runtime-facts §1.9)."""
    specs = reader(host)
    for count in (1, 2, 3):
        write(specs, slices(A, count))
    assert set(stamps(host)) == {f"sharer.dev-slice_{A}.json"}


# ---- kept while a container may need it


def test_slices_of_an_older_cut_stay_beside_the_new_ones(host: Host) -> None:
    """Allocate is not called again for a running pod, and a restart without its spec fails (runtime-facts §1.8)."""
    write(reader(host), slices(A, 2, limit_mib=1024))
    write(reader(host), slices(A, 1, limit_mib=2048))
    assert set(spec_of(host, A)) == {f"{A}::ts-0-1024", f"{A}::ts-1-1024", f"{A}::ts-0-2048"}


def test_a_gpu_that_has_no_slices_any_more_keeps_its_file(host: Host) -> None:
    specs = reader(host)
    write(specs, slices(A, 1))
    write(specs, slices(B, 1))
    assert set(spec_of(host, A)) == {f"{A}::ts-0-1024"}


def test_what_a_reboot_took_is_made_again_before_the_next_list(host: Host) -> None:
    """Contract §19 row 38: /run is gone after a reboot, and the kubelet still names what was in it."""
    specs = reader(host)
    write(specs, slices(A, 2))
    (host.run_cdi / f"sharer.dev-slice_{A}.json").unlink()
    assert specs.read(two_gpus()).devices[A].slice_spec is False, "it is not named while it is not there"
    assert write(specs, slices(A, 2)).devices[A].slice_spec
    assert len(spec_of(host, A)) == 2


def test_a_damaged_file_is_replaced(host: Host) -> None:
    path = host.run_cdi / f"sharer.dev-slice_{A}.json"
    path.write_text('{"cdiVersion": "0.3')
    write(reader(host), slices(A, 1))
    assert set(spec_of(host, A)) == {f"{A}::ts-0-1024"}


def test_a_file_that_somebody_changed_is_put_right(host: Host) -> None:
    specs = reader(host)
    write(specs, slices(A, 1))
    (host.run_cdi / f"sharer.dev-slice_{A}.json").write_text("{}")
    assert specs.read(two_gpus()).devices[A].slice_spec is False
    assert write(specs, slices(A, 1)).devices[A].slice_spec
    assert set(spec_of(host, A)) == {f"{A}::ts-0-1024"}


def test_only_what_is_still_needed_stays_when_the_caller_says_so(host: Host) -> None:
    """Also of earlier runs, of which nothing is known but their files."""
    write(reader(host), [*slices(A, 3), *slices(B, 1)])
    specs = reader(host)
    specs.keep_only(slices(A, 1))
    assert set(spec_of(host, A)) == {f"{A}::ts-0-1024"}
    assert set(stamps(host)) == {f"sharer.dev-slice_{A}.json"}, "a spec without devices would be refused"
    assert (host.etc_cdi / "nvidia.yaml").exists()


def test_after_that_the_rest_is_written_and_named_again_if_wanted(host: Host) -> None:
    specs = reader(host)
    write(specs, slices(A, 2))
    specs.keep_only(slices(A, 1))
    assert specs.read(two_gpus()).devices[A].slice_spec is False
    assert write(specs, slices(A, 2)).devices[A].slice_spec
    assert len(spec_of(host, A)) == 2


# ---- where, and when it cannot be


def test_the_last_directory_that_exists_is_written_to_since_its_names_win(host: Host) -> None:
    shutil.rmtree(host.run_cdi)
    facts = write(reader(host), slices(A, 1))
    assert facts.devices[A].slice_spec
    assert not host.run_cdi.exists(), "a directory of our own making might be none of the host's"
    assert (host.etc_cdi / f"sharer.dev-slice_{A}.json").exists()


def test_a_directory_that_comes_later_gets_the_files(host: Host) -> None:
    shutil.rmtree(host.run_cdi)
    specs = reader(host)
    write(specs, slices(A, 1))
    host.run_cdi.mkdir()
    assert specs.read(two_gpus()).devices[A].slice_spec is False
    write(specs, slices(A, 1))
    assert set(spec_of(host, A)) == {f"{A}::ts-0-1024"}


def unwritable(host: Host) -> Path:
    """A directory in the way of the temporary file: root may write anywhere, so rights would prove nothing."""
    obstacle = host.run_cdi / f"sharer.dev-slice_{A}.tmp"
    obstacle.mkdir()
    return obstacle


def test_a_spec_that_cannot_be_written_is_not_named_and_the_operator_is_told(host: Host) -> None:
    unwritable(host)
    facts = write(reader(host), [*slices(A, 1), *slices(B, 1)])
    assert (facts.devices[A].slice_spec, facts.devices[B].slice_spec) == (False, True)
    (warning,) = facts.warnings
    assert f"sharer.dev-slice_{A}.json cannot be written: Is a directory" in warning
    assert "a pod can override the SHARER_* variables" in warning
    env = dict(container_edits(make_grant(slices(A, 1)), facts, ENFORCERS).env)
    assert env["SHARER_GPU_UUIDS"] == A, "then the variables travel as the plugin's"


def test_a_slice_that_could_not_be_added_is_not_named_by_the_old_file(host: Host) -> None:
    specs = reader(host)
    write(specs, slices(A, 1))
    unwritable(host)
    assert write(specs, slices(A, 2)).devices[A].slice_spec is False


def test_the_warning_goes_when_the_cause_goes(host: Host) -> None:
    specs = reader(host)
    obstacle = unwritable(host)
    assert write(specs, slices(A, 1)).warnings
    assert specs.is_behind
    assert specs.read(two_gpus()).warnings, "it stays until the next try"
    obstacle.rmdir()
    facts = write(specs, slices(A, 1))
    assert (facts.warnings, facts.devices[A].slice_spec) == ((), True)
    assert not specs.is_behind


def test_a_full_disk_leaves_the_old_file_and_nothing_half_written(host: Host) -> None:
    specs = reader(host)
    write(specs, slices(A, 1))
    with full_disk():
        assert "File too large" in write(specs, slices(A, 2)).warnings[0]
    assert set(stamps(host)) == {f"sharer.dev-slice_{A}.json"}
    assert set(spec_of(host, A)) == {f"{A}::ts-0-1024"}
    assert write(specs, slices(A, 2)).devices[A].slice_spec


def test_a_file_that_resists_being_cleared_keeps_no_other_and_is_told_once_until_it_gives_in(
    host: Host, caplog: pytest.LogCaptureFixture
) -> None:
    """The directory may be read-only for a while: a runtime reads what is left there for every container."""
    specs = reader(host)
    write(specs, [*slices(A, 2), *slices(B, 2)])
    obstacle, left = unwritable(host), [*slices(A, 1), *slices(B, 1)]
    with caplog.at_level(logging.INFO, logger="sharer.adapters.injection"):
        for _ in range(3):
            specs.keep_only(left)
        [warning] = write(specs, left).warnings
        assert f"sharer.dev-slice_{A}.json cannot be cleared of slices that are gone: Is a directory" in warning
        assert set(spec_of(host, A)) == {f"{A}::ts-0-1024", f"{A}::ts-1-1024"}
        assert set(spec_of(host, B)) == {f"{B}::ts-0-1024"}
        until_then = specs.has_leftovers
        obstacle.rmdir()
        specs.keep_only(left)
    assert (until_then, specs.has_leftovers) == (True, False)
    assert write(specs, left).warnings == ()
    assert set(spec_of(host, A)) == {f"{A}::ts-0-1024"}
    assert [record.getMessage() for record in caplog.records] == [
        warning,
        "the CDI specs of slices that are gone are cleared",
    ]


def test_directories_that_cannot_be_looked_into_are_left_and_told(host: Host) -> None:
    """Any error would end the agent."""
    specs = reader(host)
    write(specs, slices(A, 2))
    with no_descriptor_left():
        specs.keep_only(slices(A, 1))
    [warning] = write(specs, slices(A, 1)).warnings
    assert "cannot be cleared: Too many open files" in warning
    assert specs.has_leftovers


def test_slices_that_no_container_can_get_have_no_spec(host: Host) -> None:
    """MPS without a daemon: Allocate refuses those, so there is nothing to name."""
    facts = write(reader(host), [DeviceId.parse(f"{A}::mps-0-1024")])
    assert stamps(host) == {}
    assert facts.warnings == ()


def test_more_slices_than_a_runtime_should_read_get_no_specs_and_a_warning(host: Host) -> None:
    """It reads all specs again for every container it starts (runtime-facts §1.8)."""
    specs = reader(host)
    facts = write(specs, slices(A, MAX_SLICES + 1))
    assert stamps(host) == {}
    assert not facts.devices[A].slice_spec
    assert f"{MAX_SLICES + 1} slices are more than the {MAX_SLICES}" in facts.warnings[0]
    assert write(specs, slices(A, MAX_SLICES)).warnings == ()
    assert len(spec_of(host, A)) == MAX_SLICES
