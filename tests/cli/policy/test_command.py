from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from sharer.adapters.documents import to_json
from sharer.adapters.yaml_text import read_policy_text
from sharer.core.inventory import Inventory
from sharer.core.report.inventory import report_inventory
from tests.cli.running import run, write_policy
from tests.core.builders import gpu, gpu_uuid, node

NVIDIA = """\
version: v1
flags: {migStrategy: none}
sharing:
  timeSlicing:
    renameByDefault: true
    resources: [{name: nvidia.com/gpu, replicas: 4}]
"""


def described(folder: Path, inventory: Inventory) -> Path:
    path = folder / "node.json"
    path.write_text(to_json(report_inventory(inventory)))
    return path


# ---- check


def test_a_good_policy_is_fine(tmp_path: Path) -> None:
    policy = write_policy(tmp_path, slices=4)
    assert run("policy", "check", policy) == (0, f"{policy}: fine\n", "")


def test_every_problem_of_every_file_is_shown_with_its_place(tmp_path: Path) -> None:
    """P01: an unknown key is refused, with the nearest known one."""
    bad = write_policy(tmp_path, "bad.yaml", slice=4, placement="somewhere")
    good = write_policy(tmp_path, "good.yaml", slices=4)
    ran = run("policy", "check", bad, good, tmp_path / "missing.yaml")
    assert ran.status == 2
    assert f"{bad}:6:5: rules[0].slice: unknown key; did you mean 'slices'?" in ran.out
    assert f"{bad}:7:16: rules[0].placement: " in ran.out
    assert f"{good}: fine\n" in ran.out
    assert f"{tmp_path}/missing.yaml: cannot be read: No such file or directory\n" in ran.out


def test_a_policy_can_come_from_standard_input(tmp_path: Path) -> None:
    text = write_policy(tmp_path, slices=4).read_text()
    assert run("policy", "check", "-", stdin=text) == (0, "standard input: fine\n", "")
    assert run("policy", "check", "-", stdin="rules: 1").status == 2


def test_a_standard_input_that_is_closed_is_wrong_input() -> None:
    command = f"exec {sys.executable} -m sharer policy check - <&-"
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout + done.stderr) == (2, "standard input: is closed\n")


def test_a_file_without_an_end_is_not_read_to_its_end() -> None:
    assert run("policy", "check", "/dev/zero") == (2, "/dev/zero: has more than 64 MiB, and is not read\n", "")


def test_a_gpu_that_would_offer_nothing_is_found_only_with_an_inventory(tmp_path: Path) -> None:
    policy = write_policy(tmp_path, strategy="mps", slices=2)
    old_gpu = described(tmp_path, node(gpu(0), gpu(1, compute_capability=(6, 1))))
    assert run("policy", "check", policy).status == 0
    ran = run("policy", "check", policy, "--inventory", old_gpu)
    assert ran.status == 1
    assert ran.out.startswith(f"{policy}: GPU 1 (NVIDIA A100-SXM4-80GB), {gpu_uuid(1)}, offers nothing: MPS needs")


def test_a_check_as_json_says_what_was_accepted_and_why_not(tmp_path: Path) -> None:
    bad, good = write_policy(tmp_path, "bad.yaml", slices=0), write_policy(tmp_path, "good.yaml", slices=4)
    ran = run("policy", "check", bad, good, "-o", "json")
    first, second = ran.document()["policies"]
    assert (ran.status, ran.document()["kind"]) == (2, "PolicyCheck")
    assert (first["policy"], first["accepted"], first["problems"][0]["path"]) == (str(bad), False, "rules[0].slices")
    assert (first["problems"][0]["line"], first["problems"][0]["column"]) == (6, 13)
    assert (second["accepted"], second["problems"], second["refusals"]) == (True, [], None)


def test_a_list_too_long_for_the_kubelet_is_wrong_input(tmp_path: Path) -> None:
    """P04."""
    policy = write_policy(tmp_path, slices=40000, memory="{limit: none}")
    ran = run("policy", "check", policy, "--inventory", described(tmp_path, node(gpu(0), gpu(1))))
    assert ran.status == 2
    assert "the kubelet receives at most 4194304" in ran.out


def test_an_inventory_that_is_none_is_wrong_input(tmp_path: Path) -> None:
    policy = write_policy(tmp_path, slices=4)
    ran = run("policy", "check", policy, "--inventory", policy)
    assert (ran.status, ran.out) == (2, "")
    assert ran.err.startswith(f"{policy}: has apiVersion 'sharer.dev/v1alpha1' and kind 'SharingPolicy'; expected")


# ---- plan


def test_a_plan_shows_for_each_gpu_how_many_slices_and_what_they_promise(tmp_path: Path) -> None:
    policy = write_policy(tmp_path, slices=4)
    inventory = described(tmp_path, node(gpu(0), gpu(1, memory_mib=40960)))
    ran = run("policy", "plan", policy, "--inventory", inventory)
    assert ran.status == 0
    assert ran.row(gpu_uuid(0))[:5] == ["nvidia.com/gpu.shared", "GPU", "0", "NVIDIA", "A100-SXM4-80GB"]
    assert ran.row(gpu_uuid(0))[5:] == ["time-slicing", "4", "20", "GiB", "-", gpu_uuid(0)]
    assert ran.row(gpu_uuid(1))[6:9] == ["4", "10", "GiB"]
    assert ran.row("nvidia.com/gpu.shared", "8") == ["nvidia.com/gpu.shared", "8"]


