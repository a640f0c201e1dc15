"""`sharer report` about a cluster, against the simulated API server. Golden tables lie beside, in golden/.

After a change that is meant: SHARER_GOLDEN=write python -m tests test tests/cli/report/test_cluster.py
"""

from __future__ import annotations

import contextlib
import csv
import io
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from sharer.adapters.documents import json_pieces, to_bytes, to_json, to_yaml, yaml_pieces
from sharer.adapters.local_socket import LocalSocket
from sharer.cli.cluster_access import open_cluster
from sharer.cli.completion import completions
from sharer.cli.group import sharer
from sharer.cli.options import Output
from sharer.cli.report.cluster import WATCH_S, Asked, read_report, watch_cluster
from sharer.cli.report.cluster_table import Style, print_cluster
from sharer.cli.show.progress import Progress
from sharer.core.cluster.report import ClusterReport
from sharer.core.errors import NodeError
from sharer.core.quantities import GIB
from sharer.core.report.node import NodeReport
from sharer.simulation.apiserver import GPU_NODE, KINDS, NODE, ApiServer, Fail, Hang
from tests.cli.fleet import LONG_AGO, NVIDIA, FleetServer, mixed, shared_node
from tests.cli.running import run
from tests.core.builders import gpu, gpu_uuid, node, policy, time_slicing
from tests.core.evidence import SHARED, process, reading
from tests.core.nodes import known, report
from tests.tasks import ROOT


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[FleetServer]:
    with ApiServer().start() as server:
        yield FleetServer(server, tmp_path)


def read(fleet: FleetServer, asked: Asked | None = None) -> ClusterReport:
    with open_cluster(str(fleet.kubeconfig), None) as client:
        return read_report(client, asked or Asked(output=Output.TABLE))


# ---- tables


def test_the_table_has_a_line_for_each_gpu_then_what_only_pods_tell_of_then_totals_and_notes(
    fleet: FleetServer,
) -> None:
    ran = mixed(fleet).report()
    assert (ran.status, ran.err) == (0, "")
    fleet.golden("cluster.txt", ran.out)


def test_wide_adds_the_resource_the_agent_the_uuid_and_every_holder(fleet: FleetServer) -> None:
    fleet.golden("cluster-wide.txt", mixed(fleet).report("-o", "wide").out)


LONG_NAMES = ("ip-10-0-123-45.eu-central-1.compute.internal", "gke-prod-cluster-a100-pool-7d3f9c2a-x8zp")


@pytest.mark.parametrize("width", [60, 80, 120, 200])
@pytest.mark.parametrize("used", [False, True])
def test_in_a_terminal_no_line_is_wider_than_it(
    fleet: FleetServer, capsys: pytest.CaptureFixture[str], width: int, used: bool
) -> None:
    for name in LONG_NAMES:
        mixed(fleet).add_node(name, {SHARED: 8})
        fleet.add_agent(name, shared_node(held_slices=3))
    print_cluster(read(fleet), Style(width=width, used=used))
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= width
    assert [line.split()[0] for line in lines if line.startswith(("NODE ", "RESOURCE "))] == [
        "NODE",
        "NODE",
        "RESOURCE",
    ]


