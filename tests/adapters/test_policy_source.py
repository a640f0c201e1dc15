"""P07: an edited ConfigMap is noticed however it is mounted, or it is said that it cannot be."""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from sharer.adapters.policy_source import MAX_TEXT_BYTES, ConfigMapPolicies, MountedPolicies, NoPolicy
from sharer.adapters.yaml_text import read_policy_text
from sharer.core.errors import NodeError, PolicyError
from sharer.core.holders.observations import ApiSync, ApiTrouble, ApiTroubleKind, ConfigMapSeen
from sharer.core.ports.policy import PolicyShelf, PolicySource
from tests.fakes.clock import Clock

NOT_YET = ApiSync(synced_at_s=None, trouble=None)
SYNCED = ApiSync(synced_at_s=1.0, trouble=None)
AWAY = ApiSync(
    synced_at_s=None, trouble=ApiTrouble(kind=ApiTroubleKind.UNREACHABLE, message="nobody answers", since_s=0.0)
)


def refusal(source: PolicySource) -> str:
    with pytest.raises(NodeError) as refused:
        source.shelf()
    return str(refused.value)


def texts(shelf: PolicyShelf) -> dict[str, str]:
    return {key: one.text.decode() for key, one in shelf.texts.items()}


class MountedConfigMap:
    """A directory as the kubelet mounts a ConfigMap: links to `..data`, itself a link to the version that counts."""

    def __init__(self, directory: Path, **keys: str) -> None:
        self.directory = directory
        self._version = 0
        self.publish(**keys)
        for key in keys:
            (directory / key).symlink_to(f"..data/{key}")

    def publish(self, **keys: str) -> None:
        """An edit, as AtomicWriter makes it: a new directory, the link turned by rename, the old directory removed."""
        old = self._version
        self._version += 1
        version = self.directory / f"..2024_{self._version}"
        version.mkdir()
        for key, text in keys.items():
            (version / key).write_text(text)
        (self.directory / "..data_tmp").symlink_to(version.name)
        os.replace(self.directory / "..data_tmp", self.directory / "..data")
        if old:
            gone = self.directory / f"..2024_{old}"
            for file in gone.iterdir():
                file.unlink()
            gone.rmdir()


# ---- a file


def a_file(directory: Path, *, age_s: float) -> tuple[Path, Clock, MountedPolicies]:
    """A policy that was written so long ago, and the clock that says so."""
    path, clock = directory / "policy.yaml", Clock()
    path.write_text("one")
    clock.now_s = path.stat().st_ctime + age_s
    return path, clock, MountedPolicies(path, wall_s=clock)


def test_a_file_serves_every_node_and_is_read_again_each_time(tmp_path: Path) -> None:
    path = tmp_path / "policy.yaml"
    path.write_text("one")
    source = MountedPolicies(path)
    shelf = source.shelf()
    assert (shelf.place, texts(shelf), shelf.is_for_every_node) == (str(path), {"policy.yaml": "one"}, True)
    assert shelf.texts["policy.yaml"].source == str(path)
    assert shelf.texts["policy.yaml"].digest == hashlib.sha256(b"one").hexdigest()
    path.write_text("two")
    assert texts(source.shelf()) == {"policy.yaml": "two"}


def test_a_file_that_has_rested_is_read_again_only_when_it_is_another(tmp_path: Path) -> None:
    path, clock, source = a_file(tmp_path, age_s=60.0)
    first = source.shelf().texts["policy.yaml"]
    assert source.shelf().texts["policy.yaml"] is first
    first_ns = path.stat().st_ctime_ns
    while path.stat().st_ctime_ns == first_ns:  # a file system's clock ticks every few milliseconds
        path.write_text("two")
    clock.now_s = path.stat().st_ctime  # which is why a third edit within one tick of the file system's clock is seen
    assert source.shelf().texts["policy.yaml"].text == b"two"
    path.with_name("new").write_text("six")
    os.utime(path.with_name("new"), ns=(path.stat().st_atime_ns, path.stat().st_mtime_ns))
    path.with_name("new").replace(path)
    assert source.shelf().texts["policy.yaml"].text == b"six"


def test_a_file_that_was_just_written_is_read_again(tmp_path: Path) -> None:
    """The next write may leave it with the same size and, by a coarse clock, the same times."""
    _, _, source = a_file(tmp_path, age_s=0.5)
    first = source.shelf().texts["policy.yaml"]
    assert source.shelf().texts["policy.yaml"] is not first


