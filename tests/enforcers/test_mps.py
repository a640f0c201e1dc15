"""MPS clients get the pipe directory of their daemon, and their shares in MPS's own words."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sharer.core.device_id import DeviceId, Strategy
from sharer.core.edits import ContainerEdits, DeviceFacts, Injection, NodeFacts
from sharer.core.errors import RequestError
from sharer.core.grant import make_grant
from sharer.core.holders.evidence import GpuProcess
from sharer.core.limits.limits import ComputeBound, MemoryBound, Tenant
from sharer.core.limits.usage import NOT_KNOWN, Usage
from sharer.core.mps.service import NEVER_SERVED
from sharer.core.mps.state import MpsGpu, MpsInterface, MpsState
from sharer.core.policy.enforcers import Choice, Promise
from sharer.core.policy.model import MemoryPolicy
from sharer.core.quantities import GIB
from sharer.core.slices.cut import Target
from sharer.enforcers.mps import MpsEnforcer
from tests.core import evidence
from tests.core.builders import gpu, gpu_uuid, mig, node
from tests.enforcers.out_of_reach import NOTHING

A, B = gpu_uuid(0), gpu_uuid(1)
PIPE = "/var/lib/sharer/mps/nvidia.com_gpu.shared/pipe"


def facts(**pipes: str | None) -> NodeFacts:
    by_uuid = {"a": A, "b": B}
    devices = {by_uuid[name]: DeviceFacts(mps_pipe=pipe) for name, pipe in pipes.items()}
    return NodeFacts(injection=(Injection.CDI,), devices=devices)


def edits(node: NodeFacts, *texts: str) -> ContainerEdits:
    return MpsEnforcer.edits(make_grant(map(DeviceId.parse, texts), node.devices), node)


def facts_with_namespaces(namespaces: dict[str, str]) -> NodeFacts:
    return NodeFacts(injection=(Injection.CDI,), devices={A: DeviceFacts(mps_namespaces=namespaces)})


def limits_mib(given: ContainerEdits) -> dict[str, int]:
    """What MPS reads from the variable."""
    entries = [re.fullmatch(r"([^=]+)=([0-9]+)M", entry) for entry in dict(given.env)[LIMIT].split(",")]
    return {entry[1]: int(entry[2]) for entry in entries if entry}


LIMIT, PERCENT, DIRECTORY = (
    "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT",
    "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE",
    "CUDA_MPS_PIPE_DIRECTORY",
)


def test_one_gpu_on_mps_one_sliced_in_time_one_exclusive_only_the_first_meets_the_daemon() -> None:
    """Bug case P40: a pipe directory reached every container on its node, whether it wanted MPS or not."""
    node = facts(a=PIPE, b=PIPE)
    assert edits(node, f"{A}::mps-0-1024").mounts != ()
    assert edits(node, f"{B}::ts-0-1024") == ContainerEdits()
    assert edits(node, f"{B}::ex-0") == ContainerEdits()


def test_the_pipe_directory_and_the_variable_that_points_at_it_come_together() -> None:
    """Bug case P40, and never CUDA's default path, which CUDA looks at unasked."""
    given = edits(facts(a=PIPE), f"{A}::mps-0")
    (mount,) = given.mounts
    assert mount.host_path == PIPE
    assert dict(given.env) == {DIRECTORY: mount.container_path}
    assert mount.container_path != "/tmp/nvidia-mps"


def test_nobody_in_a_container_can_write_where_its_neighbours_find_the_daemon() -> None:
    """Threat 13: a socket of one's own there would be everybody's daemon. Neighbour of P40."""
    with_namespaces = facts_with_namespaces({f"{A}::mps-0": "/pipe/s/zero"})
    for where in (facts(a=PIPE), with_namespaces):
        assert [mount.read_only for mount in edits(where, f"{A}::mps-0").mounts] == [True]


