"""Files and objects that others write, damaged: each reader says what it found, or refuses in its own words."""

from __future__ import annotations

import datetime
import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sharer.adapters.documents import read_inventory, read_node_report, to_bytes
from sharer.adapters.injection.spec_format import Spec, SpecRefused, lowest_version, read_spec
from sharer.adapters.kube.calls import CONFIG_MAPS, NODES, PODS, Call
from sharer.adapters.kube.client import readable
from sharer.adapters.kube.errors import ApiError, refused
from sharer.adapters.kube.fleet import Lease, Node, lease_facts, node_facts
from sharer.adapters.kube.gpu_nodes import GpuNodeReader
from sharer.adapters.kube.pods import pod_seen
from sharer.adapters.kube.steering import config_map_seen, node_seen
from sharer.adapters.kube.wire import Bare, ConfigMap, Page, Pod, WatchEvent
from sharer.adapters.mps.state_text import from_text, to_text
from sharer.core.cluster.facts import GpuNodeFacts
from sharer.core.cluster.pod_asks import pod_ask
from sharer.core.errors import InputError
from sharer.core.mps.state import MpsGpu, MpsInterface, MpsState, why_not_served
from sharer.core.report.gpu_node import make_gpu_node
from sharer.core.report.inventory import report_inventory
from tests.core.builders import gpu, mig, node, policy, time_slicing
from tests.core.evidence import held, key
from tests.core.nodes import ABOUT, NOW_S, known, report
from tests.fuzz.mutations import DEEP, Json, altered, as_bytes, damaged

T = TypeVar("T")


def or_words(read: Callable[[], T], *, refuses: type[Exception]) -> T | None:
    """What is read; None if it is refused, in a sentence. Any other exception is a failure."""
    said = "it was read, so nothing is said"
    found = None
    try:
        found = read()
    except refuses as error:
        said = str(error)
    assert len(said.split()) >= 3, said
    return found


# -- CDI specs

SPEC: Json = {
    "cdiVersion": "0.7.0",
    "kind": "nvidia.com/gpu",
    "devices": [
        {
            "name": "GPU-a",
            "annotations": {"a": "b"},
            "containerEdits": {
                "env": ["A=b"],
                "deviceNodes": [{"path": "/dev/nvidia0", "hostPath": "/dev/nvidia0", "major": 195, "fileMode": 438}],
                "mounts": [{"hostPath": "/a", "containerPath": "/a", "options": ["ro"], "type": "bind"}],
                "hooks": [{"hookName": "poststart", "path": "/bin/x", "args": ["x"], "env": ["A=b"], "timeout": 1}],
                "additionalGids": [44],
            },
        }
    ],
    "containerEdits": {"deviceNodes": [{"path": "/dev/nvidiactl"}], "intelRdt": {"closID": "x"}},
}  # fmt: skip
SPEC_YAML = b"cdiVersion: 0.5.0\nkind: nvidia.com/gpu\ndevices:\n- name: '0'\n  containerEdits:\n    env: [A=b]\n    deviceNodes:\n    - {path: /dev/nvidia0, major: 0xc3, permissions: rw}\n"  # noqa: E501 - one text


def names_what_it_has(spec: Spec) -> None:
    for device in spec.devices or ():
        spec.needed_nodes(device)
    lowest_version(spec)


@given(damaged([as_bytes(SPEC), SPEC_YAML]) | altered([SPEC]).map(as_bytes))
def test_a_damaged_cdi_spec_is_read_or_refused_in_words(text: bytes) -> None:
    spec = or_words(lambda: read_spec(text), refuses=SpecRefused)
    if spec is not None:
        names_what_it_has(spec)


# -- what a supervisor of MPS daemons has written

STATE = MpsState(
    resource="nvidia.com/gpu.mps",
    written_at_s=1000.5,
    problem=None,
    interface=MpsInterface.NAMESPACES,
    gpus={"GPU-a": MpsGpu(problem="dead clients", clients=2), "GPU-b": MpsGpu()},
    namespaces={"GPU-a::mps-0": "/var/lib/sharer/mps/x/pipe/slices/mps_0"},
    shared_memory="/dev/shm",
    warnings=("a sign",),
)
FOLDER = "nvidia.com_gpu.mps"