@pytest.mark.parametrize("how", ["--no-color", "NO_COLOR"])
def test_colours_can_be_switched_off(fleet: FleetServer, monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    def shown(*arguments: str) -> str:
        command = ["report", "--kubeconfig", str(mixed(fleet).kubeconfig), *arguments]
        return CliRunner().invoke(sharer, command, color=True).stdout

    assert "\x1b[" in shown()
    if how == "NO_COLOR":
        monkeypatch.setenv(how, "1")
    assert "\x1b[" not in shown(*(["--no-color"] if how == "--no-color" else []))


def test_in_a_narrow_terminal_names_stay_apart_and_what_had_no_room_is_said(
    fleet: FleetServer, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in LONG_NAMES:
        mixed(fleet).add_node(name, {SHARED: 8})
        fleet.add_agent(name, shared_node(held_slices=3))
    print_cluster(read(fleet), Style(width=80))
    blocks = capsys.readouterr().out.split("\n\n")
    tables = [block for block in blocks if block.startswith(("NODE", "RESOURCE"))]
    assert "No room for PRODUCT, MEMORY, STRATEGY" in " ".join(blocks)
    fleet.golden("cluster-80.txt", "\n\n".join(tables) + "\n")


def test_text_from_a_node_cannot_steer_the_terminal(fleet: FleetServer) -> None:
    fleet.add_node("n", {SHARED: 8})
    evil = "XID\x1b[2J\x1b]0;owned\x07 79\nsecond line"
    fleet.add_agent("n", known(node(gpu(0, product=evil)), policy(time_slicing(4)), faults={gpu_uuid(0): evil}))
    for output in ("table", "wide"):
        out = fleet.report("-o", output).out
        assert set(out) - {"\n"} == {sign for sign in out if sign.isprintable()}
    assert "n: GPU 0: XID�[2J�]0;owned� 79\n    second line\n" in fleet.report().out


def test_without_gpunodes_the_report_says_what_pods_ask_for_and_what_it_cannot_know(tmp_path: Path) -> None:
    with ApiServer(kinds=[kind for kind in KINDS if kind is not GPU_NODE]).start() as server:
        fleet = FleetServer(server, tmp_path)
        fleet.add_node("old-1", {NVIDIA: 8}, labels={"nvidia.com/gpu.product": "Tesla-T4"})
        fleet.add_pod("train", "old-1", NVIDIA, 2)
        ran = fleet.report()
        assert (ran.status, ran.err) == (0, "")
        fleet.golden("cluster-without-gpunodes.txt", ran.out)


# ---- documents


def ageless(document: dict[str, object]) -> str:
    """A report as text, without what changes by the second."""
    text = json.dumps({**document, "observedAt": None}, sort_keys=True)
    return re.sub(r"\b(\d+[dhms])+\b", "…", text)


def test_json_is_the_whole_report_and_so_is_yaml(fleet: FleetServer) -> None:
    document = mixed(fleet).report("-o", "json").document()
    assert (document["apiVersion"], document["kind"]) == ("sharer.dev/v1alpha1", "ClusterReport")
    first = document["nodes"][0]
    assert (first["name"], first["gpus"][0]["holders"][0]["pod"]) == ("a100-1", "train-1")
    assert first["resources"][0]["requested"] == 3
    again = yaml.safe_load(fleet.report("-o", "yaml").out)
    assert ageless(again) == ageless(document)


def test_a_long_document_written_in_pieces_is_the_one_written_whole(fleet: FleetServer) -> None:
    whole = read(mixed(fleet))
    assert "".join(json_pieces(whole)) == to_json(whole)
    assert "".join(yaml_pieces(whole)) == to_yaml(whole)


def test_csv_has_a_line_for_each_gpu_and_each_resource_without_agent_and_nothing_for_unknown(
    fleet: FleetServer,
) -> None:
    rows = list(csv.DictReader(io.StringIO(mixed(fleet).report("-o", "csv").out)))
    assert [(row["node"], row["gpu"]) for row in rows][:3] == [("a100-1", "0"), ("a100-1", "1"), ("a100-2", "0")]
    (asked,) = [row for row in rows if row["node"] == "t4-1"]
    assert (asked["resource"], asked["requested"], asked["free"], asked["gpu"]) == (NVIDIA, "8", "0", "")
    assert rows[0]["usedBytes"] == ""


# ---- what is asked for


def test_labels_nodes_and_resources_narrow_what_is_shown_and_counted(fleet: FleetServer) -> None:
    mixed(fleet)
    fleet.add_node("l4-1", {NVIDIA: 2}, labels={"pool": "l4"})
    assert [one["name"] for one in fleet.report("-l", "pool=l4", "-o", "json").document()["nodes"]] == ["l4-1"]
    some = fleet.report("--node", "a100-*", "-o", "json").document()
    assert [one["name"] for one in some["nodes"]] == ["a100-1", "a100-2", "a100-3", "a100-10"]
    assert {one["resource"] for one in some["totals"]} == {SHARED}
    nvidia = fleet.report("--resource", NVIDIA, "-o", "json").document()
    assert [one["name"] for one in nvidia["nodes"]] == ["cpu-1", "l4-1", "t4-1"]


def test_one_node_by_its_name_asks_the_server_for_no_other(fleet: FleetServer) -> None:
    document = mixed(fleet).report("--node", "a100-2", "-o", "json").document()
    assert [one["name"] for one in document["nodes"]] == ["a100-2"]
    assert {request.query.get("fieldSelector", "").partition(",")[0] for request in fleet.server.requests("list")} == {
        "metadata.name=a100-2",
        "spec.nodeName=a100-2",
        "",  # the Leases of a namespace
    }


def test_a_resource_of_any_name_can_be_asked_for(fleet: FleetServer) -> None:
    fleet.add_node("n", {"example.com/fpga": 2})
    fleet.add_pod("p", "n", "example.com/fpga")
    assert fleet.report("-o", "json").document()["nodes"] == []
    (node,) = fleet.report("--resource", "example.com/*", "-o", "json").document()["nodes"]
    assert (node["resources"][0]["requested"], node["resources"][0]["free"]) == (1, 1)


def test_a_namespace_shows_its_own_holders_and_the_counts_of_everybody(fleet: FleetServer) -> None:
    mixed(fleet)
    document = fleet.report("-n", "team-b", "-o", "json").document()
    assert {one["name"] for one in document["nodes"]} == {"t4-1", "cpu-1"}
    assert {pod["namespace"] for one in document["nodes"] for pod in one["pods"]} == {"team-b"}
    assert SHARED in {one["resource"] for one in document["totals"]}


def test_lines_are_sorted_as_asked_and_equal_ones_stay_in_the_order_of_nodes(fleet: FleetServer) -> None:
    rows = list(csv.DictReader(io.StringIO(mixed(fleet).report("-o", "csv", "--sort-by", "free").out)))
    free = [int(row["free"]) for row in rows if row["gpu"]]
    assert free == sorted(free, reverse=True)
    assert [row["node"] for row in rows if row["gpu"] and row["free"] == "0"] == [
        "a100-2", "a100-2", "a100-3", "a100-3", "a100-10", "a100-10",
    ]  # fmt: skip


def test_a_context_that_is_named_is_the_one_that_is_asked(fleet: FleetServer) -> None:
    ran = mixed(fleet).report("--context", "nowhere")
    assert (ran.status, ran.out) == (1, "")
    assert "cannot be reached" in ran.err
    assert fleet.report("--context", "here").status == 0


@pytest.mark.parametrize("how", ["--kubeconfig", "KUBECONFIG"])
def test_a_kubeconfig_that_does_not_exist_is_wrong_input(monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    monkeypatch.setenv("KUBECONFIG", "/nowhere/one:/nowhere/two")
    ran = run("report", "--cluster", *(["--kubeconfig", "/nowhere/one"] if how == "--kubeconfig" else []))
    assert (ran.status, ran.out) == (2, "")
    assert ran.err.startswith("there is no kubeconfig /nowhere/one")


def test_a_kubeconfig_without_the_context_says_so(fleet: FleetServer) -> None:
    ran = fleet.report("--context", "elsewhere")
    assert ran.status == 2
    assert "elsewhere" in ran.err


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (None, "Is a directory"),
        (b"\xf5\x00", "it is not text in UTF-8"),
        (b"- 1\n", "it is not written as a kubeconfig is"),
        (b"kind: Config\n", "Expected key current-context in "),
    ],
)
def test_what_is_no_kubeconfig_is_wrong_input_and_said_without_words_of_python(
    tmp_path: Path, content: bytes | None, why: str
) -> None:
    path = tmp_path / "kubeconfig"
    path.mkdir() if content is None else path.write_bytes(content)
    for command in (["report", "--cluster"], ["doctor"], ["policy", "hold", "node-1"]):
        ran = run(*command, "--kubeconfig", path)
        assert (ran.status, ran.out) == (2, "")
        assert ran.err.startswith(f"the kubeconfig {path} cannot be used to reach the API server: {why}")


# ---- partial data


def test_what_may_not_be_listed_is_named_with_the_missing_rule_and_the_rest_is_shown_with_status_3(
    fleet: FleetServer,
) -> None:
    mixed(fleet)
    for plural, word in (("pods", "pods"), ("nodes", "nodes"), ("gpunodes", "gpunodes"), ("leases", "leases")):
        fleet.server.forbid("list", plural)
        ran = fleet.report("-o", "json")
        assert ran.status == 3
        (line,) = ran.err.splitlines()
        assert line.startswith(f"missing: {word}: sharer may not list {word}")
        assert "verbs: [list, watch]" in line
        assert ran.document()["missing"][0]["source"] == word
        fleet.server.allow("list", plural)


def test_without_pods_requested_is_unknown_and_not_zero(fleet: FleetServer) -> None:
    """Neighbour of P38: one of the two numbers could not be read."""
    mixed(fleet).server.forbid("list", "pods")
    document = fleet.report("-o", "json").document()
    t4 = next(one for one in document["nodes"] if one["name"] == "t4-1")
    assert (t4["resources"][0]["requested"], t4["resources"][0]["free"], document["fleet"]["pods"]) == (None,) * 3


def test_without_nodes_no_node_is_called_ready_or_gone(fleet: FleetServer) -> None:
    mixed(fleet).server.forbid("list", "nodes")
    nodes = fleet.report("-o", "json").document()["nodes"]
    assert {one["state"] for one in nodes} == {"unknown"}


def test_nothing_at_all_is_an_error_with_status_1(fleet: FleetServer) -> None:
    for plural in ("pods", "nodes", "gpunodes"):
        fleet.server.forbid("list", plural)
    ran = fleet.report()
    assert (ran.status, ran.out) == (1, "")
    assert "may not list" in ran.err


def test_a_gpunode_that_cannot_be_read_spoils_no_other(fleet: FleetServer) -> None:
    mixed(fleet).server.put(GPU_NODE, {"metadata": {"name": "a100-2"}, "status": {"gpus": "eight"}})
    ran = fleet.report("-o", "json")
    assert ran.status == 3
    assert "the GpuNode a100-2 cannot be read" in ran.err
    assert [one["agent"] for one in ran.document()["nodes"]][:2] == ["1.2.3", None]


@pytest.mark.parametrize(
    "status",
    [
        {"resources": [{"name": SHARED, "slices": 8, "held": 9, "free": -1}]},
        {"gpus": [{"uuid": "GPU-1", "free": -1}]},
        {"gpus": [{"uuid": "GPU-1", "promisedBytes": -1}]},
        {"holdersOmitted": -1},
        {"gpus": [{"index": 0}]},
        {"holders": [{"id": 7}]},
        [],
    ],
)
def test_a_gpunode_that_counts_below_zero_or_is_no_status_is_not_believed(fleet: FleetServer, status: object) -> None:
    """P38."""
    mixed(fleet).server.put(GPU_NODE, {"metadata": {"name": "a100-2"}, "status": status})
    ran = fleet.report("-o", "json")
    assert ran.status == 3
    assert ran.err.startswith("missing: gpunodes: the GpuNode a100-2 cannot be read")
    assert [one["agent"] for one in ran.document()["nodes"]][:2] == ["1.2.3", None]


def test_what_an_older_or_newer_agent_writes_is_read_as_far_as_it_goes(fleet: FleetServer) -> None:
    fleet.add_node("n", {SHARED: 4})
    little = {"gpus": [{"uuid": "GPU-1", "later": 1, "slices": 4, "free": 4, "resource": SHARED}], "later": {}}
    fleet.server.put(GPU_NODE, {"metadata": {"name": "n"}, "status": little})
    fleet.server.put(GPU_NODE, {"metadata": {"name": "m"}})  # its agent has told nothing yet
    (node,) = fleet.report("-o", "json").document()["nodes"]
    (gpu,) = node["gpus"]
    assert (gpu["health"], gpu["memoryBytes"], gpu["free"], gpu["gpuUuid"]) == ("unknown", None, 4, "GPU-1")


# ---- this node, or the cluster


@contextlib.contextmanager
def agent_on(run_dir: Path, name: str) -> Iterator[NodeReport]:
    what = report(
        shared_node(held_slices=1, processes=reading(process("uid-1", 3 * GIB), asked=[gpu_uuid(0), gpu_uuid(1)]))
    )
    answer = to_bytes(what).replace(b'"name":"node-7"', b'"name":"%b"' % name.encode())
    with contextlib.closing(LocalSocket(run_dir, lambda: answer)) as server:
        server.open()
        yield what


@pytest.fixture
def run_dir() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="s-", dir="/tmp") as folder:
        yield Path(folder)


