"""Policies as people write them, right and wrong: refused in words, or planned and offered on every node."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sharer.adapters.yaml_text import read_policy_text
from sharer.core.device_id import DeviceId
from sharer.core.edits import DeviceFacts, DeviceNode, Injection, NodeFacts
from sharer.core.errors import PolicyError, Problem
from sharer.core.grant import make_grant
from sharer.core.injection import container_edits
from sharer.core.inventory import Inventory
from sharer.core.policy.list_size import MAX_LIST_BYTES
from sharer.core.policy.model import Policy
from sharer.core.policy.text import to_yaml
from sharer.core.quantities import MIB
from sharer.core.slices.placement import prefer
from sharer.core.slices.plan import make_plan
from tests.core.builders import gpu, mig, node
from tests.core.nodes import known, report
from tests.core.policies import HEAD
from tests.core.wire import worst_case_wire_bytes

UUID = "GPU-aaaaaaaa-0000-0000-0000-000000000000"  # of `gpu(0)`
SLICED = replace(gpu(2, mig_enabled=True), mig_devices=(mig(1, "1g.10gb"), mig(2, "1g.10gb+me"), mig(3, None)))
NODES: dict[str, Inventory] = {
    "none": node(),
    "two": node(gpu(0), gpu(1, memory_mib=23_034)),
    "unified": node(gpu(0, memory_mib=None)),
    "tiny": node(gpu(0, memory_mib=1)),
    "largest": node(gpu(0, memory_mib=16 * 2**20)),
    "old": node(gpu(0, compute_capability=(6, 1)), gpu(1, compute_capability=None)),
    "mig": node(SLICED, gpu(0)),
    "unknown mig": node(gpu(0, mig_enabled=None)),
    "lost": node(gpu(0, lost="fell off the bus"), gpu(1)),
}

# -- texts: the right words with right and wrong values

Values = dict[str, tuple[Sequence[str], Sequence[str]]]  # by key: right ones, and wrong ones

COUNTS = ["1", "2", "4", "48", "200"], ["0", "-1", "65535", "65536", "1.5", "'4'", "four", "1e3", "null", "[4]"]
AMOUNTS = ["10Gi", "1Mi", "512Mi", "20G", "1Ti", "0.5Gi"], ["10", "10GB", "-1Gi", "0Mi", "99999999Ti", "null"]
TIMES = ["10m", "1s", "0s", "1h30m", "99999d"], ["5", "5 m", "-1s", "null"]
VALUES: Values = {
    "match": (
        ["{}", "{product: '*A100*'}", "{memory: '>=40Gi'}", "{memory: '<1Gi', product: L4}", f"{{uuid: [{UUID}]}}"],
        ["{uuid: []}", "{memory: 40Gi}", "{products: x}", "null", "{product: '[a'}", "{migProfile: 1g.10gb}"],
    ),
    "resource": (
        ["nvidia.com/gpu", "nvidia.com/gpu.shared", "a.io/b"],
        ["gpu", "a/b/c", "nvidia.com/mig-{profile}", "é.io/x", "''"],
    ),
    "slices": COUNTS,
    "sliceMemory": AMOUNTS,
    "memory": (
        [
            "{}", "{limit: auto}", "{limit: none}", "{limit: 10Gi}", "{limit: auto, reserve: 512Mi}", "{reserve: 90Gi}",
            "{oversubscribe: 1.5}", "{limit: 10Gi, total: 16Gi}", "{total: 16Gi}", "{enforce: [driver, watch]}",
            "{enforce: [watch]}", "{required: true}", "{guarantee: true}", "{onExceed: evict, evictAfter: 5s}",
        ],
        [
            "{enforce: [mps]}", "{oversubscribe: 0.5}", "{limit: auto, required: true, enforce: [watch]}",
            "{total: 0Gi}", "{oversubscribe: .inf}", "{limits: auto}", "{enforce: []}",
        ],
    ),
    "compute": (["{percent: auto}", "{percent: none}", "{percent: 25}", "{}"], ["{percent: 101}", "{enforce: [x]}"]),
    "placement": (["packed", "spread"], ["random"]),
    "request": (["{max: 1}", "{max: 4}", "{max: none}"], ["{max: 0}"]),
}  # fmt: skip
STRATEGIES = ["time-slicing", "mps", "mig", "exclusive"], ["timeslicing", "null"]
REST: Values = {
    "health": (["{ignore: [13]}", "{transient: {xids: [94], recoverAfter: 5m}}", "{}"], ["{ignore: 94}"]),
    "quarantine": (["{timeout: 10m}"], ["{timeout: 5}"]),
    "drain": ([f"{{patience: {one}}}" for one in TIMES[0]], [f"{{patience: {one}}}" for one in TIMES[1]]),
    "rollout": (["{window: 10m}"], ["{window: -1s}"]),
    "rivals": (["withhold", "ignore"], ["x"]),
    "rules": (["[]"], ["[]"]),
}


def values(of: tuple[Sequence[str], Sequence[str]]) -> st.SearchStrategy[str]:
    """Mostly a right one."""
    right, wrong = of
    return st.integers(0, 19).flatmap(lambda dice: st.sampled_from(right if dice else wrong))


@st.composite
def mappings(draw: st.DrawFn, of: Values, most: int) -> list[tuple[str, str]]:
    keys = draw(st.lists(st.sampled_from(sorted(of)), max_size=most, unique=True))
    return [(key, draw(values(of[key]))) for key in keys]


@st.composite
def rules(draw: st.DrawFn) -> str:
    """A rule, with a strategy and what that needs unless it was forgotten."""
    found = dict(draw(mappings(VALUES, 3)))
    found.setdefault("match", "{}")
    found["strategy"] = strategy = draw(values(STRATEGIES))
    wants_slices = strategy in ("time-slicing", "mps")
    if wants_slices != bool({"slices", "sliceMemory"} & found.keys()) and draw(st.integers(0, 9)):
        if wants_slices:
            found["slices"] = draw(values(COUNTS))
        else:
            for key in ("slices", "sliceMemory"):
                found.pop(key, None)
    return f"{{{', '.join(f'{key}: {value}' for key, value in found.items())}}}"


@st.composite
def written(draw: st.DrawFn) -> str:
    """A policy of which much is right."""
    found = "".join(f"  - {one}\n" for one in draw(st.lists(rules(), min_size=1, max_size=3)))
    rest = "".join(
        f"{key}: {value}\n" for key, value in draw(mappings(REST, 1)) if key != "rules" or draw(st.booleans())
    )
    return f"{HEAD}rules:\n{found}{rest}"


NVIDIA: Values = {
    "flags": (
        ["{migStrategy: single}", "{migStrategy: mixed}", "{failOnInitError: true}"],
        ["{migStrategy: x}", "{plugin: {passDeviceSpecs: 4}}"],
    ),
    "sharing": (
        [
            f"{{{kind}: {{{more}resources: [{{name: nvidia.com/{name}, replicas: {count}}}]}}}}"
            for kind in ("timeSlicing", "mps")
            for more in ("", "renameByDefault: true, ", "failRequestsGreaterThanOne: true, ")
            for name in ("gpu", "mig-1g.10gb")
            for count in (2, 48)
        ],
        ["{timeslicing: {}}", "{timeSlicing: {resources: [{name: x, replicas: 0}]}}"],
    ),
    "resources": (["{gpus: [{pattern: '*', name: nvidia.com/gpu}]}", "{}"], ["{gpus: 4}"]),
}


@st.composite
def written_for_nvidia(draw: st.DrawFn) -> str:
    return "version: v1\n" + "".join(f"{key}: {value}\n" for key, value in draw(mappings(NVIDIA, 3)))


CONFIG = [path.read_text() for path in sorted((Path(__file__).parents[2] / "config").glob("*.yaml"))]


@st.composite
def lines_lost(draw: st.DrawFn) -> str:
    """An example policy without some of its lines, or with two of them in each other's place."""
    lines = draw(st.sampled_from(CONFIG)).splitlines(keepends=True)
    for _ in range(draw(st.integers(1, 3))):
        place, other = draw(st.integers(0, len(lines) - 1)), draw(st.integers(0, len(lines) - 1))
        if draw(st.booleans()):
            lines[place], lines[other] = lines[other], lines[place]
        elif len(lines) > 1:
            del lines[place]
    return "".join(lines)


