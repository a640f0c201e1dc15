"""`sharer policy check` in an init container: a mounted ConfigMap, and a node that may have slices in use."""

from __future__ import annotations

import json
from pathlib import Path

from tests.cli.running import run, write_policy

SLICE = "GPU-5a3f0000-0000-0000-0000-000000000000::ts-0-20480"


def mounted(folder: Path, **keys: str) -> Path:
    """A ConfigMap as the kubelet mounts it."""
    version = folder / "policies" / "..2026_11_29"
    version.mkdir(parents=True)
    (folder / "policies" / "..data").symlink_to(version.name)
    for key, text in keys.items():
        (version / key).write_text(text)
        (folder / "policies" / key).symlink_to(f"..data/{key}")
    return folder / "policies"


def checkpoint(folder: Path, *ids: str) -> Path:
    path = folder / "kubelet_internal_checkpoint"
    entry = {"PodUID": "u", "ContainerName": "c", "ResourceName": "nvidia.com/gpu.shared", "DeviceIDs": {"-1": [*ids]}}
    path.write_text(json.dumps({"Data": {"PodDeviceEntries": [entry], "RegisteredDevices": {}}, "Checksum": 0}))
    return path


def test_every_key_of_a_mounted_config_map_is_checked_once(tmp_path: Path) -> None:
    good = write_policy(tmp_path, slices=4).read_text()
    folder = mounted(tmp_path, default=good, a100="rules: 1")
    ran = run("policy", "check", folder)
    assert ran.status == 2
    assert ran.out.count(f"{folder}/default: fine") == 1
    assert ran.out.count(f"{folder}/a100:") >= 1
    assert "..data" not in ran.out


def test_a_directory_without_a_policy_is_an_error_and_not_fine(tmp_path: Path) -> None:
    assert run("policy", "check", mounted(tmp_path)).status == 2


def test_a_wrong_policy_stops_a_node_that_nobody_uses_yet(tmp_path: Path) -> None:
    folder = mounted(tmp_path, default="rules: 1")
    assert run("policy", "check", f"--unless-held={tmp_path}/missing", folder).status == 2
    assert run("policy", "check", f"--unless-held={checkpoint(tmp_path, 'GPU-5a3f::0')}", folder).status == 2


def test_a_wrong_policy_stops_no_node_whose_containers_need_its_agent(tmp_path: Path) -> None:
    """Without an agent their containers could not even restart (kubelet-contract §2.5)."""
    ran = run("policy", "check", f"--unless-held={checkpoint(tmp_path, SLICE)}", mounted(tmp_path, default="rules: 1"))
    assert ran.status == 0
    assert "1 slice in use" in ran.err
    assert "rules" in ran.out, "what is wrong is said all the same"


def test_a_checkpoint_that_cannot_be_read_counts_as_slices_in_use(tmp_path: Path) -> None:
    damaged = tmp_path / "damaged"
    damaged.write_text("{")
    assert run("policy", "check", f"--unless-held={damaged}", mounted(tmp_path, default="rules: 1")).status == 0


def test_a_wrong_policy_of_other_nodes_stops_no_node(tmp_path: Path) -> None:
    """Neighbour of P05: which key is its own, a node's label says. One pool's typo is not the end of every pool."""
    good = write_policy(tmp_path, slices=4).read_text()
    folder = mounted(tmp_path, default=good, a100="rules: 1")
    ran = run("policy", "check", f"--unless-held={tmp_path}/missing", folder)
    assert ran.status == 0
    assert f"{folder}/default is fine" in ran.err
    assert f"{folder}/a100:" in ran.out, "what is wrong is said all the same"


def test_policies_that_are_missing_stop_no_node_and_least_of_all_one_in_use(tmp_path: Path) -> None:
    """Neighbour of P05: the ConfigMap was deleted, or comes later than the pods. The agent waits, and says for what."""
    for folder in (mounted(tmp_path), tmp_path / "no folder"):
        folder.mkdir(exist_ok=True)
        for held in (tmp_path / "missing", checkpoint(tmp_path, SLICE)):
            ran = run("policy", "check", f"--unless-held={held}", folder)
            assert (ran.status, ran.out) == (0, "")
            assert "has no file" in ran.err
            assert "the agent waits for one" in ran.err