def test_a_plan_can_be_made_for_gpus_by_name(tmp_path: Path) -> None:
    ran = run("policy", "plan", write_policy(tmp_path, slices=2), "--gpus", "2xA100-80GB,L4", "-o", "json")
    (resource,) = ran.document()["resources"]
    assert (ran.document()["kind"], ran.document()["changes"], resource["slices"]) == ("Plan", None, 6)
    assert [device["product"] for device in resource["devices"]][1:] == ["NVIDIA A100-SXM4-80GB", "NVIDIA L4"]
    assert len({device_id for device in resource["devices"] for device_id in device["ids"]}) == 6


def test_where_there_is_no_driver_a_plan_says_how_another_node_is_described(tmp_path: Path) -> None:
    ran = run("policy", "plan", write_policy(tmp_path, slices=4), "--driver-library", tmp_path / "none")
    assert (ran.status, ran.out) == (1, "")
    assert ran.err.endswith(". For another node than this one give --gpus or --inventory\n")


def test_a_gpu_that_offers_nothing_is_shown_with_the_reason_and_is_no_failure(tmp_path: Path) -> None:
    ran = run("policy", "plan", write_policy(tmp_path, strategy="mps", slices=2), "--gpus", "P4")
    assert ran.status == 0
    assert "Not offered:\n  GPU 0 (Tesla P4), GPU-" in ran.out
    assert "MPS needs compute capability 7.0" in ran.out


def test_a_difference_shows_only_what_changes(tmp_path: Path) -> None:
    old = write_policy(tmp_path, "old.yaml", slices=2, match='{product: "*A100*"}')
    new = write_policy(tmp_path, "new.yaml", slices=4, match='{product: "*A100*"}')
    ran = run("policy", "plan", new, "--diff", old, "--gpus", "A100-80GB", "-o", "json")
    (change,) = ran.document()["changes"]
    assert ran.status == 0
    assert (change["before"]["slices"], change["after"]["slices"]) == (2, 4)
    assert (len(change["idsGoing"]), len(change["idsComing"])) == (2, 4)
    table = run("policy", "plan", new, "--diff", old, "--gpus", "A100-80GB").out
    assert "2 × 40 GiB, time-slicing  4 × 20 GiB, time-slicing          2           4" in table


def test_no_difference_is_said_in_words(tmp_path: Path) -> None:
    old, new = write_policy(tmp_path, "old.yaml", slices=2), write_policy(tmp_path, "new.yaml", slices=2)
    assert run("policy", "plan", new, "--diff", old, "--gpus", "L4") == (0, f"{new} changes nothing on 1 GPU\n", "")


def test_a_limit_that_moves_by_less_than_a_rounding_step_changes_nothing_as_in_the_agent(tmp_path: Path) -> None:
    old = write_policy(tmp_path, "old.yaml", slices=8)
    new = write_policy(tmp_path, "new.yaml", slices=8, memory="{reserve: 100Mi}")
    assert "changes nothing" in run("policy", "plan", new, "--diff", old, "--gpus", "A100-80GB").out


def test_an_unknown_gpu_lists_the_known_ones(tmp_path: Path) -> None:
    ran = run("policy", "plan", write_policy(tmp_path, slices=2), "--gpus", "A100-81GB")
    assert (ran.status, ran.out) == (2, "")
    assert ran.err.startswith("GPU 'A100-81GB' is not known. Known, the nearest first: A100-80GB, ")


@pytest.mark.parametrize("arguments", [("--gpus", "L4", "--inventory", "x"), ("--frobnicate",), ()])
def test_wrong_arguments_are_wrong_input(arguments: tuple[str, ...], tmp_path: Path) -> None:
    file = (write_policy(tmp_path, slices=2),) if arguments else ()
    ran = run("policy", "plan", *file, *arguments)
    assert (ran.status, ran.out) == (2, "")
    assert ran.err.startswith("Usage: sharer policy plan")


# ---- convert


def test_nvidia_s_config_becomes_a_policy_of_ours_that_means_the_same(tmp_path: Path) -> None:
    config = tmp_path / "nvidia.yaml"
    config.write_text(NVIDIA)
    ran = run("policy", "convert", config)
    assert ran.status == 0
    assert read_policy_text(ran.out, "ours") == read_policy_text(NVIDIA, "theirs")
    assert "apiVersion: sharer.dev/v1alpha1" in ran.out


def test_what_has_no_meaning_here_is_named_on_standard_error(tmp_path: Path) -> None:
    config = tmp_path / "nvidia.yaml"
    config.write_text(NVIDIA.replace("migStrategy: none", "migStrategy: none, failOnInitError: true"))
    ran = run("policy", "convert", config)
    assert ran.status == 0
    assert f"{config}: warning: " in ran.err
    assert "failOnInitError" in ran.err
