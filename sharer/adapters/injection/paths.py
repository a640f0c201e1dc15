"""Where this process sees the host, and how the host calls what we see."""

from __future__ import annotations

import os
from pathlib import Path

from sharer.core.values import dataclass

_MAX_LINKS = 40  # as the kernel


@dataclass(frozen=True, slots=True, kw_only=True)
class HostPaths:
    """Where this process sees the host. In a pod, the host's / may be at /host, and its /dev at /host/dev."""

    host_root: Path = Path("/")
    dev_root: Path = Path("/dev")
    proc_root: Path = Path("/proc")

    def on_host(self, path: Path) -> str:
        """The path as the host, and so the container runtime, knows it."""
        try:
            return "/" + str(path.relative_to(self.host_root))
        except ValueError:
            return str(path)

    def below(self, host_path: str) -> Path:
        """Where we see an absolute path of the host, its symbolic links followed as the host would follow them.

        Most hosts have /var/run as a link to /run: followed from here, it would lead into our own /run.
        """
        ahead = host_path.split("/")[::-1]
        found: list[str] = []
        links = 0
        while ahead:
            part = ahead.pop()
            if part == "..":
                del found[-1:]
            elif part not in ("", "."):
                try:
                    target = os.readlink(self.host_root.joinpath(*found, part))
                except OSError:  # no link, or nothing there
                    found.append(part)
                    continue
                links += 1
                if links > _MAX_LINKS:  # a circle: nothing can be there
                    return self.host_root.joinpath(*found, part, *ahead[::-1])
                if target.startswith("/"):
                    found.clear()
                ahead.extend(target.split("/")[::-1])
        return self.host_root.joinpath(*found)
