"""Names of cgroups, as kubelets and runtimes were seen to make them (runtime-facts §7)."""

from __future__ import annotations

import pytest

from sharer.core.cgroup_names import container_id, is_class, is_kubelet, is_kubepods, pod_uid

UID, HASH, ID = "0e1f8a3b-12cd-4000-8000-00000000000a", "0123456789abcdef0123456789abcdef", "a1" * 32
UNDERSCORED = UID.replace("-", "_")


@pytest.mark.parametrize(
    ("name", "uid"),
    [
        (f"pod{UID}", UID),
        (f"pod{HASH}", HASH),
        (f"kubepods-pod{UNDERSCORED}.slice", UID),
        (f"kubepods-burstable-pod{UNDERSCORED}.slice", UID),
        (f"kubelet-kubepods-besteffort-pod{UNDERSCORED}.slice", UID),
        (f"kubepods-pod{HASH}.slice", HASH),
        ("podman", None),
        (f"pod{UID}x", None),
        ("kubepods-burstable.slice", None),
        ("", None),
    ],
)
def test_a_pods_folder_tells_its_uid(name: str, uid: str | None) -> None:
    assert pod_uid(name) == uid


@pytest.mark.parametrize("name", [ID, f"cri-containerd-{ID}.scope", f"crio-{ID}.scope", f"docker-{ID}.scope"])
def test_a_containers_folder_tells_its_id(name: str) -> None:
    assert container_id(name) == ID


@pytest.mark.parametrize("name", [f"crio-conmon-{ID}.scope", ID[:-1], f"{ID}0", "container", ""])
def test_what_is_beside_a_container_is_none(name: str) -> None:
    assert container_id(name) is None


def test_the_folders_above_pods_are_known_with_any_root_and_driver() -> None:
    for name in ("kubepods", "kubepods.slice", "kubelet-kubepods.slice"):
        assert is_kubepods(name)
    for name in ("kubelet", "kubelet.slice", "my-kubelet.slice"):
        assert is_kubelet(name)
    for name in ("burstable", "kubepods-besteffort.slice", "kubelet-kubepods-burstable.slice"):
        assert is_class(name)
    for name in ("system.slice", f"pod{UID}"):
        assert not any(judge(name) for judge in (is_kubepods, is_kubelet, is_class))
