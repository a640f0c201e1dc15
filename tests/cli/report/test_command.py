"""`sharer report` and `sharer policy plan --live`, against an agent's socket."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from sharer.adapters.documents import to_bytes
from sharer.adapters.local_socket import LocalSocket
from sharer.cli.report.command import WATCH_S, keep_showing
from sharer.core.change.rollout import PolicyInForce, refuse, stage
from sharer.core.errors import NodeError, SharerError
from sharer.core.holders.evidence import SourceStatus
from sharer.core.holders.findings import Finding, FindingKind
from sharer.core.known import Known
from sharer.core.mps.service import MpsService, MpsServices
from sharer.core.mps.state import MpsGpu, MpsInterface, MpsWanted
from sharer.core.policy.model import MemoryPolicy, Mig, Mps
from sharer.core.ports.policy import PolicyText
from sharer.core.quantities import GIB
from sharer.core.report.node import NodeReport
from tests.cli.running import Ran, run, write_policy
from tests.core.builders import gpu, gpu_uuid, mig, node, policy, rule, time_slicing
from tests.core.evidence import held, key, process, reading
from tests.core.nodes import known, report

PATIENCE_S = 60.0
HEALTHY = {"list": SourceStatus(read_s=999.0)}


@pytest.fixture
def run_dir() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="s-", dir="/tmp") as folder:
        yield Path(folder)


@contextlib.contextmanager
def answering(run_dir: Path, answer: Callable[[], bytes]) -> Iterator[None]:
    with contextlib.closing(LocalSocket(run_dir, answer)) as server:
        server.open()
        yield


def shown(run_dir: Path, what: Known, *arguments: str) -> Ran:
    """How `sharer report` shows a node."""
    with answering(run_dir, lambda: to_bytes(report(what))):
        return run("report", "--run-dir", run_dir, *arguments)


def busy() -> Known:
    """A node with one held slice of eight."""
    return known(
        node(gpu(0), gpu(1)),
        policy(time_slicing(4)),
        entries=held(key(2, 20480)),
        processes=reading(process("uid-1", 3 * GIB), asked=[gpu_uuid(0), gpu_uuid(1)]),
        sources=HEALTHY,
    )


def gpu_row(ran: Ran, index: int) -> list[str]:
    """The words of a GPU's line in the first table."""
    (line,) = [line for line in ran.out.splitlines() if line.startswith(f"{index}    NVIDIA")]
    return line.split()


# ---- the table


def test_the_table_shows_gpus_resources_and_who_holds_what(run_dir: Path) -> None:
    ran = shown(run_dir, busy())
    assert (ran.status, ran.err) == (0, "")
    assert ran.out.startswith("node-7: sharer 1.2.3, driver 580.95.05,")
    assert gpu_row(ran, 0)[6:] == ["4", "1", "3", "20", "GiB", "80", "GiB", "3", "GiB", "healthy"]
    assert ran.row("nvidia.com/gpu.shared") == ["nvidia.com/gpu.shared", "8", "1", "7", "0", "0", "0", "0"]
    assert ran.row("default/train-1") == [
        "0", "ts-2-20480", "held", "default/train-1", "c", "20", "GiB", "3", "GiB",
    ]  # fmt: skip


def test_what_is_not_known_is_a_word_and_never_zero(run_dir: Path) -> None:
    ran = shown(run_dir, replace(busy(), ledger=known(node(), entries=held(key(2, 20480))).ledger))
    assert ran.row("default/train-1")[-1] == "unknown"
    assert gpu_row(ran, 0)[-2:] == ["unknown", "healthy"]


def test_an_mps_daemon_is_shown_with_its_interface_and_what_its_limits_are_worth(run_dir: Path) -> None:
    name, uuid = "nvidia.com/gpu.mps", gpu_uuid(0)
    daemon = MpsService(
        interface=MpsInterface.LEGACY, gpus={uuid: MpsGpu(problem="a dead client lingers; restart MPS", clients=2)}
    )
    wanted = MpsWanted(resource=name, slices={uuid: (f"{uuid}::mps-0-40960-50",)}, limits_memory=True)
    what = known(
        node(gpu(0)),
        policy(rule(Mps(slices=2, slice_memory_bytes=None), resource=name)),
        sources=HEALTHY,
        mps=MpsServices(daemons={name: daemon}),
        mps_wanted=(wanted,),
    )
    ran = shown(run_dir, what)
    (line,) = [line for line in ran.out.splitlines() if line.startswith(name) and " v2 " in line]
    assert line.split(maxsplit=5) == [name, "v2", "0", "no", "2", "per process, not per container"]
    assert f"free slices of {name} on {uuid} are not given out: a dead client lingers; restart MPS" in ran.out


def test_too_many_holders_are_shown_as_zero_free_and_by_how_many_it_is_over(run_dir: Path) -> None:
    """P38."""
    every = [key(0, 81920, index=index) for index in range(8)]
    what = known(
        node(*(gpu(index) for index in range(8))),
        policy(time_slicing(1)),
        entries=held(*every),
        faults={gpu_uuid(3): "XID 79"},
        sources=HEALTHY,
    )
    ran = shown(run_dir, what)
    assert "  0, over by 1  " in ran.out
    assert f"GPU 3, {gpu_uuid(3)}: XID 79" in ran.out
    assert "-1" not in ran.out.replace("train-1", "")


