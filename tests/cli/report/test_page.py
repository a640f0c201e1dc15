"""`sharer report --html`: what is in the page, and how the command behaves.

test_picture.py looks at it in a browser.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import html.parser
import json
import re
import tempfile
import zlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sharer.adapters.documents import compact_pieces, to_bytes, to_json
from sharer.adapters.local_socket import LocalSocket
from sharer.cli.report.picture import of_one_node, page_pieces
from sharer.core.holders.evidence import SourceStatus
from sharer.simulation.apiserver import ApiServer, Fail
from tests.cli.fleet import FleetServer, mixed, shared_node
from tests.cli.report.page import HOSTILE, every_state, hostile
from tests.cli.running import run
from tests.core.evidence import SHARED
from tests.core.nodes import report


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[FleetServer]:
    with ApiServer().start() as server:
        yield FleetServer(server, tmp_path)


@pytest.fixture
def run_dir() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="s-") as folder:
        yield Path(folder)


def page(**parts: Any) -> str:  # Any: of a ClusterReport
    return "".join(page_pieces(replace(every_state(), **parts), "sharer report --html x.html"))


def carried(text: str) -> Any:  # Any: JSON
    """The document in a page."""
    (packed,) = re.findall(r'<script type="application/octet-stream" id="data">([A-Za-z0-9+/=]+)</script>', text)
    return json.loads(zlib.decompress(base64.b64decode(packed, validate=True), wbits=31))


class Tags(html.parser.HTMLParser):
    """Which elements a page has, and their attributes."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs


# ---- the page


def test_the_page_carries_the_document_that_is_printed_as_json() -> None:
    assert carried(page()) == json.loads(to_bytes(every_state()))


def test_a_document_written_in_compact_pieces_is_the_one_written_whole() -> None:
    empty = replace(every_state(), nodes=(), notes=())
    for document in (every_state(), hostile(every_state()), empty, report(shared_node(held_slices=2))):
        pieces = b"".join(compact_pieces(document))
        assert pieces == to_bytes(document)
        fields, whole = (json.loads(text, object_pairs_hook=list) for text in (pieces, to_json(document)))
        assert fields == whole


def test_the_same_report_is_the_same_page() -> None:
    assert page() == page()


def test_the_page_refers_to_nothing_beside_itself() -> None:
    tags = Tags(page())
    assert {"src", "srcset", "action", "style", "data"}.isdisjoint(name for name, _ in tags.attributes)
    assert [value for name, value in tags.attributes if name == "href"] == ["#fleet"]
    assert "link" not in tags.tags
    style, script = (re.findall(rf"<{tag}>(.*?)</{tag}>", page(), re.DOTALL)[0] for tag in ("style", "script"))
    assert re.findall(r"@import|url\(|innerHTML|outerHTML|insertAdjacent|document\.write|eval\(", style + script) == []


def test_the_content_policy_allows_this_script_and_this_style_by_their_hashes_and_nothing_else() -> None:
    text = page()
    (policy,) = (value for name, value in Tags(text).attributes if name == "content" and "default-src" in (value or ""))
    hashes = {}
    for tag in ("style", "script"):
        (content,) = re.findall(rf"<{tag}>(.*?)</{tag}>", text, re.DOTALL)
        hashes[tag] = "sha256-" + base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
    assert policy == (
        f"default-src 'none'; script-src '{hashes['script']}'; style-src '{hashes['style']}'; base-uri 'none';"
        " form-action 'none'"
    )


@pytest.mark.parametrize("name", HOSTILE)
def test_no_name_adds_an_element_or_an_attribute_to_the_page(name: str) -> None:
    before = Tags(page())
    whole = "".join(
        page_pieces(replace(hostile(every_state()), cluster=name, observed_at=name), f"sharer report {name}")
    )
    after = Tags(whole)
    assert after.tags == before.tags
    assert [name for name, _ in after.attributes] == [name for name, _ in before.attributes]
    assert carried(whole)["cluster"] == name
    assert carried(whole)["nodes"][0]["name"] not in whole


# ---- the command


def test_the_figures_of_the_page_are_those_of_the_json(fleet: FleetServer, tmp_path: Path) -> None:
    file = tmp_path / "fleet.html"
    ran = mixed(fleet).report("--html", str(file))
    assert (ran.status, ran.out) == (0, "")
    found, wanted = carried(file.read_text()), fleet.report("-o", "json").document()
    changing = {"observedAt": None, "notes": None, "nodes": None}  # seconds since a Lease was to be renewed
    assert {**found, **changing} == {**wanted, **changing}
    assert [node["gpus"] for node in found["nodes"]] == [node["gpus"] for node in wanted["nodes"]]


def test_it_says_how_it_was_made(fleet: FleetServer) -> None:
    text = mixed(fleet).report("--html", "-", "--node", "a100-*", "--node", "t4-1", "--no-color", "-n", "default").out
    made = re.findall(r"made by <code>(.*?)</code>", text)[0]
    assert made.startswith(
        "sharer report --html - --node &#x27;a100-*&#x27; --node t4-1 --namespace default --no-color"
    )
    assert {node["name"] for node in carried(text)["nodes"]} == {"a100-1", "a100-2", "a100-10"}


def test_partial_data_is_in_the_page_on_standard_error_and_in_the_exit_status(fleet: FleetServer) -> None:
    mixed(fleet)
    fleet.server.fail_next(Fail(code=403), verb="list", resource="leases")
    ran = fleet.report("--html", "-")
    assert ran.status == 3
    assert "missing: leases: " in ran.err
    assert [one["source"] for one in carried(ran.out)["missing"]] == ["leases"]


def test_the_agent_of_a_node_tells_of_itself_and_of_used_memory(run_dir: Path) -> None:
    what = report(shared_node(held_slices=2))
    with contextlib.closing(LocalSocket(run_dir, lambda: to_bytes(what))) as server:
        server.open()
        ran = run("report", "--run-dir", run_dir, "--html", "-")
    assert (ran.status, ran.err) == (0, "")
    document = carried(ran.out)
    (node,) = document["nodes"]
    assert (document["cluster"], node["name"], node["stateReason"]) == (
        "node node-7", "node-7", "only its agent was asked",
    )  # fmt: skip
    (offered,) = what.status.resources
    assert [(one["resource"], one["held"], one["free"]) for one in document["totals"]] == [
        (SHARED, offered.held, offered.free)
    ]


def test_what_an_agent_could_not_read_is_missing_in_the_page_of_its_node() -> None:
    what = report(shared_node(sources={"list": SourceStatus(read_s=None, problem="the socket is gone")}))
    assert [(one.source, one.problem) for one in of_one_node(what).missing] == [("list", "the socket is gone")]


@pytest.mark.parametrize("more", [["--watch"], ["-o", "json"]])
def test_one_page_is_not_watched_and_not_printed_otherwise(fleet: FleetServer, tmp_path: Path, more: list[str]) -> None:
    ran = fleet.report("--html", str(tmp_path / "x.html"), *more)
    assert (ran.status, list(tmp_path.glob("*.html"))) == (2, [])
    assert "--html writes one page, once" in ran.err


def test_a_file_that_cannot_be_written_is_wrong_input(fleet: FleetServer, tmp_path: Path) -> None:
    ran = mixed(fleet).report("--html", str(tmp_path / "no" / "folder.html"))
    assert ran.status == 2
    assert f"--html {tmp_path}/no/folder.html: cannot be written: No such file or directory\n" in ran.err