# -- what is done with them


def read(text: str) -> Policy | None:
    """None: refused in words. Anything but PolicyError is a failure."""
    found: Policy | None = None
    problems: tuple[Problem, ...] = ()
    try:
        found = read_policy_text(text, "policy.yaml")
    except PolicyError as error:
        problems = error.problems
    assert (found is None) == bool(problems)
    assert all(problem.source == "policy.yaml" and problem.message for problem in problems)
    return found


def serve(policy: Policy, inventory: Inventory) -> None:
    """Plan it, offer it, report it, and give out its slices. Only one thing may be refused as late as this."""
    too_many = ""
    try:
        make_plan(inventory, policy)
    except PolicyError as error:
        too_many = str(error)
    if too_many:
        assert f"the kubelet receives at most {MAX_LIST_BYTES}" in too_many
        return
    what = known(inventory, policy)
    report(what)
    facts = NodeFacts(
        injection=(Injection.DEVICE_NODES,),
        devices={
            uuid: DeviceFacts(nodes=(DeviceNode("/dev/nvidia0", "/dev/nvidia0"),), cdi_name=None)
            for uuid in {one.id.uuid for one in what.plan.slices()}
        },
        shared_nodes=(),
    )
    promised: dict[str, int] = {}
    for resource, offer in what.offers.items():
        ids = sorted(offer.slices)
        assert worst_case_wire_bytes(ids) <= MAX_LIST_BYTES, f"{resource} is more than a kubelet takes"
        for size in {1, min(3, len(ids)), len(ids)} - {0}:
            chosen = prefer(offer.layout, offer.placement, ids, [], size)
            assert len(set(chosen)) == size
        if ids:
            few = [DeviceId.parse(one) for one in ids[:4]]
            container_edits(make_grant(few, facts.devices), facts, ())
        for one in map(DeviceId.parse, ids):
            promised[one.uuid] = promised.get(one.uuid, 0) + (one.limit_mib or 0)
    for each in inventory.gpus:
        rule = next((one for one in policy.rules if one.memory.oversubscribe > 1), None)
        if each.memory_bytes is not None and rule is None:
            assert promised.get(each.uuid, 0) * MIB <= each.memory_bytes


def try_everywhere(text: str) -> None:
    policy = read(text)
    if policy is None:
        return
    assert read(to_yaml(policy)) == policy, "what is printed for people is what was read"
    for inventory in NODES.values():
        serve(policy, inventory)


@given(written())
def test_a_policy_that_is_accepted_is_planned_offered_and_given_out_on_every_node(text: str) -> None:
    try_everywhere(text)


@given(written_for_nvidia())
def test_the_nvidia_plugins_file_is_refused_in_words_or_served(text: str) -> None:
    try_everywhere(text)


@given(lines_lost())
def test_an_example_with_lines_lost_is_refused_in_words_or_served(text: str) -> None:
    try_everywhere(text)


@pytest.mark.parametrize("name", NODES)
def test_every_example_is_served_on_every_node(name: str) -> None:
    for text in CONFIG:
        policy = read(text)
        if policy is not None:  # NVIDIA's own format is among them
            serve(policy, NODES[name])