def test_a_node_in_the_middle_of_a_re_cut_shows_what_drains_and_what_waits(run_dir: Path) -> None:
    """P08."""
    what = known(
        node(gpu(0)), policy(time_slicing(2)), policy(time_slicing(4)), entries=held(key(0, 40960)), sources=HEALTHY
    )
    ran = shown(run_dir, what)
    assert "held, draining for 3s" in ran.out
    assert "2 slices of the new cut wait for 1 of the old one" in ran.out
    wide = shown(run_dir, what, "-o", "wide")
    assert wide.row("ts-1-40960")[2] == "unhealthy"


def test_the_policy_refused_staged_and_not_read_are_shown_beside_the_one_in_force(run_dir: Path) -> None:
    """P05."""
    in_force = PolicyInForce(policy=replace(policy(), source="cm key a100"), digest="a" * 64, wanted_name="a10O")
    refused = shown(run_dir, replace(busy(), policy=refuse(in_force, "cm has no key 'a10O'")))
    assert "policy in force: cm key a100, aaaaaaaaaaaa (key a10O is wanted)\n" in refused.out
    assert "policy refused: cm has no key 'a10O'\n" in refused.out
    text = PolicyText(source="cm key default", text=b"", digest="b" * 64)
    staged = stage(in_force, policy(), text, "node-7", 500.0)
    ran = shown(run_dir, replace(busy(), policy=replace(staged, unread="it is away", waits_for="the label holds it")))
    assert "policy staged: cm key default, bbbbbbbbbbbb, takes effect at at 500" in ran.out
    assert "the label holds it" in ran.out
    assert "policy not read: it is away\n" in ran.out


def test_findings_are_shown_with_their_cure_and_warnings_once(run_dir: Path) -> None:
    leaked = Finding(kind=FindingKind.LEAKED, message="process 7 is left", cure="end it", pid=7)
    small = policy(rule(time_slicing(4), memory=MemoryPolicy(limit=100 * 2**20)))
    what = known(node(gpu(0)), small, findings=(leaked,), sources=HEALTHY)
    ran = shown(run_dir, what)
    assert "Findings:\n  leaked: process 7 is left. Cure: end it\n" in ran.out
    assert ran.out.count("process 7") == 1
    assert ran.out.count("are small") == 1


def test_a_gpu_that_offers_nothing_says_why(run_dir: Path) -> None:
    what = known(
        node(gpu(0, memory_mib=None)),
        policy(rule(time_slicing(2), memory=MemoryPolicy(limit=GIB))),
        sources=HEALTHY,
    )
    assert "Offers nothing:\n  GPU 0, " in shown(run_dir, what).out


def test_wide_adds_uuids_free_slices_processes_and_ages(run_dir: Path) -> None:
    ran = shown(run_dir, busy(), "-o", "wide")
    assert gpu_uuid(1) in ran.out
    assert ran.out.count("nobody holds it") == 7
    assert ran.row("7", "python")[:2] == ["0", "7"]
    assert ran.row("list", "s") == ["list", "1.0", "s", "-"]


def test_mig_devices_are_named_by_gpu_and_index(run_dir: Path) -> None:
    parent = gpu(0, mig_enabled=True, mig_devices=(mig(0, "1g.10gb"), mig(1, "2g.20gb")))
    ran = shown(run_dir, known(node(parent), policy(Mig()), sources=HEALTHY))
    assert "2g.20gb" in " ".join(ran.row("0:1"))


# ---- documents and exit codes


def test_json_and_yaml_are_the_node_report(run_dir: Path) -> None:
    document = shown(run_dir, busy(), "-o", "json").document()
    assert (document["apiVersion"], document["kind"]) == ("sharer.dev/v1alpha1", "NodeReport")
    assert document["status"]["resources"][0]["free"] == 7
    assert document["status"]["holders"][0]["usedBytes"] == 3 * GIB
    assert yaml.safe_load(shown(run_dir, busy(), "-o", "yaml").out) == document


def test_without_an_agent_one_sentence_names_the_socket_and_what_to_do(run_dir: Path) -> None:
    ran = run("report", "--run-dir", run_dir)
    assert (ran.status, ran.out) == (1, "")
    assert ran.err == (
        f"no agent answers on {run_dir}/sharer.sock: there is no such socket. Run this where the agent runs"
        " (kubectl exec), or name its --run-dir\n"
    )


def test_partial_data_is_shown_with_a_line_for_each_missing_source_and_status_3(run_dir: Path) -> None:
    missing = {"cgroups": SourceStatus(problem="they cannot be read"), "pods": SourceStatus()}
    for output in ("table", "json"):
        ran = shown(run_dir, replace(busy(), sources=missing), "-o", output)
        assert ran.status == 3
        assert ran.err == "missing: cgroups: they cannot be read\nmissing: pods: it was not read yet\n"
        assert "nvidia.com/gpu.shared" in ran.out