def test_with_namespaces_a_container_is_given_its_own_and_nothing_else() -> None:
    """A neighbour's socket lies beside it; and the variable for memory could drop the namespace's limit."""
    node = facts_with_namespaces({f"{A}::mps-0-6144-25": "/pipe/s/zero", f"{A}::mps-1-6144-25": "/pipe/s/one"})
    given = edits(node, f"{A}::mps-1-6144-25")
    assert [(mount.container_path, mount.host_path) for mount in given.mounts] == [("/run/sharer/mps", "/pipe/s/one")]
    assert dict(given.env) == {DIRECTORY: "/run/sharer/mps"}
    with pytest.raises(RequestError, match=rf"{A}::mps-2-6144-25 cannot be shared by MPS: .* has a namespace for it"):
        edits(node, f"{A}::mps-2-6144-25")


def test_of_several_slices_a_container_comes_to_the_smallest_one_s_namespace() -> None:
    """The policy does not allow it; a pod may ask all the same, and must not get more than it was promised."""
    node = facts_with_namespaces({f"{A}::mps-0-6144-25": "/pipe/s/large", f"{A}::mps-1-1024-25": "/pipe/s/small"})
    (mount,) = edits(node, f"{A}::mps-0-6144-25", f"{A}::mps-1-1024-25").mounts
    assert mount.host_path == "/pipe/s/small"


def test_shared_memory_is_the_daemon_s_only_where_the_driver_needs_it() -> None:
    """gpu-limits §3: it lets tenants read each other's."""
    assert [mount.container_path for mount in edits(facts(a=PIPE), f"{A}::mps-0").mounts] == ["/run/sharer/mps"]
    node = replace(facts(a=PIPE), devices={A: DeviceFacts(mps_pipe=PIPE, mps_shm="/var/lib/sharer/mps/r/shm")})
    mounts = {mount.container_path: mount.host_path for mount in edits(node, f"{A}::mps-0").mounts}
    assert mounts == {"/run/sharer/mps": PIPE, "/dev/shm": "/var/lib/sharer/mps/r/shm"}


def test_memory_that_the_driver_holds_is_not_limited_by_mps_as_well() -> None:
    node = replace(facts(a=PIPE), devices={A: DeviceFacts(mps_pipe=PIPE, driver_limit=True)})
    assert dict(edits(node, f"{A}::mps-0-6144-25").env).keys() == {DIRECTORY, PERCENT}


def test_without_a_daemon_a_client_is_refused_rather_than_left_without_limits() -> None:
    for where in (facts(a=None), facts()):
        with pytest.raises(RequestError, match=rf"{A} cannot be shared by MPS: no MPS control daemon serves it"):
            edits(where, f"{A}::mps-0-1024")


def test_the_memory_limit_is_keyed_by_uuid_in_mib() -> None:
    """Bug cases P21, P22: numbers shift with the GPUs one sees, and a byte count with an M behind it held nobody."""
    given = edits(facts(a=PIPE, b=PIPE), f"{A}::mps-0-6144-25", f"{B}::mps-3-12288-25")
    assert limits_mib(given) == {A: 6144, B: 12288}


def test_a_48th_of_a_gpu_is_whole_mib_rounded_down() -> None:
    """Bug case P22."""
    assert limits_mib(edits(facts(a=PIPE), f"{A}::mps-47-1706-2")) == {A: 1706}


def test_several_slices_of_a_gpu_add_up_in_memory_and_in_sms() -> None:
    given = edits(facts(a=PIPE), f"{A}::mps-0-6144-25", f"{A}::mps-1-6144-25")
    assert limits_mib(given) == {A: 12288}
    assert dict(given.env)[PERCENT] == "50"


def test_a_process_has_one_thread_percentage_so_the_smallest_promise_holds() -> None:
    given = edits(facts(a=PIPE, b=PIPE), f"{A}::mps-0-1024-25", f"{B}::mps-0-1024-50")
    assert dict(given.env)[PERCENT] == "25"


def test_what_was_not_promised_is_not_limited() -> None:
    assert dict(edits(facts(a=PIPE), f"{A}::mps-0").env).keys() == {DIRECTORY}
    assert dict(edits(facts(a=PIPE), f"{A}::mps-0--25").env).keys() == {DIRECTORY, PERCENT}


