"""Every metric that an agent publishes: its name, kind and labels, and what it means (DESIGN §8).

Labels are bounded: by the node's GPUs and resources, or by a list that stands here. Only the metrics with a `pod` label
grow with what people run; they exist for present holders alone, at most `MOST_HOLDERS` of them, and end with the pod.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from sharer.core.values import dataclass


class MetricKind(StrEnum):
    """What may be done with the numbers."""

    GAUGE = "gauge"
    COUNTER = "counter"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """One name, without its values."""

    name: str  # as it is scraped: a counter's ends in _total
    kind: MetricKind
    labels: tuple[str, ...] = ()
    meaning: str  # one sentence, with the unit where the name does not say it


Labels = tuple[str, ...]
"""The values of a metric's labels, in its order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """A gauge or counter with its values at one moment. What is not known has no value; it is never 0."""

    metric: Metric
    values: Mapping[Labels, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Durations:
    """How long something took, counted by size."""

    counts: tuple[int, ...]  # up to each of the bounds and above the one before; the last: above them all
    sum_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Histogram:
    """A histogram at one moment."""

    metric: Metric
    bounds_s: tuple[float, ...]
    durations: Mapping[Labels, Durations]


MOST_HOLDERS = 1000  # with series of their own; a node has at most some 250 pods
HOLDER = ("gpu", "namespace", "pod", "container")
NOBODY = "none"  # as enforcer: nothing holds the limit

_GAUGE, _COUNTER, _HISTOGRAM = MetricKind.GAUGE, MetricKind.COUNTER, MetricKind.HISTOGRAM

SLICES = Metric(
    name="sharer_slices", kind=_GAUGE, labels=("resource", "gpu", "state"),
    meaning="Slices of a GPU or MIG device, each counted once, by what they are",
)  # fmt: skip
SLICE_HELD = Metric(
    name="sharer_slice_held", kind=_GAUGE, labels=("resource", "slice", *HOLDER),
    meaning="1 for each slice that a container holds, with a promise or without: whose it is",
)  # fmt: skip
SLICE_PROMISE = Metric(
    name="sharer_slice_promise_bytes", kind=_GAUGE,
    labels=("resource", "slice", *HOLDER),
    meaning="Memory promised by a slice to the container that holds it",
)  # fmt: skip
CONTAINER_USED = Metric(
    name="sharer_container_used_bytes", kind=_GAUGE, labels=HOLDER,
    meaning="GPU memory that a container uses, where the processes can be told apart",
)  # fmt: skip
LIMIT_VERIFIED = Metric(
    name="sharer_container_limit_verified", kind=_GAUGE, labels=(*HOLDER, "enforcer"),
    meaning="1 if the container was seen held to its promised memory, by that enforcer; 0, by none, if it was not",
)  # fmt: skip
MPS_SERVING = Metric(
    name="sharer_mps_serving", kind=_GAUGE, labels=("resource", "gpu"),
    meaning="1 if the MPS control daemon serves the slices of this GPU; 0: they are withheld until it does",
)  # fmt: skip
LIMITS_RESTORED = Metric(
    name="sharer_limits_restored_total", kind=_COUNTER,
    meaning="Limits that somebody else had changed, and that were set again",
)  # fmt: skip
HOLDERS_OMITTED = Metric(
    name="sharer_holders_omitted", kind=_GAUGE,
    meaning=f"Held slices without series of their own, because there are more than {MOST_HOLDERS}",
)  # fmt: skip
QUARANTINE_AGE = Metric(
    name="sharer_quarantine_age_seconds", kind=_GAUGE, labels=("resource", "gpu"),
    meaning="For how long the oldest quarantined slice of the device has waited for an ended owner's remains; 0: none",
)  # fmt: skip
GPU_INFO = Metric(
    name="sharer_gpu_info", kind=_GAUGE, labels=("gpu", "physical_gpu", "index", "product", "mig_profile"),
    meaning="1 for each GPU without MIG devices and each MIG device: what it is",
)  # fmt: skip
GPU_HEALTHY = Metric(
    name="sharer_gpu_healthy", kind=_GAUGE, labels=("gpu",),
    meaning="1 if nothing is known against the GPU or MIG device; 0 if it is at fault, or its driver does not answer",
)  # fmt: skip
REGISTERED = Metric(
    name="sharer_resource_registered", kind=_GAUGE, labels=("resource",),
    meaning="1 if the kubelet has accepted the resource and reads its list",
)  # fmt: skip
KUBELET_REQUESTS = Metric(
    name="sharer_kubelet_requests_total", kind=_COUNTER, labels=("method", "code"),
    meaning="Requests of the kubelet that were answered, by gRPC code; a stream counts when it opens",
)  # fmt: skip
KUBELET_SECONDS = Metric(
    name="sharer_kubelet_request_seconds", kind=_HISTOGRAM, labels=("method",),
    meaning="How long the kubelet's requests took to answer, without gRPC's own share",
)  # fmt: skip
REGISTRATIONS = Metric(
    name="sharer_registrations_total", kind=_COUNTER, labels=("resource", "result"),
    meaning="Register calls to the kubelet that have ended, by gRPC code",
)  # fmt: skip
POLICY_INFO = Metric(
    name="sharer_policy_info", kind=_GAUGE, labels=("wanted", "in_force"),
    meaning="1, with the first 12 digits of the SHA-256 of the policy's text that is wanted and that is in force",
)  # fmt: skip
POLICY_REFUSED = Metric(
    name="sharer_policy_refused", kind=_GAUGE,
    meaning="1 if the policy that is wanted cannot be taken, so that an older one stays in force",
)  # fmt: skip
LAST_SYNC = Metric(
    name="sharer_last_sync_seconds", kind=_GAUGE, labels=("source",),
    meaning="Seconds since a source was last read; since the agent's start if it never was",
)  # fmt: skip
API_ERRORS = Metric(
    name="sharer_api_errors_total", kind=_COUNTER, labels=("verb", "code"),
    meaning="Requests to the API server that failed, by HTTP status, or none",
)  # fmt: skip
EVICTIONS = Metric(
    name="sharer_evictions_total", kind=_COUNTER, labels=("outcome",),
    meaning="Tries to evict pods that stayed above their promise, by what came of them",
)  # fmt: skip
EVENTS = Metric(
    name="sharer_events_total", kind=_COUNTER, labels=("reason", "result"),
    meaning="Events for the API server: sent, failed, or suppressed because they were over before their turn came",
)  # fmt: skip
FINDINGS = Metric(
    name="sharer_process_findings", kind=_GAUGE, labels=("kind",),
    meaning="Things that are not as they should be on this node's GPUs",
)  # fmt: skip
PAUSED = Metric(
    name="sharer_paused", kind=_GAUGE,
    meaning="1 while a label of the node has us let go of the driver",
)  # fmt: skip
AGENT_INFO = Metric(
    name="sharer_agent_info", kind=_GAUGE, labels=("version", "driver"),
    meaning="1, with the versions of the agent and of the NVIDIA driver",
)  # fmt: skip

METRICS = (
    SLICES, SLICE_HELD, SLICE_PROMISE, CONTAINER_USED, LIMIT_VERIFIED, HOLDERS_OMITTED, LIMITS_RESTORED, MPS_SERVING,
    QUARANTINE_AGE, GPU_INFO, GPU_HEALTHY, REGISTERED, KUBELET_REQUESTS, KUBELET_SECONDS, REGISTRATIONS, API_ERRORS,
    EVICTIONS, EVENTS, POLICY_INFO, POLICY_REFUSED, LAST_SYNC, FINDINGS, PAUSED, AGENT_INFO,
)  # fmt: skip
"""All of them, in the order in which they are published."""