def test_where_an_agent_answers_the_report_is_the_node_s_unless_an_option_means_the_cluster(
    fleet: FleetServer, run_dir: Path
) -> None:
    mixed(fleet)
    with agent_on(run_dir, "a100-1"):
        assert run("report", "--run-dir", run_dir, "-o", "json").document()["kind"] == "NodeReport"
        document = fleet.report("--run-dir", str(run_dir), "--cluster", "-o", "json").document()
    assert document["kind"] == "ClusterReport"


def test_live_shows_used_memory_of_the_node_it_runs_on_and_says_that_no_other_is_known(
    fleet: FleetServer, run_dir: Path
) -> None:
    mixed(fleet)
    with agent_on(run_dir, "a100-2"):
        document = fleet.report("--run-dir", str(run_dir), "--live", "-o", "json").document()
    used = {one["name"]: one["gpus"][0]["usedBytes"] for one in document["nodes"] if one["gpus"]}
    assert used == {"a100-1": None, "a100-2": 3 * GIB, "a100-3": None, "a100-10": None}
    assert "used memory on 3 of 7 nodes" in " ".join(document["unknown"])
    ran = fleet.report("--run-dir", str(run_dir), "--live")
    assert ran.status == 3
    assert "missing: live: no agent answers" in ran.err
    assert "USED" in ran.out