def test_a_run_dir_that_is_too_long_is_wrong_input() -> None:
    for flags in ([], ["--watch"]):
        assert run("report", "--run-dir", f"/{'x' * 110}", *flags).status == 2


def test_an_answer_that_is_no_report_is_said_to_be_another_version_s(run_dir: Path) -> None:
    for answer in (b"{}", b"\xff", b'{"apiVersion": "sharer.dev/v1alpha1", "kind": "NodeReport"}'):
        with answering(run_dir, lambda answer=answer: answer):  # type: ignore[misc]  # mypy: a lambda with a default
            ran = run("report", "--run-dir", run_dir)
        assert ran.status == 1
        assert "another version" in ran.err


def test_fields_of_a_newer_agent_do_no_harm(run_dir: Path) -> None:
    newer = to_bytes(report(busy())).replace(b'"metadata":{', b'"later":1,"metadata":{"later":[],', 1)
    with answering(run_dir, lambda: newer):
        assert run("report", "--run-dir", run_dir).status == 0


# ---- watching


def test_watching_goes_on_over_an_agent_s_restart_and_ends_with_ctrl_c() -> None:
    answers: list[NodeReport | SharerError] = [report(busy()), NodeError("no agent"), report(busy())]
    seen: list[NodeReport | SharerError] = []
    pauses: list[float] = []

    def read() -> NodeReport:
        answer = answers[len(seen)]
        if isinstance(answer, SharerError):
            raise answer
        return answer

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 3:
            raise KeyboardInterrupt

    keep_showing(read, seen.append, pause)
    assert seen == answers
    assert pauses == [WATCH_S] * 3


def test_ctrl_c_in_the_middle_of_an_import_is_a_good_end_too() -> None:
    """A dataclass is made by `exec`, and an interrupt that has gone through one is remembered after it was caught."""
    code = (
        "from sharer.cli.report.command import keep_showing\n"
        "keep_showing(lambda: exec('raise KeyboardInterrupt'), print, print)"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "\n", "")


@pytest.mark.parametrize(("output", "mark"), [("table", "node-7: sharer"), ("yaml", "---")])
def test_ctrl_c_is_a_good_end_of_watching(run_dir: Path, output: str, mark: str) -> None:
    with answering(run_dir, lambda: to_bytes(report(busy()))):
        watching = subprocess.Popen(
            [sys.executable, "-m", "sharer", "report", "--watch", "-o", output, "--run-dir", str(run_dir)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        with watching:
            assert watching.stdout is not None
            assert watching.stdout.readline().startswith(mark)
            watching.send_signal(signal.SIGINT)
            _, err = watching.communicate(timeout=PATIENCE_S)
    assert (watching.returncode, err) == (0, "")


# ---- policy plan --live


def planned(run_dir: Path, tmp_path: Path, what: Known, *arguments: str) -> Ran:
    with answering(run_dir, lambda: to_bytes(report(what))):
        return run("policy", "plan", write_policy(tmp_path, slices=8), "--live", "--run-dir", run_dir, *arguments)


def test_a_live_plan_shows_the_steps_and_the_pods_in_the_way(run_dir: Path, tmp_path: Path) -> None:
    ran = planned(run_dir, tmp_path, busy())
    assert ran.status == 0
    assert ran.out.startswith(f"{tmp_path}/policy.yaml on node-7, which takes it at once:\n")
    steps = [line.split()[:5] for line in ran.out.splitlines() if "nvidia.com/gpu.shared" in line]
    assert ["0s", "GPU", "0", "3", "nvidia.com/gpu.shared"] in steps
    assert ["4s", "GPU", "1", "8", "nvidia.com/gpu.shared"] in steps
    assert "default/train-1 (c): ts-2-20480 of GPU 0, held; slices wait for it" in ran.out


def test_a_live_plan_that_changes_nothing_says_so(run_dir: Path, tmp_path: Path) -> None:
    ran = planned(run_dir, tmp_path, known(node(gpu(0)), policy(time_slicing(8)), sources=HEALTHY))
    assert ran.out == f"{tmp_path}/policy.yaml changes nothing on node-7\n"


def test_a_live_plan_is_a_document_too(run_dir: Path, tmp_path: Path) -> None:
    document = planned(run_dir, tmp_path, busy(), "-o", "json").document()
    assert (document["kind"], document["node"]) == ("LivePlan", "node-7")
    assert document["inTheWay"][0]["pod"] == "train-1"


def test_a_live_plan_is_about_the_running_node_and_no_other(tmp_path: Path) -> None:
    ran = run("policy", "plan", write_policy(tmp_path, slices=8), "--live", "--gpus", "1xA100-80GB")
    assert ran.status == 2
    assert "--live is about this node as it is now" in ran.err
    nowhere = run("policy", "plan", write_policy(tmp_path, slices=8), "--live", "--run-dir", tmp_path)
    assert nowhere.status == 1
    assert "no agent answers" in nowhere.err
