"""The agent follows its MPS control daemons by their files, and gives out what they serve."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

import pytest

from sharer.adapters.mps import MpsDirectories, MpsStateFiles
from sharer.core.change.rollout import PolicyInForce
from sharer.core.edits import DeviceFacts, Injection, NodeFacts
from sharer.core.errors import RequestError
from sharer.core.holders.evidence import Evidence, SourceStatus
from sharer.core.holders.ledger import Entry, Ledger, State
from sharer.core.mps.service import BACK, NEVER_SERVED, STAYS_UP_S, MpsServices
from sharer.core.mps.state import MpsGpu, MpsInterface, MpsState, folder_name
from sharer.core.policy.model import Auto, ComputePolicy, Match, MemoryPolicy, Mps, Policy
from sharer.enforcers import ENFORCERS
from sharer.flows.inbox import Inbox
from sharer.flows.look.mps import MpsWatch
from sharer.flows.look.refresh import refresh
from sharer.flows.offer.allocate import Answers
from sharer.flows.offer.offer import offer
from sharer.flows.state import NodeState
from sharer.flows.tell.report import report
from tests.core.builders import gpu, gpu_uuid, node, policy, rule, time_slicing
from tests.core.evidence import checkpoint, holder, listed
from tests.core.nodes import ABOUT
from tests.flows.offer_lab import Kubelet, Specs

NAME = "nvidia.com/gpu.mps"
A, B, C = gpu_uuid(0), gpu_uuid(1), gpu_uuid(2)
EPOCH_S = 1_700_000_000.0
FACTS = NodeFacts(injection=(Injection.CDI,), devices={uuid: DeviceFacts(cdi_name=uuid) for uuid in (A, B, C)})


def mps_rule(*uuids: str, slices: int = 2, resource: str = NAME, memory: MemoryPolicy | None = None) -> Policy:
    made = rule(
        Mps(slices=slices, slice_memory_bytes=None),
        match=Match(uuids=uuids or None),
        resource=resource,
        memory=memory or MemoryPolicy(enforce=("driver", "mps", "watch")),
        compute=ComputePolicy(percent=Auto.AUTO),
    )
    return policy(made)


class MpsLab:
    """GPUs 0 and 1 on MPS, GPU 2 in time slices; the daemons' files in a folder; nobody holds anything."""

    def __init__(self, mps_dir: Path) -> None:
        self.mps_dir, self.now_s = mps_dir, 100.0
        self.files = MpsStateFiles(mps_dir, now_s=lambda: self.now_s, wall_s=lambda: EPOCH_S + self.now_s)
        self.state, self.kubelet, self.inbox = NodeState(), Kubelet(), Inbox()
        places = MpsDirectories(mps_dir)
        self.watch = MpsWatch(lambda: (self.files, places), wall_s=lambda: EPOCH_S + self.now_s)
        evidence = Evidence(listed=listed(serial=2), checkpoint=checkpoint(serial=2))
        self.state.change(
            inventory=node(gpu(0), gpu(1), gpu(2)),
            facts=FACTS,
            ledger=Ledger(evidence=evidence),
            sources={"checkpoint": SourceStatus(read_s=self.now_s)},
        )
        self.use(policy(*mps_rule(A, B).rules, time_slicing(2)))

    def use(self, wanted: Policy) -> None:
        self.state.change(policy=PolicyInForce(policy=wanted))

    def hold(self, *ids: str) -> None:
        owner = holder()
        entries = {(NAME, text): Entry(state=State.HELD, owner=owner) for text in ids}
        self.state.change(ledger=replace(self.state.view.ledger, entries=entries))

    def write(self, problem: str | None = None, **parts: object) -> None:
        """The supervisor writes what it sees now."""
        usual: dict[str, object] = {"interface": MpsInterface.LEGACY, "gpus": {A: MpsGpu(), B: MpsGpu()}}
        found = MpsState(resource=NAME, written_at_s=EPOCH_S + self.now_s, problem=problem, **(usual | parts))  # type: ignore[arg-type]
        (self.mps_dir / folder_name(NAME)).mkdir(parents=True, exist_ok=True)
        self.files.write(found)

    def step(self, after_s: float = 2.0) -> str | None:
        """One cycle of the daemon's loop."""
        self.now_s += after_s
        said = self.watch(self.state, self.now_s)
        offer(self.state, self.kubelet, Specs(), self.answers, self.now_s)
        return said

    def answers(self, resource: str = NAME) -> Answers:
        return Answers(self.state, resource, ENFORCERS, self.inbox.put, lambda resource, ids: None)

    def healthy(self, resource: str = NAME) -> list[str]:
        """The IDs that the kubelet was last shown Healthy."""
        return next(ids for name, ids in reversed(self.kubelet.lists) if name == resource)


def ids(*uuids: str, slices: int = 2) -> list[str]:
    return [f"{uuid}::mps-{n}-{81920 // slices}-{100 // slices}" for uuid in uuids for n in range(slices)]


@pytest.fixture
def lab() -> Iterator[MpsLab]:
    with tempfile.TemporaryDirectory(prefix="s-") as folder:  # short: a socket's path has at most 107 bytes
        yield MpsLab(Path(folder, "mps"))