def test_where_neither_an_agent_nor_a_cluster_is_known_one_sentence_says_so(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("KUBECONFIG", "KUBERNETES_SERVICE_HOST"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(run_dir))
    ran = run("report", "--cluster")
    assert (ran.status, ran.out) == (2, "")
    assert ran.err.startswith("nothing says which cluster is meant")


def test_the_kubeconfig_is_the_one_that_kubectl_would_take(
    fleet: FleetServer, run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mixed(fleet)
    monkeypatch.setenv("KUBECONFIG", str(fleet.kubeconfig))
    assert run("report", "--cluster").status == 0
    monkeypatch.delenv("KUBECONFIG")
    (run_dir / ".kube").mkdir()
    (run_dir / ".kube" / "config").write_bytes(fleet.kubeconfig.read_bytes())
    monkeypatch.setenv("HOME", str(run_dir))
    assert run("report", "--cluster").status == 0


@pytest.mark.skipif(Path("/run/sharer").exists(), reason="an agent has run on this machine")
def test_without_any_option_it_is_the_cluster_where_no_agent_answers(
    fleet: FleetServer, run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SHARER_AGENT_RUN_DIR", raising=False)
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    monkeypatch.setenv("KUBECONFIG", str(mixed(fleet).kubeconfig))
    ran = run("report")
    assert (ran.status, ran.err) == (0, "")
    assert ran.out.startswith(fleet.server.url)
    monkeypatch.delenv("KUBECONFIG")
    monkeypatch.setenv("HOME", str(run_dir))
    alone = run("report")
    assert alone.status == 1
    assert "no agent answers" in alone.err
    assert "which cluster to ask instead" in alone.err


def test_labels_that_the_server_does_not_understand_show_nothing_rather_than_everything(fleet: FleetServer) -> None:
    ran = mixed(fleet).report("-l", "pool in (")
    assert (ran.status, ran.out) == (1, "")
    assert "which nodes have the labels 'pool in (' is not known" in ran.err


# ---- watching, progress, completion


def test_watching_goes_on_while_the_api_server_is_away_and_ends_with_ctrl_c(
    fleet: FleetServer, capsys: pytest.CaptureFixture[str]
) -> None:
    mixed(fleet)
    pauses: list[float] = []

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 1:
            fleet.server.stop()
        elif len(pauses) == 2:
            fleet.server.start()
        else:
            raise KeyboardInterrupt

    def no_agent() -> NodeReport:
        raise NodeError("none")

    watch_cluster(Asked(output=Output.TABLE, kubeconfig=str(fleet.kubeconfig)), no_agent, pause)
    out = capsys.readouterr().out
    assert out.count("RESOURCE  ") == 4  # twice the two tables that begin with or have it
    assert "cannot be reached" in out
    assert min(pauses) >= WATCH_S


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_what_takes_long_says_so_once_in_a_log_and_counts_on_in_a_terminal() -> None:
    log, terminal = io.StringIO(), Terminal()
    for stream in (log, terminal):
        with Progress("reading", stream, after_s=0.0) as progress:
            progress._timer.join()
            progress.tell("pods", 500)
    assert log.getvalue() == "reading …\n"
    assert terminal.getvalue().startswith("\rreading")
    assert terminal.getvalue().endswith("\r\x1b[K")


def test_ctrl_c_ends_a_report_at_once_whatever_the_server_does(fleet: FleetServer) -> None:
    mixed(fleet).server.fail_next(Hang(), verb="list", times=None)
    command = [sys.executable, "-m", "sharer", "report", "--kubeconfig", str(fleet.kubeconfig)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as asking:
        assert asking.stderr is not None
        assert asking.stderr.readline().startswith("reading http")
        asking.send_signal(signal.SIGINT)
        out, err = asking.communicate(timeout=20.0)  # a request is given 30 s
    assert (asking.returncode, out) == (1, "")
    assert "Traceback" not in err


def test_what_is_quick_shows_no_progress() -> None:
    stream = io.StringIO()
    with Progress("reading", stream, after_s=3600.0):
        pass
    assert stream.getvalue() == ""


def test_kubectl_is_told_what_could_follow(fleet: FleetServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBECONFIG", str(fleet.kubeconfig))
    assert completions(["report", "--sort-by", "la"]) == ["largest-free", ":4"]
    assert completions(["report", "--context", ""]) == ["here", "nowhere", ":4"]
    assert [line.partition("\t")[0] for line in completions([""])][:2] == ["agent", "devices"]
    assert completions(["policy", "plan", "pol"]) == [":0"]  # a file, which the shell knows best
    monkeypatch.delenv("KUBECONFIG")
    assert completions(["report", "--kubeconfig", str(fleet.kubeconfig), "--context", "no"]) == ["nowhere", ":4"]


def test_bash_completes_commands_options_and_their_values(fleet: FleetServer, tmp_path: Path) -> None:
    program = tmp_path / "sharer"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -c "from sharer.cli import main; main()" "$@"\n')
    program.chmod(0o755)
    script = r"""
    eval "$(_SHARER_COMPLETE=bash_source sharer)"
    complete -p sharer >/dev/null
    for line in "sharer rep" "sharer report --so" "sharer report --sort-by la" "sharer report --context no"; do
        read -ra COMP_WORDS <<< "$line"; COMP_CWORD=$((${#COMP_WORDS[@]} - 1)); COMPREPLY=()
        _sharer_completion sharer; echo "${COMPREPLY[*]}"
    done
    """
    done = subprocess.run(
        ["bash", "-ec", script], capture_output=True, text=True, check=True,
        env={**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT),
             "KUBECONFIG": str(fleet.kubeconfig)},
    )  # fmt: skip
    assert done.stdout.splitlines() == ["report", "--sort-by", "largest-free", "nowhere"]


def test_kubectl_sharer_calls_itself_so_and_takes_kubectl_s_flags(fleet: FleetServer) -> None:
    code = "from sharer.cli import main_of_kubectl as main; main()"
    arguments = ["report", "--kubeconfig", str(fleet.kubeconfig), "--context", "here", "-n", "team-b"]
    done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=True)
    assert done.stdout.startswith(fleet.server.url)
    shown = subprocess.run([sys.executable, "-c", code, "report", "--help"], capture_output=True, text=True, check=True)
    assert "Usage: kubectl sharer report" in shown.stdout


def test_a_report_of_a_cluster_needs_neither_grpc_nor_nvml_nor_the_models_of_kubernetes(fleet: FleetServer) -> None:
    """DESIGN §10."""
    code = (
        "import sys, atexit; from sharer.cli import main\n"
        "atexit.register(lambda: print(' '.join(sys.modules), file=sys.stderr))\nmain()"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, "report", "--kubeconfig", str(fleet.kubeconfig)],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    loaded = set(done.stderr.splitlines()[-1].split())
    assert loaded.isdisjoint({"grpc", "pynvml", "rich", "kubernetes.client.models.v1_pod"})


def test_a_server_that_throttles_is_waited_for_and_asked_once_a_page(fleet: FleetServer) -> None:
    """P33."""
    mixed(fleet)
    fleet.server.fail_next(Fail(code=429, retry_after_s=1), verb="list", resource="pods")
    assert fleet.report().status == 0
    counts = fleet.server.counts()
    assert counts[("list", "pods")] == 2
    assert counts[("list", "nodes")] == counts[("list", "gpunodes")] == counts[("list", "leases")] == 1


def test_agents_without_a_lease_are_silent_only_if_they_name_one(fleet: FleetServer) -> None:
    fleet.add_node("n", {SHARED: 8})
    fleet.add_agent("n", shared_node(), renewed=None)
    assert "there is no Lease sharer/n" in fleet.report().out
    stored = fleet.server.get(GPU_NODE, "n")
    assert stored is not None
    fleet.server.put(GPU_NODE, {**stored, "metadata": {"name": "n", "annotations": {}}})
    assert "whether the agents are alive: they name no Lease" in fleet.report().out
    fleet.add_agent("n", shared_node(), renewed=LONG_AGO)
    assert "renewed its Lease last at 2020" in fleet.report().out


def test_a_gpunode_without_a_node_is_shown_as_gone(fleet: FleetServer) -> None:
    fleet.add_agent("n", shared_node())
    fleet.server.put(NODE, {"metadata": {"name": "other"}})
    (node,) = fleet.report("-o", "json").document()["nodes"]
    assert (node["state"], node["takesPods"], node["gpus"][0]["free"]) == ("gone", False, 0)
