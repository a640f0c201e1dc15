"""How kubelets and container runtimes name cgroups (runtime-facts §7).

Names are matched one folder at a time, since the folders above the pods differ: cgroupfs and systemd drivers, a
`cgroupRoot` of the kubelet, a private cgroup namespace.
"""

from __future__ import annotations

import re

_KUBEPODS = r"(?:[a-z0-9_.-]+-)?kubepods(?:\.slice)?"
_KUBELET = r"(?:[a-z0-9_.-]+-)?kubelet(?:\.slice)?"
_CLASS = r"(?:.*-)?(?:burstable|besteffort)(?:\.slice)?"
UID_DIGITS = r"[0-9a-f]{8}(?:[-_][0-9a-f]{4}){3}[-_][0-9a-f]{12}|[0-9a-f]{32}"  # 32 digits: a static pod's hash
CONTAINER_DIGITS = r"[0-9a-f]{64}"
_POD = rf"(?:.*-)?pod(?P<uid>{UID_DIGITS})(?:\.slice)?"
_CONTAINER = rf"(?:cri-containerd-|crio-|docker-)?(?P<id>{CONTAINER_DIGITS})(?:\.scope)?"


def is_kubepods(name: str) -> bool:
    """Whether all pods of a node are below a folder of this name."""
    return re.fullmatch(_KUBEPODS, name) is not None


def is_kubelet(name: str) -> bool:
    """Whether it is a folder of the kubelet's own, that kubepods may be below."""
    return re.fullmatch(_KUBELET, name) is not None


def is_class(name: str) -> bool:
    """Whether it is the folder of a quality-of-service class within kubepods."""
    return re.fullmatch(_CLASS, name) is not None


def pod_uid(name: str) -> str | None:
    """The UID of the pod whose folder this is; None: it is no pod's.

    >>> pod_uid("kubepods-burstable-pod0e1f8a3b_0000_4000_8000_00000000000a.slice")
    '0e1f8a3b-0000-4000-8000-00000000000a'
    """
    found = re.fullmatch(_POD, name)
    return None if found is None else found["uid"].replace("_", "-")


def container_id(name: str) -> str | None:
    """The ID of the container whose folder this is, or of a pod's sandbox; None: it is neither's.

    CRI-O's monitor of a container, beside it as `crio-conmon-<id>.scope`, is no tenant's.
    """
    found = re.fullmatch(_CONTAINER, name)
    return None if found is None else found["id"]
