"""Where the API server is, and who we are to it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import field
from pathlib import Path

from sharer.core.values import dataclass

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
HOST_VARIABLE = "KUBERNETES_SERVICE_HOST"


@dataclass(frozen=True, slots=True, kw_only=True)
class InCluster:
    """As a pod: the token and CA that the kubelet mounts, and renews."""

    directory: Path = SERVICE_ACCOUNT
    environment: Mapping[str, str] = field(default_factory=lambda: os.environ)

    def __str__(self) -> str:
        return f"the service account in {self.directory}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Kubeconfig:
    """As a user of a kubeconfig file."""

    path: Path
    context: str | None = None  # None: the file's current one

    def __str__(self) -> str:
        return f"the kubeconfig {self.path}"


KubeAccess = InCluster | Kubeconfig


def own_namespace(access: KubeAccess | None) -> str | None:
    """The namespace of the pod that this process runs in; None: it runs in none, or cannot tell."""
    if not isinstance(access, InCluster):
        return None
    try:
        return (access.directory / "namespace").read_text().strip() or None
    except (OSError, UnicodeDecodeError):
        return None


def choose_access(setting: str, environment: Mapping[str, str]) -> KubeAccess | None:
    """What `--kubernetes off|auto|PATH` means here; None: no API.

    `auto` is the pod's service account, and no API in a process that runs in no pod.
    """
    match setting:
        case "off":
            return None
        case "auto":
            return InCluster(environment=environment) if environment.get(HOST_VARIABLE) else None
        case path:
            return Kubeconfig(path=Path(path))


def choose_user_access(
    kubeconfig: str | None, context: str | None, environment: Mapping[str, str]
) -> KubeAccess | None:
    """Who a person at a command line is, in the order that kubectl has; None: nothing says so.

    The file that is named, those in KUBECONFIG, the one in the home directory; else the pod's service account.
    """
    home = environment.get("HOME")
    default = Path(home, ".kube", "config") if home else None
    named = kubeconfig or environment.get("KUBECONFIG")
    if named:
        return Kubeconfig(path=Path(named), context=context)  # several, with a colon between them, are merged
    if default is not None and default.exists():
        return Kubeconfig(path=default, context=context)
    if context is not None:
        return None  # a context is of a kubeconfig, and there is none
    return choose_access("auto", environment)