@given(damaged([to_text(STATE)]) | altered([json.loads(to_text(STATE))]).map(as_bytes))
def test_a_damaged_state_of_an_mps_daemon_is_read_or_is_none(text: bytes) -> None:
    """A slice whose daemon says nothing that can be read is not served, and why is said."""
    found = from_text(text, FOLDER)
    if found is not None:
        assert found.resource == STATE.resource
        assert not math.isnan(found.written_at_s)
    for uuid in ("GPU-a", "GPU-b", "GPU-c"):
        reason = why_not_served(found, uuid, now_s=1001.0)
        assert reason is None or isinstance(reason, str)
    assert found is not None or why_not_served(found, "GPU-a", 1001.0)


# -- documents

WHAT = known(node(gpu(0), gpu(1)), policy(time_slicing(4)), entries=held(key(0, 20480), key(1, 20480)))
REPORT = json.loads(to_bytes(report(WHAT)))
INVENTORY = json.loads(to_bytes(report_inventory(node(gpu(0), gpu(1, mig_enabled=True)))))


@given(altered([REPORT]).map(as_bytes) | damaged([as_bytes(REPORT)]))
def test_a_damaged_report_of_an_agent_is_read_or_refused_in_words(text: bytes) -> None:
    or_words(lambda: read_node_report(text, "node.json"), refuses=InputError)


@given(altered([INVENTORY]).map(as_bytes) | damaged([as_bytes(INVENTORY)]))
def test_a_damaged_inventory_is_read_or_refused_in_words(text: bytes) -> None:
    or_words(lambda: read_inventory(text, "node.json"), refuses=InputError)


# -- objects of the API server

META: Json = {
    "name": "train", "uid": "u", "namespace": "default", "resourceVersion": "7", "labels": {"a": "b"},
    "annotations": {"kubernetes.io/config.mirror": "x", "sharer.dev/lease": "sharer/n"}, "deletionTimestamp": None,
}  # fmt: skip
CONTAINER: Json = {
    "name": "main",
    "resources": {"limits": {"nvidia.com/gpu.shared": "1", "cpu": "1"}},
    "restartPolicy": "Always",
}
OBJECTS: dict[str, Json] = {
    "Pod": {
        "metadata": META,
        "spec": {"nodeName": "n", "initContainers": [CONTAINER], "containers": [CONTAINER]},
        "status": {"phase": "Running", "containerStatuses": [{"name": "main", "containerID": "containerd://x"}]},
    },
    "Node": {
        "metadata": META,
        "spec": {"unschedulable": True},
        "status": {
            "capacity": {"nvidia.com/gpu": "8", "cpu": "1k"},
            "allocatable": {"nvidia.com/gpu": "8"},
            "conditions": [{"type": "Ready", "status": "False", "reason": "R", "message": "m"}],
        },
    },
    "ConfigMap": {"metadata": META, "data": {"default": "rules: []"}},
    "Lease": {"metadata": META, "spec": {"leaseDurationSeconds": 40, "renewTime": "2026-01-01T00:00:00.000000Z"}},
}


@dataclass(frozen=True)
class Kind:
    """How objects of a kind are decoded, and what is made of them."""

    call: Call
    page: msgspec.json.Decoder[Page[Any]]
    use: Callable[[Any], object]


def _lease(one: Lease) -> object:
    return lease_facts(one, datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC))


KINDS = {
    "Pod": Kind(Call(verb="list", resource=PODS), msgspec.json.Decoder(Page[Pod]), lambda one: pod_ask(pod_seen(one))),
    "Node": Kind(Call(verb="list", resource=NODES), msgspec.json.Decoder(Page[Node]), node_facts),
    "ConfigMap": Kind(Call(verb="list", resource=CONFIG_MAPS), msgspec.json.Decoder(Page[ConfigMap]), config_map_seen),
    "Lease": Kind(Call(verb="list", resource=NODES), msgspec.json.Decoder(Page[Lease]), _lease),
}


@given(st.sampled_from(sorted(KINDS)), st.data())
def test_a_damaged_list_of_the_api_server_is_read_or_an_api_error(kind: str, data: st.DataObject) -> None:
    page: Json = {"metadata": {"resourceVersion": "9", "continue": ""}, "items": [OBJECTS[kind]]}
    text = data.draw(altered([page]).map(as_bytes) | damaged([as_bytes(page)]))
    one = KINDS[kind]

    def read() -> list[object]:
        with readable(one.call):
            return list(one.page.decode(text).items or ())

    for item in or_words(read, refuses=ApiError) or ():
        one.use(item)


