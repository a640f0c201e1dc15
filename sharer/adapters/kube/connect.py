"""The one place where the official client is imported, and what of ours is of no use without it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sharer.adapters.kube.access import KubeAccess

if TYPE_CHECKING:
    from sharer.adapters.kube.client import KubeClient
    from sharer.adapters.kube.timings import KubeTimings

USER_AGENT = "sharer-agent"


def connect(access: KubeAccess, timings: KubeTimings | None = None, *, user_agent: str = USER_AGENT) -> KubeClient:
    """Make a client. No request is sent and no file read: what is missing or wrong shows at the first request.

    The first call imports `kubernetes`, in one go; call it after the kubelet has registered us, so that the import
    delays no pod.
    """
    from sharer.adapters.kube.client import KubeClient
    from sharer.adapters.kube.timings import KubeTimings
    from sharer.adapters.kube.transport import Transport

    timings = timings or KubeTimings()
    return KubeClient(Transport(access, timings, user_agent), timings)
