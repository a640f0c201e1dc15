"""The kubelet's podresources API: who holds what, in the kubelet's present view (kubelet-contract §12).

Its socket is made anew at every start of the kubelet, by rename; so the file tells which run of the kubelet answers,
and since when that runs. Each call has a connection of its own: an old one would go on asking a kubelet that is gone,
and in some runs one that is kept has gRPC's idle threads wake twice as often (15 ms of processor time in 30 s, against
1 ms that a new one costs).
"""

from __future__ import annotations

import itertools
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import grpc

from sharer.core.errors import AwayError, NodeError
from sharer.core.holders.evidence import Holder, ListReading, SliceKey
from sharer.core.values import dataclass

if TYPE_CHECKING:  # imported when the list is first asked for: an agent registers first
    from sharer.kubeletapi import podresources_pb2

DEADLINE_S = 2.0  # a kubelet answers in 2 to 8 ms; whoever asks has other things to do
MAX_ANSWER_BYTES = 64 * 2**20  # 250 pods with 2,000 slices make 0.2 MB; gRPC's own limit is 4 MiB
_OPTIONS = (
    ("grpc.use_local_subchannel_pool", 1),  # a channel must not inherit an old one's back-off (§16.5)
    ("grpc.max_receive_message_length", MAX_ANSWER_BYTES),
    ("grpc.http2.bdp_probe", 0),  # pings that measure a network: here is none, and each wakes idle threads of gRPC
)
_RATE_LIMITED = "rejected by rate limit"  # gRPC itself has the same status for an answer that is too large

Identity = tuple[int, int, int]
"""Device, inode and time of change: inode numbers come back (kubelet-contract §22)."""


@dataclass(frozen=True, slots=True)
class _Kubelet:
    """One run of the kubelet, as its socket shows it."""

    socket: Identity
    started_s: float  # on the monotonic clock


class PodResources:
    """Asks `List`. Implements core.ports.holders.ListSource."""

    def __init__(
        self,
        socket: Path,
        *,
        deadline_s: float = DEADLINE_S,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        """`wall_clock` is that of file times: how old a socket is when it is first seen."""
        self._path = socket
        self._deadline_s = deadline_s
        self._clock, self._wall_clock = clock, wall_clock
        self._serials = itertools.count(1)
        self._kubelet: _Kubelet | None = None

    def read(self) -> ListReading:
        """Who holds what now. Raises NodeError if the kubelet does not say: that is no news, never "nobody"."""
        from sharer.kubeletapi import podresources_pb2, podresources_pb2_grpc

        kubelet = self._look()
        try:
            with grpc.insecure_channel(f"unix:{self._path}", options=_OPTIONS) as channel:
                lister = podresources_pb2_grpc.PodResourcesListerStub(channel)
                answer = lister.List(podresources_pb2.ListPodResourcesRequest(), timeout=self._deadline_s)
        except grpc.RpcError as error:
            kind = AwayError if error.code() is grpc.StatusCode.UNAVAILABLE else NodeError
            raise kind(f"the kubelet does not list pod resources at {self._path}: {_why(error)}") from error
        return _reading(next(self._serials), answer, self._clock() - kubelet.started_s)

    def _look(self) -> _Kubelet:
        """Which run of the kubelet is there, and since when."""
        try:
            status = os.stat(self._path)
        except OSError as error:
            raise AwayError(
                f"the kubelet's socket {self._path} is not there ({os.strerror(error.errno or 0)}): it does not run, or"
                " the flag --pod-resources-socket names another place than its --root-dir"
            ) from error
        socket = (status.st_dev, status.st_ino, status.st_ctime_ns)
        if self._kubelet is None or self._kubelet.socket != socket:
            age_s = max(0.0, self._wall_clock() - status.st_mtime)  # a clock that was set back: it has just started
            self._kubelet = _Kubelet(socket, self._clock() - age_s)
        return self._kubelet


def _why(error: grpc.RpcError) -> str:
    """The reason in words."""
    details = error.details() or str(error.code())
    if error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED and _RATE_LIMITED in details:
        return "other clients use up its rate limit of 100 calls a second"
    return details


def _reading(serial: int, answer: podresources_pb2.ListPodResourcesResponse, age_s: float) -> ListReading:
    """One holder per slice. A device on two NUMA nodes has two rows, and a kubelet may repeat a pod."""
    holders: dict[SliceKey, Holder] = {}
    names: set[tuple[str, str]] = set()
    for pod in answer.pod_resources:
        name = (sys.intern(pod.namespace), sys.intern(pod.name))  # each access makes another text
        names.add(name)
        for container in pod.containers:
            holder = Holder(uid=None, namespace=name[0], pod=name[1], container=sys.intern(container.name))
            for row in container.devices:
                for device_id in row.device_ids:
                    key = (sys.intern(row.resource_name), sys.intern(device_id))  # as the checkpoint's readers do
                    holders.setdefault(key, holder)
    return ListReading(serial=serial, holders=holders, pods=frozenset(names), kubelet_age_s=age_s)
