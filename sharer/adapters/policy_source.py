"""Where policies come from: a file, the directory of a mounted ConfigMap, a ConfigMap of the API server.

Nothing is watched here: each call looks again, so no edit can be missed (bug case P07). The kubelet publishes an edit
of a mounted ConfigMap by turning the link `..data` to a new directory and then removing the old one; so what was read
is one whole version if the link is still the same afterwards, and else the look begins again. A file that is the same
one as before, and has rested since, is not read again.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from sharer.core.errors import NodeError
from sharer.core.holders.observations import ApiSync, ConfigMapSeen
from sharer.core.ports.policy import PolicyShelf, PolicySource, PolicyText
from sharer.core.values import replace

MAX_TEXT_BYTES = 2**20  # a ConfigMap holds at most 1 MiB, all its keys together
_DATA = "..data"  # kubelet's link to the version of a mounted ConfigMap that counts
_RESTED_S = 2.0  # since a file's last change: the next one has another time then, however coarse the clock of files
_SWAPS = 5  # of the link during one look, after which the next cycle looks again


class NoPolicy:
    """No policy is named. Implements core.ports.policy.PolicySource."""

    def shelf(self) -> PolicyShelf:
        """Raises NodeError."""
        raise NodeError("no policy is named, so no slice is offered; name one with --policy or --policy-configmap")


class MountedPolicies:
    """A policy's file, or a directory with a policy in each file. Implements core.ports.policy.PolicySource."""

    def __init__(
        self, path: Path, read_mounts: Callable[[], str] | None = None, *, wall_s: Callable[[], float] = time.time
    ) -> None:
        """`read_mounts` returns what /proc/self/mountinfo says; it may raise OSError. `wall_s`: the files' clock."""
        self._path, self._wall_s = path, wall_s
        self._read_mounts = read_mounts or _own_mounts
        self._judged: tuple[int, int] | None = None  # device and inode that `_frozen` is about
        self._frozen: str | None = None
        self._read: dict[Path, tuple[tuple[int, ...], PolicyText]] = {}  # what each file held, and which file it was

    def shelf(self) -> PolicyShelf:
        """What is there now. Raises NodeError."""
        path = self._path
        try:
            status = path.stat()
            is_directory = stat.S_ISDIR(status.st_mode)
            if not is_directory and not stat.S_ISREG(status.st_mode):
                raise NodeError(f"policy {path} is neither a file nor a directory; correct --policy")
            self._judge(status, is_directory)
            texts = self._directory() if is_directory else {path.name: self._text(path, str(path), status)}
        except OSError as error:
            raise NodeError(
                f"policy {path} cannot be read: {os.strerror(error.errno or 0)}; create it, or correct --policy"
            ) from error
        if sum(len(text.text) for text in texts.values()) > MAX_TEXT_BYTES:
            raise NodeError(f"policy {path} holds more than {MAX_TEXT_BYTES} bytes, more than a ConfigMap can")
        return PolicyShelf(
            place=str(path),
            texts=texts,
            is_for_every_node=not is_directory,
            warnings=() if self._frozen is None else (self._frozen,),
        )

    def _directory(self) -> dict[str, PolicyText]:
        """Every key's text, of one version of the ConfigMap."""
        link = self._path / _DATA
        for _ in range(_SWAPS):
            version = Path(os.path.realpath(link)) if link.is_symlink() else self._path
            try:
                names = [name for name in sorted(os.listdir(version)) if not name.startswith(".")]
                found = {name: (version / name).stat() for name in names}
                texts = {
                    name: self._text(version / name, str(self._path / name), status)
                    for name, status in found.items()
                    if stat.S_ISREG(status.st_mode)
                }
            except FileNotFoundError:
                continue
            if version == self._path or os.path.realpath(link) == str(version):
                there = {version / name for name in texts}
                self._read = {path: read for path, read in self._read.items() if path in there}
                return texts  # else its files may have been removed one by one while they were read
        raise NodeError(f"policy {self._path} is being replaced, or a link in it leads nowhere; what was read stays")

    def _text(self, path: Path, source: str, status: os.stat_result) -> PolicyText:
        """What a file holds that was there with this status a moment ago. Raises OSError."""
        file = (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
        known = self._read.get(path)
        if known is not None and known[0] == file:
            return known[1]
        with path.open("rb") as opened:
            text = _text(opened.read(MAX_TEXT_BYTES + 1), source)
        self._read.pop(path, None)
        if self._wall_s() - max(status.st_mtime, status.st_ctime) > _RESTED_S:
            self._read[path] = (file, text)
        return text

    def _judge(self, status: os.stat_result, is_directory: bool) -> None:
        """Find out, once for each file or directory, whether an edit could ever be seen here."""
        identity = (status.st_dev, status.st_ino)
        if identity == self._judged:
            return
        self._judged, self._frozen = identity, None
        try:
            mounts = list(_mounts(self._read_mounts()))
        except OSError:
            return  # it cannot be told; that costs a warning, not the policy
        for root, point in mounts:
            if point != os.path.abspath(self._path):
                continue
            pinned = any(part.startswith("..") for part in root.split("/"))  # one version of a ConfigMap
            if not is_directory or pinned:
                self._frozen = (
                    f"policy {self._path} is mounted by itself (subPath, or a single file of the host): edits that"
                    " replace it are not seen until the pod is started again; mount the whole directory"
                )


class ConfigMapPolicies:
    """A ConfigMap as the API server last told it. Implements core.ports.policy.PolicySource."""

    def __init__(
        self,
        namespace: str,
        name: str,
        seen: Callable[[], ConfigMapSeen | None],
        sync: Callable[[], ApiSync | None],
        mounted: PolicySource | None = None,
    ) -> None:
        """`sync` returns None while the API server is not asked. `mounted` serves while it never answered."""
        self._place = f"configmap {namespace}/{name}"
        self._seen = seen
        self._sync = sync
        self._mounted = mounted

    def shelf(self) -> PolicyShelf:
        """What the API server told last, or what is mounted if it cannot be asked. Raises NodeError."""
        sync, config_map = self._sync(), self._seen()
        if config_map is not None:
            values = {**config_map.binary, **{key: text.encode() for key, text in config_map.data.items()}}
            texts = {key: _text(value, f"{self._place} key {key}") for key, value in values.items()}
            return PolicyShelf(place=self._place, texts=texts)
        if sync is not None and sync.synced_at_s is not None:
            raise NodeError(f"there is no {self._place}; create it, or correct --policy-configmap")
        reason = "the API server is not asked (--kubernetes off)"
        if sync is not None:
            if sync.trouble is None:
                raise NodeError(f"{self._place} has not been read yet")
            reason = sync.trouble.message
        if self._mounted is None:
            raise NodeError(f"{self._place} cannot be read: {reason}; mount it too, and name it with --policy")
        shelf = self._mounted.shelf()
        return replace(shelf, warnings=(*shelf.warnings, f"{shelf.place} stands in for {self._place}: {reason}"))


def _text(text: bytes, source: str) -> PolicyText:
    return PolicyText(source=source, text=text, digest=hashlib.sha256(text).hexdigest())


def _own_mounts() -> str:
    return Path("/proc/self/mountinfo").read_text(errors="replace")


def _mounts(mountinfo: str) -> Iterator[tuple[str, str]]:
    """What of its file system each mount shows, and where (proc(5): fields 4 and 5, blanks as \\040)."""
    for line in mountinfo.splitlines():
        fields = line.split(" ")
        if len(fields) > 4:
            root, point = (re.sub(r"\\([0-7]{3})", lambda octal: chr(int(octal[1], 8)), one) for one in fields[3:5])
            yield root, point
