"""`sharer report --html`: the report as one page that needs nothing beside itself, no network least of all.

The page carries the very document of `-o json`, gzipped, in base64: of 55 MB for 5,000 nodes 5 MB are left, which a
browser unpacks in a third of a second, and no name that a tenant wrote can end the element that it stands in. The
script puts names on the page as text only; the content policy lets that one script and that one style run, known by
their hashes, and forbids everything else, requests above all.
"""

from __future__ import annotations

import base64
import hashlib
import html
import importlib.metadata
import re
import zlib
from collections.abc import Iterator
from pathlib import Path

import click

from sharer.adapters.documents import compact_pieces
from sharer.core.cluster.account import Selection, report_cluster
from sharer.core.cluster.facts import ClusterFacts, Source
from sharer.core.cluster.live import with_live
from sharer.core.cluster.report import ClusterReport, MissingSource
from sharer.core.errors import InputError
from sharer.core.report.node import NodeReport
from sharer.core.values import replace

_FOLDER = Path(__file__).parent / "page"
_SCRIPTS = ("model", "parts", "fleet", "detail", "main")  # one after the other: each uses the ones before it
_PLACE = re.compile(r"\{\{(\w+)\}\}")
_THREE = 3 * 2**14  # bytes that are written at a time; base64 turns three into four letters
_LEVEL = 6  # of compression: 0.2 s for 5,000 nodes, and a third less than 1


def write_picture(report: ClusterReport, file: str, command: str) -> None:
    """Write the page; `file` "-": to standard output. `command`: how it was asked for, which it says of itself.

    Raises InputError if the file cannot be written; what was there before is then still there.
    """
    try:
        with click.open_file(file, "w", encoding="utf-8", atomic=file != "-") as out:
            for piece in page_pieces(report, command):
                out.write(piece)
    except OSError as error:
        raise InputError(f"--html {file}: cannot be written: {error.strerror or error}") from error


def of_one_node(live: NodeReport) -> ClusterReport:
    """What the agent of a node says itself, as a fleet of that node alone."""
    facts = ClusterFacts(
        nodes=Source(items=None), pods=Source(items=None), gpu_nodes=Source(items=None), leases=Source(items=None)
    )
    name, seen_at = live.metadata.name, live.status.observed_at
    report = report_cluster(with_live(facts, live), Selection(), cluster=f"node {name}", observed_at=seen_at)
    return replace(
        report,
        nodes=tuple(replace(node, state_reason="only its agent was asked") for node in report.nodes),
        unknown=("what pods ask for, and whether the node is ready: only its agent was asked",),
        missing=tuple(
            MissingSource(source=source.name, problem=source.problem)
            for source in live.sources
            if source.problem is not None
        ),
    )


def page_pieces(report: ClusterReport, command: str) -> Iterator[str]:
    """The text of the page in pieces: a long one should not lie in memory as a whole."""
    style = (_FOLDER / "page.css").read_text(encoding="utf-8")
    script = "".join((_FOLDER / f"{name}.js").read_text(encoding="utf-8") for name in _SCRIPTS)
    words = {
        "cluster": html.escape(report.cluster),
        "observed_at": html.escape(report.observed_at),
        "command": html.escape(command),
        "version": html.escape(_version()),
        "style": style,
        "style_hash": _hash(style),
        "script": script,
        "script_hash": _hash(script),
    }
    head, tail = (_FOLDER / "page.html").read_text(encoding="utf-8").split("{{report}}")
    yield _PLACE.sub(lambda place: words[place[1]], head)
    yield from _packed(report)
    yield _PLACE.sub(lambda place: words[place[1]], tail)


def _packed(report: ClusterReport) -> Iterator[str]:
    packer = zlib.compressobj(_LEVEL, wbits=31)  # gzip, and without a time: the same report is the same text
    rest = b""
    for piece in compact_pieces(report):
        rest += packer.compress(piece)
        whole = len(rest) - len(rest) % _THREE
        if whole:
            yield base64.b64encode(rest[:whole]).decode()
            rest = rest[whole:]
    yield base64.b64encode(rest + packer.flush()).decode()


def _hash(text: str) -> str:
    """As a content policy names an inline script or style."""
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _version() -> str:
    try:
        return f", sharer {importlib.metadata.version('sharer')}"
    except importlib.metadata.PackageNotFoundError:  # run from source
        return ""