def test_slices_are_listed_unhealthy_until_their_daemon_serves_and_then_at_once(lab: MpsLab) -> None:
    """P40: daemon not ready, slices unhealthy with the first error as the reason; other GPUs unaffected."""
    assert lab.step() == f"{NAME} is not served: {NEVER_SERVED}"
    assert lab.healthy() == []
    assert lab.healthy("nvidia.com/gpu.shared") == [f"{C}::ts-{n}-40960" for n in range(2)]
    lab.write("nvidia-cuda-mps-control cannot be started: no such file", interface=None, gpus={})
    assert "no such file" in (lab.step() or "")
    lab.write()
    speaks = f"the daemon of {NAME} speaks v2, with limits per process and not per container"
    assert lab.step() == f"{NAME} is served; {speaks}"
    assert lab.healthy() == ids(A, B)


def test_the_directory_of_a_daemon_exists_before_its_first_slice_is_listed(lab: MpsLab) -> None:
    """P40: the runtime makes a missing mount source in silence. Also after a reboot, before `sharer mps` has run."""
    lab.step()
    pipe = lab.mps_dir / folder_name(NAME) / "pipe"
    assert pipe.stat().st_mode & 0o777 == 0o755
    lab.write()
    lab.step()
    (mount,) = lab.answers().allocate(ids(A)[:1]).mounts
    assert mount.host_path == str(pipe)


def test_a_directory_that_cannot_be_made_is_why_slices_are_unhealthy(tmp_path: Path) -> None:
    """P40: missing, read-only, a full disk. Here somebody has put a file there."""
    (tmp_path / "mps").write_text("")
    lab = MpsLab(tmp_path / "mps")
    assert "cannot be used for MPS" in (lab.step() or "")
    assert lab.healthy() == []


def test_a_gpu_whose_daemon_cannot_serve_it_takes_no_other_along(lab: MpsLab) -> None:
    lab.write(gpus={A: MpsGpu(problem="a dead client lingers; restart MPS"), B: MpsGpu()})
    lab.step()
    assert lab.healthy() == ids(B)
    with pytest.raises(RequestError, match=r"cannot run as a client of MPS: a dead client lingers; restart MPS"):
        lab.answers().allocate(ids(A)[:1])
    assert dict(lab.answers().allocate(ids(B)[:1]).env)["CUDA_MPS_PIPE_DIRECTORY"] == "/run/sharer/mps"


def test_a_held_slice_stays_healthy_while_its_daemon_is_down_and_a_free_one_does_not(lab: MpsLab) -> None:
    """DESIGN §3: Unhealthy on a held ID has its crashed container rejected when the kubelet restarts."""
    lab.hold(ids(A)[0])
    lab.write()
    lab.step()
    lab.write("it crashed")
    lab.step()
    assert lab.healthy() == ids(A)[:1]


def test_slices_come_back_when_their_daemon_has_stayed_up_for_a_while(lab: MpsLab) -> None:
    lab.write()
    lab.step()
    lab.write("it crashed")
    lab.step()
    lab.write()
    assert lab.step() == f"{NAME} is not served: {BACK}"
    for _ in range(int(STAYS_UP_S / 2) - 1):
        lab.write()
        assert lab.step() is None
        assert lab.healthy() == []
    lab.write()
    assert lab.step() == f"{NAME} is served"
    assert lab.healthy() == ids(A, B)


def test_a_supervisor_that_is_silent_for_15_s_can_vouch_for_nothing(lab: MpsLab) -> None:
    lab.write()
    lab.step()
    assert lab.step(12.0) is None
    assert "nothing was heard of its MPS control daemon" in (lab.step() or "")
    assert lab.healthy() == []


def test_while_nothing_changes_nothing_is_worked_out(lab: MpsLab) -> None:
    """Idle CPU is measured; the supervisor writes every few seconds."""
    lab.write()
    lab.step()
    lab.step()
    view, lists = lab.state.view, len(lab.kubelet.lists)
    for _ in range(5):
        lab.write()
        assert lab.step() is None
    assert lab.state.view is view
    assert len(lab.kubelet.lists) == lists


def test_without_mps_in_the_policy_no_file_is_looked_for(lab: MpsLab) -> None:
    def open_mps() -> NoReturn:
        raise AssertionError("nobody asks for MPS")

    lab.use(policy(time_slicing(2)))
    assert MpsWatch(open_mps)(lab.state, 1.0) is None


def test_facts_that_are_read_anew_keep_the_way_to_the_daemons(lab: MpsLab) -> None:
    """Between two steps of the loop the kubelet may ask."""

    class Outside:
        def discover(self) -> object:
            return lab.state.view.inventory

        def read(self, inventory: object) -> NodeFacts:
            return replace(FACTS)

    lab.write()
    lab.step()
    before = lab.state.view.facts
    refresh(lab.state, Outside(), Outside())  # type: ignore[arg-type]  # both are asked one thing
    after = lab.state.view.facts
    assert before is not None
    assert after is not None
    assert after.devices[A].mps_pipe is not None
    assert after.devices == before.devices