def test_no_limit_names_a_gpu_that_the_container_does_not_hold() -> None:
    """One such entry makes a client drop all its limits (gpu-limits §3)."""
    assert limits_mib(edits(facts(a=PIPE, b=PIPE), f"{B}::mps-0-1024")).keys() == {B}


def test_a_gpu_outside_mps_cannot_be_in_a_client_s_container() -> None:
    with pytest.raises(RequestError, match=rf"could not use {B}"):
        edits(facts(a=PIPE, b=PIPE), f"{A}::mps-0-1024", f"{B}::ts-0-1024")


def test_gpus_of_two_daemons_cannot_be_in_one_container() -> None:
    with pytest.raises(RequestError, match="different MPS control daemons"):
        edits(facts(a=PIPE, b="/elsewhere"), f"{A}::mps-0-1024", f"{B}::mps-0-1024")


@given(limits=st.lists(st.integers(1, 10**6), min_size=1, max_size=48))
def test_limits_are_never_above_what_the_ids_promise(limits: list[int]) -> None:
    texts = [f"{A}::mps-{replica}-{limit}" for replica, limit in enumerate(limits)]
    assert limits_mib(edits(facts(a=PIPE), *texts)) == {A: sum(limits)}


SLICES = st.builds(
    DeviceId,
    uuid=st.sampled_from([A, B]),
    strategy=st.sampled_from([Strategy.MPS, Strategy.TIME_SLICING, Strategy.EXCLUSIVE]),
    replica=st.integers(0, 2),
    limit_mib=st.none() | st.integers(1, 10**5),
    percent=st.none() | st.integers(1, 100),
)
DEVICES = st.builds(
    DeviceFacts,
    mps_pipe=st.none() | st.sampled_from([PIPE, "/elsewhere"]),
    mps_namespaces=st.dictionaries(SLICES.map(str), st.sampled_from(["/n/one", "/n/two"]), max_size=3),
    mps_shm=st.none() | st.just("/shm"),
)


@given(held=st.lists(SLICES, min_size=1, max_size=4), devices=st.fixed_dictionaries({A: DEVICES, B: DEVICES}))
def test_whatever_a_container_holds_it_meets_one_daemon_with_both_mount_and_variable_or_none(
    held: list[DeviceId], devices: dict[str, DeviceFacts]
) -> None:
    """P40."""
    where = NodeFacts(injection=(Injection.CDI,), devices=devices)
    grant = make_grant(held, devices)
    try:
        given = MpsEnforcer.edits(grant, where)
    except RequestError:
        return
    wants = any(share.strategy is Strategy.MPS for share in grant.shares)
    ways = [mount.host_path for mount in given.mounts if mount.container_path == dict(given.env).get(DIRECTORY)]
    assert len(ways) == (1 if wants else 0)
    assert wants or given == ContainerEdits()
    spaces = {path for device in devices.values() for path in device.mps_namespaces.values()}
    assert not (set(ways) & spaces and LIMIT in dict(given.env)), "the variable could drop a namespace's limit"


# -- what was seen to hold


WALL_S = 1_700_000_000.0
MAIN_ID = "1" * 64


def daemon(
    problem: str | None = None, *, age_s: float = 1.0, interface: MpsInterface | None = MpsInterface.LEGACY
) -> MpsState:
    return MpsState(
        resource="r", written_at_s=WALL_S - age_s, problem=problem, interface=interface, gpus={A: MpsGpu(clients=1)}
    )


def enforcer(*states: MpsState) -> MpsEnforcer:
    reach = replace(NOTHING, mps=lambda: {state.resource: state for state in states})
    return MpsEnforcer(reach, wall_s=lambda: WALL_S)


def process(pid: int = 7, *, mps: bool | None = True, used_bytes: int | None = GIB, uuid: str = A) -> GpuProcess:
    return replace(evidence.process("p", used_bytes, on=uuid, pid=pid, container_id=MAIN_ID), is_mps_client=mps)


def tenant(container: str | None = "main", container_id: str | None = MAIN_ID) -> Tenant:
    choice = Choice(by="mps")
    memory = MemoryBound(uuid=A, at_least_bytes=GIB, at_most_bytes=GIB, policy=MemoryPolicy(), choice=choice)
    return Tenant(
        uid="p",
        container=container,
        container_id=container_id,
        held=frozenset({A}),
        memory=(memory,),
        compute=(ComputeBound(uuid=A, percent=25, choice=choice),),
    )