EVENT: Json = {"type": "MODIFIED", "object": OBJECTS["Node"]}


@given(altered([EVENT]).map(as_bytes) | damaged([as_bytes(EVENT)]))
def test_a_damaged_line_of_a_watch_is_read_or_an_api_error(line: bytes) -> None:
    call = KINDS["Node"].call

    def read() -> Bare:
        with readable(call):
            return msgspec.json.decode(msgspec.json.decode(line, type=WatchEvent).object, type=Bare)

    found = or_words(read, refuses=ApiError)
    if found is not None:
        node_seen(found)


STATUS: Json = {
    "kind": "Status", "status": "Failure", "message": "no", "reason": "Forbidden", "code": 403,
    "details": {"retryAfterSeconds": 1, "causes": [{"reason": "DisruptionBudget"}]},
}  # fmt: skip


@given(altered([STATUS]).map(as_bytes) | damaged([as_bytes(STATUS)]), st.sampled_from([400, 403, 409, 410, 429, 500]))
def test_a_refusal_whose_body_is_damaged_is_a_refusal_in_words(body: bytes, code: int) -> None:
    assert len(str(refused(KINDS["Pod"].call, code, {}, body)).split()) > 3


# -- the GpuNode

GPU_NODE: Json = {"metadata": META, "status": json.loads(
    json.dumps(make_gpu_node(WHAT, ABOUT, None, NOW_S, lambda at_s: f"at {at_s:g}").status_fields())
)}  # fmt: skip


def read_gpu_node(document: bytes) -> GpuNodeFacts | str | None:
    return GpuNodeReader().read(msgspec.Raw(document))


@given(altered([GPU_NODE]).map(as_bytes) | damaged([as_bytes(GPU_NODE)]))
def test_a_damaged_gpu_node_is_read_or_a_sentence(document: bytes) -> None:
    found = read_gpu_node(document)
    assert not isinstance(found, str) or len(found.split()) > 4


@given(st.integers(1, 3), st.integers(1, 6), st.integers(0, 18), st.booleans())
def test_what_an_agent_publishes_of_its_node_reads_back_equal(gpus: int, slices: int, holders: int, cut: bool) -> None:
    limit_mib = 81920 // slices // 256 * 256
    keys = [key(replica, limit_mib, index=index) for index in range(gpus) for replica in range(slices)][:holders]
    devices = [gpu(index) for index in range(gpus)]
    if cut:
        devices[0] = gpu(0, mig_enabled=True, mig_devices=(mig(1, "1g.10gb"),))
    what = known(node(*devices), policy(time_slicing(slices)), entries=held(*keys))
    published = make_gpu_node(what, ABOUT, None, NOW_S, lambda at_s: f"at {at_s:g}")
    found = read_gpu_node(as_bytes({"metadata": META, "status": json.loads(json.dumps(published.status_fields()))}))
    assert isinstance(found, GpuNodeFacts)
    status = published.status
    assert (found.gpus, found.holders, found.resources) == (status.gpus, status.holders, status.resources)
    assert (found.policy, found.node, found.warnings) == (status.policy, status.node, status.warnings)


# -- nesting that no recursion stands


def nested(document: bytes) -> bytes:
    return document.replace(b"{", b'{"unknown": ' + DEEP + b", ", 1)


@pytest.mark.parametrize(
    ("read", "document"),
    [
        (lambda text: or_words(lambda: read_spec(text), refuses=SpecRefused), as_bytes(SPEC)),
        (lambda text: from_text(text, FOLDER), to_text(STATE)),
        (lambda text: or_words(lambda: read_node_report(text, "n"), refuses=InputError), as_bytes(REPORT)),
        (lambda text: or_words(lambda: read_inventory(text, "n"), refuses=InputError), as_bytes(INVENTORY)),
        (read_gpu_node, as_bytes(GPU_NODE)),
        (lambda body: refused(KINDS["Pod"].call, 500, {}, body), as_bytes(STATUS)),
    ],
    ids=["cdi", "mps", "report", "inventory", "gpunode", "status"],
)
def test_a_hundred_thousand_brackets_are_refused_like_any_other_damage(
    read: Callable[[bytes], object], document: bytes
) -> None:
    read(nested(document))
    read(DEEP)