def test_with_namespaces_each_container_gets_its_own_and_a_slice_without_one_waits(lab: MpsLab) -> None:
    first, second, *others = ids(A, B)
    place = lab.mps_dir / "spaces" / "zero"
    place.mkdir(parents=True)
    gone = str(lab.mps_dir / "spaces" / "gone")
    lab.write(interface=MpsInterface.NAMESPACES, namespaces={first: str(place), second: gone})
    lab.step()
    assert lab.healthy() == [first], "the others' directories are not there (yet)"
    (mount,) = lab.answers().allocate([first]).mounts
    assert mount.host_path == str(place)
    with pytest.raises(RequestError, match="has no namespace for this slice yet"):
        lab.answers().allocate(others[:1])


def test_slices_with_other_limits_share_the_gpu_with_held_ones_only_where_there_are_namespaces(lab: MpsLab) -> None:
    lab.use(mps_rule(A))
    held = ids(A)[0]
    lab.hold(held)
    lab.write(gpus={A: MpsGpu()})
    lab.step()
    lab.use(mps_rule(A, slices=4))
    lab.step(4.0)
    assert "one limit for all clients of a GPU" in lab.state.view.listing.waiting[A]
    new = ids(A, slices=4)
    spaces = {text: str(lab.mps_dir) for text in (held, *new)}
    lab.write(interface=MpsInterface.NAMESPACES, namespaces=spaces, gpus={A: MpsGpu()})
    lab.step()
    lab.step(4.0)
    assert set(lab.healthy()) == {held, *new[:2]}


def test_the_report_says_what_the_daemons_are_to_serve_and_what_they_do(lab: MpsLab) -> None:
    lab.write(
        interface_reason="the driver is older than r615",
        gpus={A: MpsGpu(clients=1), B: MpsGpu(problem="a dead client lingers", clients=0)},
        warnings=("clients failed together; restart MPS",),
    )
    lab.step()
    found = report(lab.state.view, ABOUT, lab.now_s, str)
    (mps,) = found.mps or ()
    assert (mps.resource, mps.limits_memory, mps.user_id) == (NAME, True, None)
    assert mps.slices == {A: tuple(ids(A)), B: tuple(ids(B))}
    assert (mps.interface, mps.interface_reason) == ("v2", "the driver is older than r615")
    assert mps.limits_are == "per process, not per container"
    assert {uuid: (gpu.problem, gpu.clients) for uuid, gpu in mps.gpus.items()} == {
        A: (None, 1),
        B: ("a dead client lingers", 0),
    }
    messages = [one.message for one in found.status.warnings if one.reason == "Mps"]
    assert messages == [
        f"free slices of {NAME} on {B} are not given out: a dead client lingers",
        f"{NAME}: clients failed together; restart MPS",
    ]
    (resource, *_) = [one for one in found.status.resources if one.name == NAME]
    assert (resource.free, resource.unhealthy) == (2, 2)
    assert {one.reason for one in found.slices if one.id in ids(B)} == {"it is not given out: a dead client lingers"}


def test_memory_that_the_driver_holds_is_not_the_daemon_s_to_limit(lab: MpsLab) -> None:
    lab.write()
    lab.state.change(enforcers={A: {"driver": None}, B: {"driver": None}})
    lab.step()
    (mps,) = report(lab.state.view, ABOUT, lab.now_s, str).mps or ()
    assert mps.limits_memory is False


def test_a_daemon_that_nobody_needs_any_more_is_forgotten(lab: MpsLab) -> None:
    lab.write()
    lab.step()
    lab.use(policy(time_slicing(2)))
    for _ in range(20):
        lab.step(10.0)
        listed, checkpoint = lab.state.view.ledger.evidence.listed, lab.state.view.ledger.evidence.checkpoint
        assert listed is not None
        assert checkpoint is not None
        evidence = replace(
            lab.state.view.ledger.evidence,
            listed=replace(listed, serial=listed.serial + 1),
            checkpoint=replace(checkpoint, serial=checkpoint.serial + 1),
        )
        lab.state.change(ledger=replace(lab.state.view.ledger, evidence=evidence))
    assert lab.state.view.mps.daemons == {}
    assert report(lab.state.view, ABOUT, lab.now_s, str).mps == ()


def test_what_the_daemons_are_to_serve_is_not_known_before_everything_is_listed_that_may_be_held(lab: MpsLab) -> None:
    """The supervisor ends a daemon that nobody wants, and its clients: an agent that starts must not say so."""

    def told() -> object:
        return report(lab.state.view, ABOUT, lab.now_s, str).mps

    assert told() is None
    lab.state.change(sources={"checkpoint": SourceStatus(problem="it is damaged")})
    lab.step()
    assert told() is None, "whom the kubelet has, nobody knows"
    lab.state.change(sources={"checkpoint": SourceStatus(read_s=lab.now_s)})
    assert told() is not None
    lab.state.change(policy=PolicyInForce())
    assert told() is None, "nor what is wanted"
    lab.use(policy(time_slicing(2)))
    lab.state.change(mps=MpsServices())
    assert told() == ()