def problems(*processes: GpuProcess, state: MpsState | None = None, asked: bool = True) -> dict[Promise, str | None]:
    """Of the promises of a container with these processes; None: it is held."""
    reading = evidence.reading(*processes, asked=[A, B] if asked else [])
    main = tenant()
    verdicts = enforcer(state or daemon()).verify([main], Usage(reading, node(gpu(0), gpu(1))))
    return {promise: verdicts[main.key, promise, A].problem for promise in Promise}


def both(problem: str | None) -> dict[Promise, str | None]:
    return dict.fromkeys(Promise, problem)


def test_a_container_is_held_while_its_one_process_is_a_client_of_a_daemon_that_serves() -> None:
    assert problems(process()) == both(None)


@pytest.mark.parametrize(
    ("processes", "why"),
    [
        ((), "none of its processes has come to MPS yet"),
        ((process(mps=False),), "process 7 is on it and no MPS client, so nothing holds it"),
        ((process(), process(8, mps=False)), "process 8 is on it and no MPS client, so nothing holds it"),
        ((process(), process(8)), "it has several processes there, and each may use all of it: MPS counts per process"),
        ((process(mps=None),), "whether MPS holds all of its processes is not known: the driver does not list the"),
        ((process(), process(uuid=B)), f"it uses {B}, of which it holds nothing"),
    ],
)
def test_a_container_whose_processes_do_not_show_it_is_not_called_held(
    processes: tuple[GpuProcess, ...], why: str
) -> None:
    """A wrong pipe directory, a second process, an old driver: nothing is inferred from what was asked for."""
    found = problems(*processes)
    assert all(problem is not None and problem.startswith(why) for problem in found.values()), found


def test_a_container_above_its_memory_has_its_share_of_sms_all_the_same() -> None:
    found = problems(process(used_bytes=2 * GIB))
    assert found == {Promise.MEMORY: "it uses more than the 1 GiB it was promised", Promise.COMPUTE: None}


def test_a_daemon_that_does_not_serve_holds_nobody() -> None:
    assert problems(process(), state=daemon("it crashed")) == both("it crashed")
    stale = problems(process(), state=daemon(age_s=16.0))[Promise.MEMORY]
    assert stale is not None
    assert stale.startswith("nothing was heard of its MPS control daemon")


def test_where_processes_cannot_be_seen_nobody_is_called_held() -> None:
    assert all(why is not None and "there is no list of the processes" in why for why in problems(asked=False).values())
    nowhere = tenant(container_id=None)
    verdicts = enforcer(daemon()).verify([nowhere], Usage(None, None))
    assert {verdict.problem for verdict in verdicts.values()} == {NOT_KNOWN}


def test_a_pod_as_a_whole_has_no_limit_of_mps() -> None:
    assert enforcer(daemon()).verify([tenant(container=None)], Usage(None, None)) == {}


def test_a_daemon_that_has_answered_can_hold_its_gpus_whether_or_not_it_serves_just_now() -> None:
    """What holds a container must not change to and fro with a daemon that starts again."""
    whole, cut = Target(gpu=gpu(0), mig=None), Target(gpu=gpu(0, mig_enabled=True), mig=mig(1, "1g.10gb"))
    assert enforcer(daemon()).available(whole) is None
    assert enforcer(daemon("it crashed")).available(whole) is None
    assert enforcer(daemon("it is starting", interface=None)).available(whole) == "it is starting"
    assert enforcer(daemon()).available(Target(gpu=gpu(1), mig=None)) == NEVER_SERVED
    assert enforcer().available(whole) == NEVER_SERVED
    assert enforcer(daemon()).available(cut) == "MPS does not share MIG devices"


def test_that_a_limit_is_one_of_each_process_is_among_the_ways_out() -> None:
    assert "the limit is one of each process, not of the container" in MpsEnforcer.escapes
    assert (enforcer().apply([tenant()]), enforcer().release([tenant()])) == ({}, None)