def test_a_file_that_is_missing_not_a_file_or_too_long_is_refused_in_words(tmp_path: Path) -> None:
    missing = tmp_path / "missing.yaml"
    assert refusal(MountedPolicies(missing)) == (
        f"policy {missing} cannot be read: No such file or directory; create it, or correct --policy"
    )
    os.mkfifo(tmp_path / "pipe")
    assert "neither a file nor a directory" in refusal(MountedPolicies(tmp_path / "pipe"))
    (tmp_path / "long").write_bytes(b"x" * (MAX_TEXT_BYTES + 1))
    assert "more than a ConfigMap can" in refusal(MountedPolicies(tmp_path / "long"))


def test_without_a_policy_named_the_flags_that_name_one_are_told() -> None:
    assert "--policy-configmap" in refusal(NoPolicy())


# ---- a mounted directory


def test_a_directory_has_a_policy_in_each_file(tmp_path: Path) -> None:
    (tmp_path / "default").write_text("d")
    (tmp_path / "a100.yaml").write_text("a")
    (tmp_path / ".hidden").write_text("h")
    (tmp_path / "folder").mkdir()
    shelf = MountedPolicies(tmp_path).shelf()
    assert texts(shelf) == {"a100.yaml": "a", "default": "d"}
    assert shelf.texts["default"].source == str(tmp_path / "default")
    assert not shelf.is_for_every_node


def test_two_swaps_within_a_second_are_both_noticed(tmp_path: Path) -> None:
    """P07: the kubelet turns the link `..data`, twice."""
    mounted = MountedConfigMap(tmp_path, default="one")
    source = MountedPolicies(tmp_path)
    assert texts(source.shelf()) == {"default": "one"}
    mounted.publish(default="two", a100="a")
    assert texts(source.shelf()) == {"default": "two", "a100": "a"}
    mounted.publish(default="three")
    assert texts(source.shelf()) == {"default": "three"}


def test_a_swap_in_the_middle_of_a_look_never_mixes_two_versions(tmp_path: Path) -> None:
    """P07: many swaps beside many looks; a look that meets too many of them says that it could not be made."""
    mounted = MountedConfigMap(tmp_path, a="0", b="0", c="0")
    source = MountedPolicies(tmp_path)
    done = threading.Event()

    def swap() -> None:
        for number in range(1, 300):
            mounted.publish(a=str(number), b=str(number), c=str(number))
        done.set()

    swapping = threading.Thread(target=swap)
    swapping.start()
    while not done.is_set():
        try:
            found = texts(source.shelf())
        except NodeError as error:
            assert "is being replaced" in str(error)  # noqa: PT017
            continue
        assert len(set(found.values())) == 1, found
        assert set(found) == {"a", "b", "c"}
    swapping.join()
    assert texts(source.shelf()) == dict.fromkeys("abc", "299")


def test_a_link_that_is_missing_for_a_moment_is_no_policy_without_keys(tmp_path: Path) -> None:
    """P07: `..data` briefly missing. "No key" would be taken for an edit."""
    mounted = MountedConfigMap(tmp_path, default="one")
    (tmp_path / "..data").unlink()
    assert "is being replaced" in refusal(MountedPolicies(tmp_path))
    mounted.publish(default="two")
    assert texts(MountedPolicies(tmp_path).shelf()) == {"default": "two"}


def test_a_directory_that_is_itself_a_link_is_followed_to_where_it_leads_now(tmp_path: Path) -> None:
    """Neighbour of P07: git-sync, and whoever deploys by a link, turns the directory and not what is in it."""
    for name in ("rev-1", "rev-2"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "default").write_text(name)
    current = tmp_path / "current"
    current.symlink_to("rev-1")
    source = MountedPolicies(current)
    assert texts(source.shelf()) == {"default": "rev-1"}
    (tmp_path / "new").symlink_to("rev-2")
    os.replace(tmp_path / "new", current)
    assert texts(source.shelf()) == {"default": "rev-2"}


# ---- mounts that never change


def mount(point: Path, root: str = "/") -> Callable[[], str]:
    """What /proc/self/mountinfo says of a mount there."""
    escaped = str(point).replace(" ", "\\040")
    return lambda: (
        "22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw\n"
        f"36 22 8:1 {root} {escaped} ro,relatime - ext4 /dev/sda1 rw\n"
    )


def test_a_file_that_is_a_mount_of_its_own_is_warned_of(tmp_path: Path) -> None:
    """P07: with subPath an edit never arrives."""
    path = tmp_path / "my policy.yaml"
    path.write_text("one")
    (warning,) = MountedPolicies(path, mount(path)).shelf().warnings
    assert "subPath" in warning
    assert str(path) in warning
    assert MountedPolicies(path, mount(tmp_path)).shelf().warnings == ()


