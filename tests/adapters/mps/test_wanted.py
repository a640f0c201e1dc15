from __future__ import annotations

import json
from pathlib import Path

import pytest

from sharer.adapters.mps.wanted import WantedFromAgent
from sharer.core.errors import NodeError
from sharer.core.mps.state import MpsWanted

GPU = "nvidia.com/gpu.mps"
ONE = {"resource": GPU, "slices": {"GPU-a": ["GPU-a::mps-0"]}, "limitsMemory": True, "userId": None}
WANTED = {GPU: MpsWanted(resource=GPU, slices={"GPU-a": ("GPU-a::mps-0",)}, limits_memory=True)}


class Agent:
    """Answers with a report, or not at all."""

    def __init__(self) -> None:
        self.report: object = {"kind": "NodeReport", "status": {"x": 1}, "mps": [ONE]}

    def ask(self) -> bytes:
        if self.report is None:
            raise NodeError("no agent answers")
        return self.report if isinstance(self.report, bytes) else json.dumps(self.report).encode()


@pytest.fixture
def agent() -> Agent:
    return Agent()


def test_what_the_agent_wants_is_in_its_report(agent: Agent, tmp_path: Path) -> None:
    assert WantedFromAgent(tmp_path / "mps", agent.ask).read() == WANTED


@pytest.mark.parametrize(
    "report", [None, {"kind": "NodeReport"}, {"mps": None}, b"{", b"\xff", {"mps": [{"resource": 1}]}],
    ids=["silent", "older", "does not know yet", "cut", "bytes", "not understood"],
)  # fmt: skip
def test_without_an_answer_the_last_wishes_stay_also_for_the_next_supervisor(
    agent: Agent, tmp_path: Path, report: object
) -> None:
    source = WantedFromAgent(tmp_path, agent.ask)
    source.read()
    agent.report = report
    assert source.read() == WANTED
    assert WantedFromAgent(tmp_path, agent.ask).read() == WANTED


def test_nothing_wanted_is_news_and_is_kept(agent: Agent, tmp_path: Path) -> None:
    source = WantedFromAgent(tmp_path, agent.ask)
    source.read()
    agent.report = {"mps": []}
    assert source.read() == {}
    agent.report = None
    assert WantedFromAgent(tmp_path, agent.ask).read() == {}


def test_a_node_that_was_never_told_anything_wants_what_nobody_knows(agent: Agent, tmp_path: Path) -> None:
    agent.report = None
    assert WantedFromAgent(tmp_path, agent.ask).read() is None


@pytest.mark.parametrize("text", [b"", b"[{", b'{"a":1}', b"\xff"])
def test_a_damaged_memory_is_no_memory(agent: Agent, tmp_path: Path, text: bytes) -> None:
    (tmp_path / "wanted.json").write_bytes(text)
    agent.report = None
    assert WantedFromAgent(tmp_path, agent.ask).read() is None


def test_a_resource_without_slices_is_not_wanted(agent: Agent, tmp_path: Path) -> None:
    agent.report = {"mps": [{**ONE, "slices": {}}]}
    assert WantedFromAgent(tmp_path, agent.ask).read() == {}


def test_a_directory_that_cannot_be_written_costs_only_the_memory(agent: Agent, tmp_path: Path) -> None:
    (tmp_path / "mps").write_text("a file")
    assert WantedFromAgent(tmp_path / "mps", agent.ask).read() == WANTED