def test_a_mounted_directory_is_fine_unless_it_is_one_version_of_a_configmap(tmp_path: Path) -> None:
    (tmp_path / "default").write_text("one")
    volume = "/var/lib/kubelet/pods/u/volumes/kubernetes.io~configmap/policies"
    assert MountedPolicies(tmp_path, mount(tmp_path, volume)).shelf().warnings == ()
    assert len(MountedPolicies(tmp_path, mount(tmp_path, f"{volume}/..2024_01_01_00/sub")).shelf().warnings) == 1


def test_mounts_that_cannot_be_read_cost_only_the_warning(tmp_path: Path) -> None:
    def broken() -> str:
        raise OSError("not mounted")

    path = tmp_path / "policy.yaml"
    path.write_text("one")
    assert MountedPolicies(path, broken).shelf().warnings == ()
    assert MountedPolicies(path).shelf().warnings == (), "this process's own mounts"


# ---- a ConfigMap of the API server


def config_map(**data: str) -> ConfigMapSeen:
    return ConfigMapSeen(uid="u", namespace="gpu", name="policies", resource_version="1", data=data)


def source(seen: ConfigMapSeen | None, sync: ApiSync | None, mounted: PolicySource | None = None) -> ConfigMapPolicies:
    return ConfigMapPolicies("gpu", "policies", seen=lambda: seen, sync=lambda: sync, mounted=mounted)


def test_a_configmap_s_keys_are_its_policies() -> None:
    shelf = source(config_map(default="d", a100="a"), SYNCED).shelf()
    assert (shelf.place, texts(shelf)) == ("configmap gpu/policies", {"default": "d", "a100": "a"})
    assert shelf.texts["a100"].source == "configmap gpu/policies key a100"
    assert not shelf.is_for_every_node


def test_a_policy_that_is_not_utf_8_is_refused_for_that_and_not_called_missing(tmp_path: Path) -> None:
    """Neighbour of P05: of a mounted file it is the same to us, and to people it should be as well."""
    raw = "rules: []".encode("utf-16")
    (tmp_path / "default").write_bytes(raw)
    told = source(replace(config_map(a100="a"), binary={"default": raw}), SYNCED).shelf()
    assert set(told.texts) == {"a100", "default"}
    assert told.texts["default"].digest == MountedPolicies(tmp_path).shelf().texts["default"].digest
    with pytest.raises(PolicyError, match="configmap gpu/policies key default.*save the file as UTF-8"):
        read_policy_text(told.texts["default"].text, told.texts["default"].source)


def test_the_same_text_has_the_same_digest_wherever_it_is_read(tmp_path: Path) -> None:
    (tmp_path / "default").write_text("d")
    mounted, told = MountedPolicies(tmp_path).shelf(), source(config_map(default="d"), SYNCED).shelf()
    assert mounted.texts["default"].digest == told.texts["default"].digest


def test_what_the_api_told_last_stands_while_it_is_away(tmp_path: Path) -> None:
    """No news is not "no policy", and what is mounted may be older."""
    (tmp_path / "default").write_text("older")
    assert texts(source(config_map(default="d"), AWAY, MountedPolicies(tmp_path)).shelf()) == {"default": "d"}


def test_until_the_api_has_answered_or_failed_nothing_stands_in_for_it(tmp_path: Path) -> None:
    (tmp_path / "default").write_text("older")
    assert refusal(source(None, NOT_YET, MountedPolicies(tmp_path))) == "configmap gpu/policies has not been read yet"


@pytest.mark.parametrize("sync", [AWAY, None])
def test_what_is_mounted_stands_in_for_an_api_that_never_answered(tmp_path: Path, sync: ApiSync | None) -> None:
    (tmp_path / "default").write_text("d")
    shelf = source(None, sync, MountedPolicies(tmp_path)).shelf()
    assert texts(shelf) == {"default": "d"}
    (warning,) = shelf.warnings
    assert "stands in for configmap gpu/policies" in warning
    assert ("nobody answers" if sync else "--kubernetes off") in warning
    assert "mount it too" in refusal(source(None, sync))


def test_a_configmap_that_does_not_exist_is_told_and_nothing_stands_in_for_it(tmp_path: Path) -> None:
    """P05: it may have been deleted while in use; then the policy in force stays."""
    (tmp_path / "default").write_text("d")
    assert "there is no configmap gpu/policies" in refusal(source(None, SYNCED, MountedPolicies(tmp_path)))
