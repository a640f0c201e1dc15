"""`sharer report --html`, looked at in a real browser (browser.py). What needs none is in test_page.py."""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sharer.cli.report.picture import page_pieces
from sharer.core.quantities import format_bytes
from sharer.simulation.apiserver import ApiServer
from tests.cli.fleet import NVIDIA, FleetServer, mixed
from tests.cli.report.browser import Browser, BrowserMissingError, Page, browsing
from tests.cli.report.looks import TEXT_OF_LOW_CONTRAST, looks
from tests.cli.report.page import HOSTILE, every_state, hostile, many

WIDTHS = (1280, 420)
STATES = list(itertools.product(WIDTHS, (False, True), ("", "#node=every-state")))
DRAWN = """new Promise((done) => { const look = () => document.getElementById("report").hidden
  ? setTimeout(look, 5) : requestAnimationFrame(() => requestAnimationFrame(done)); look(); })"""
EVERY = "3 nodes · 4 GPUs · 24 slices: 9 held, 4 free"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    try:
        with browsing() as found:
            yield found
    except BrowserMissingError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="s-") as made:
        yield Path(made)


@pytest.fixture(scope="module")
def states(folder: Path) -> Path:
    """The page of a fleet in which every state occurs."""
    file = folder / "states.html"
    file.write_text("".join(page_pieces(every_state(), "sharer report --html states.html")))
    return file


@pytest.fixture(scope="module")
def both(folder: Path) -> tuple[Path, dict[str, Any]]:
    """The page and the JSON of a fleet on a simulated API server, as the command line makes them."""
    with ApiServer().start() as server:
        fleet = mixed(FleetServer(server, folder))
        assert fleet.report("--html", str(folder / "mixed.html")).status == 0
        document: dict[str, Any] = fleet.report("-o", "json").document()
    return folder / "mixed.html", document


def opened(browser: Browser, file: Path, **how: Any) -> Page:
    page = browser.open(file, **how)
    page.run(DRAWN)
    return page


def shown(page: Page) -> str:
    """How many nodes, devices and slices pass the filters."""
    text: str = page.run("document.getElementById('shown').textContent")
    return text


def focused(page: Page) -> str:
    name: str = page.run("document.activeElement.name || document.activeElement.id")
    return name


def names(page: Page) -> list[str]:
    """Of the nodes that are seen, as they stand."""
    found: list[str] = page.run("[...document.querySelectorAll('[role=option] b')].map((one) => one.textContent)")
    return found


# ---- what everybody sees


@pytest.mark.parametrize(("width", "dark", "view"), STATES)
def test_it_draws_itself_without_an_error_within_the_width_that_there_is(
    browser: Browser, states: Path, width: int, dark: bool, view: str
) -> None:
    page = opened(browser, states, width=width, height=900, dark=dark, hash_=view)
    assert page.problems() == []
    assert page.run("document.documentElement.scrollWidth <= innerWidth")
    if view:
        assert page.run(
            "document.getElementById('detail').scrollWidth <= document.getElementById('detail').clientWidth"
        )
    assert page.run(TEXT_OF_LOW_CONTRAST) == []
    brightness, colours = looks(page.picture(scale=0.25))
    assert colours > 100
    assert brightness < 70 if dark else brightness > 190
    page.close()


def test_its_figures_are_those_of_the_json(browser: Browser, both: tuple[Path, dict[str, Any]]) -> None:
    file, document = both
    page = opened(browser, file)
    fleet = document["fleet"]
    tiles = page.run("[...document.querySelectorAll('#tiles b')].map((one) => one.textContent)")
    assert tiles == [f"{fleet[name]:,}" for name in ("nodes", "withAgent", "gpus", "pods")]

    rows = page.run(
        "[...document.querySelectorAll('#totals tbody tr')].map((row) =>"
        " Object.fromEntries([...row.children].map((cell) => [cell.dataset.label, cell.textContent])))"
    )
    counts = {"Nodes": "nodes", "GPUs": "gpus", "Slices": "slices", "Held": "held", "Free": "free"}
    counts |= {"Out of reach": "outOfReach"}
    sizes = {"Largest free": "largestFreeBytes", "Promised": "promisedBytes", "Memory": "memoryBytes"}
    for row, total in zip(rows, document["totals"], strict=True):
        assert row.pop("Resource") == total["resource"] + (total["product"] or "unknown product")
        assert row.pop("Slices in use") == ""
        assert row == {
            **{label: "–" if total[name] is None else f"{total[name]:,}" for label, name in counts.items()},
            **{label: "–" if total[name] is None else format_bytes(total[name]) for label, name in sizes.items()},
        }
    slices, held, free = (sum(total[name] for total in document["totals"]) for name in ("slices", "held", "free"))
    assert shown(page) == f"7 nodes · 8 GPUs · {slices} slices: {held} held, {free} free"
    kinds = page.run(
        "[...document.querySelectorAll('.chips button')].map((one) => [one.value, one.querySelector('b').textContent])"
    )
    notes = [note["kind"] for note in document["notes"]]
    assert dict(kinds) == {kind: str(notes.count(kind)) for kind in notes}
    page.close()


def test_a_node_tells_of_its_devices_who_holds_slices_and_what_was_verified(browser: Browser, states: Path) -> None:
    page = opened(browser, states, hash_="#node=every-state")
    text: str = page.run("document.getElementById('detail').innerText")
    for words in (
        "Verified by driver since 2026-01-01 00:00:00 UTC",
        "Not verified\nno limit of the driver",
        "gone is quarantined",
        "XID 79",
        "80 GiB promised, 3 GiB used of 80 GiB",
        "Pods that ask for GPUs (1)",
    ):
        assert words in text
    images = [name for role, name in page.roles() if role == "image" and name.startswith("GPU")]
    assert images[0] == "GPU 0, slices: 2 held, 1 draining, 1 quarantined, 1 free"
    assert images[1] == "GPU 1, slices: 1 held, 3 at fault"
    letters = page.run(
        "[...document.querySelector('.slices').children].map((one) => one.firstChild.textContent).join('')"
    )
    assert letters == "HHHQF"
    page.close()


def test_what_is_missing_and_what_nobody_could_know_is_said(browser: Browser, states: Path) -> None:
    page = opened(browser, states)
    said = page.run("document.getElementById('missing').innerText")
    assert "leases: 403 Forbidden" in said
    assert "used memory" in page.run("document.getElementById('unknown').textContent")
    page.close()


# ---- by keyboard, and for screen readers


def test_each_filter_works_by_keyboard(browser: Browser, states: Path) -> None:
    page = opened(browser, states)
    page.press("/")
    page.type("TRAIN-1 every")
    assert (focused(page), shown(page)) == ("q", "1 of 3 nodes · 2 GPUs · 8 slices: 4 held, 1 free")
    page.run("document.getElementById('clear').focus()")
    page.press("Enter")
    page.run("new Promise((done) => setTimeout(done, 20))")
    assert (focused(page), shown(page)) == ("q", EVERY)
    for name, value, expected in (
        ("product", "NVIDIA A100-SXM4-80GB", "2 of 3 nodes · 4 GPUs · 16 slices: 4 held, 1 free"),
        ("resource", NVIDIA, "1 of 3 nodes · 0 GPUs · 8 slices: 5 held, 3 free"),
        ("namespace", "default", "2 of 3 nodes · 2 GPUs · 16 slices: 9 held, 4 free"),
        ("state", "ready", "2 of 3 nodes · 2 GPUs · 16 slices: 9 held, 4 free"),
    ):
        page.press("Tab", "ArrowDown")
        assert (focused(page), page.run("document.activeElement.value"), shown(page)) == (name, value, expected)
        assert f"{name}=" in page.run("location.hash")
        page.press("ArrowUp")
        assert shown(page) == EVERY
    page.press("Tab", "ArrowDown")
    assert (focused(page), names(page)) == ("sort", ["t4-1", "every-state", "cordoned-1"])  # most free slices first
    page.press("Tab", "Space")
    assert (focused(page), names(page)) == ("attention", ["every-state", "cordoned-1"])
    page.close()


def test_a_kind_of_note_is_a_filter_and_lists_what_is_said(browser: Browser, states: Path) -> None:
    page = opened(browser, states)
    page.run("document.querySelector('.chips button[value=leaked]').focus()")
    page.press("Space")
    assert names(page) == ["every-state"]
    assert page.run("document.getElementById('notes').innerText").strip() == "every-state: process 7 of gone uses 3 GiB"
    page.press("Space")
    assert (shown(page), page.run("document.getElementById('notes').hidden")) == (EVERY, True)
    page.close()


@pytest.mark.parametrize("width", WIDTHS)
def test_the_keyboard_goes_from_node_to_node_opens_one_and_comes_back(
    browser: Browser, states: Path, width: int
) -> None:
    page = opened(browser, states, width=width)
    page.run("document.getElementById('skip').focus()")
    page.press("Enter")
    assert focused(page) == "fleet"
    page.press("ArrowRight", "Enter")
    assert (focused(page), page.run("document.getElementById('detail-title').textContent")) == ("detail", "every-state")
    covered = width < 1000
    assert (
        page.run("[document.getElementById('top'), document.getElementById('controls')].map((one) => one.inert)")
        == [covered] * 2
    )
    assert page.run("document.querySelector('[role=option][aria-selected=true]').innerText").startswith("every-state")
    assert "node=every-state" in page.run("location.hash")
    page.press("Escape")
    assert (focused(page), page.run("document.getElementById('detail').hidden")) == ("fleet", True)
    assert page.run("document.getElementById('top').inert") is False
    page.press("End", "ArrowRight", "Space")
    assert page.run("document.getElementById('detail-title').textContent") == "t4-1"
    assert page.problems() == []
    page.close()


def test_an_address_keeps_what_is_looked_at_and_what_it_does_not_know_is_left_out(
    browser: Browser, states: Path
) -> None:
    page = opened(browser, states, hash_="#state=cordoned&sort=held&product=gone&attention=no-such&node=no-such")
    assert names(page) == ["cordoned-1"]
    assert page.run("[...new FormData(document.getElementById('controls')).values()]") == [
        "", "", "", "", "cordoned", "held", "on",
    ]  # fmt: skip
    assert page.run("document.getElementById('detail').hidden")
    page.close()


@pytest.mark.parametrize("dark", [False, True])
def test_the_switch_overrules_the_colours_of_the_system(browser: Browser, states: Path, dark: bool) -> None:
    ground = "getComputedStyle(document.documentElement).backgroundColor"
    page, other = (opened(browser, states, dark=scheme) for scheme in (dark, not dark))
    assert page.run(ground) != other.run(ground)
    page.run("document.querySelector('input[name=theme]').focus()")
    page.press("ArrowRight")
    if not dark:
        page.press("ArrowRight")
    assert page.run(ground) == other.run(ground)
    page.close()
    other.close()


def test_every_part_that_can_be_operated_has_a_role_and_a_name(browser: Browser, states: Path) -> None:
    page = opened(browser, states)
    roles = page.roles()
    for wanted in (
        ("searchbox", "Search"), ("combobox", "Product"), ("combobox", "Resource"), ("combobox", "Namespace"),
        ("combobox", "State"), ("combobox", "Order"), ("checkbox", "Needs attention"), ("checkbox", "Compact"),
        ("radio", "Auto"), ("radio", "Light"), ("radio", "Dark"), ("listbox", "Nodes"), ("search", "Nodes"),
        ("button", "Unhealthy 1"), ("table", "Totals by resource and product"),
        ("option", "every-state, ready, A100-SXM4-80GB, 2 GPUs, 4 of 8 slices held, 1 free, 4 notes"),
    ):  # fmt: skip
        assert wanted in roles
    operated = {"button", "checkbox", "combobox", "link", "listbox", "option", "radio", "searchbox"}
    assert [role for role, name in roles if role in operated and not name] == []
    page.close()


# ---- what nobody may do


@pytest.mark.parametrize("width", WIDTHS)
def test_names_that_want_to_be_html_stay_names(browser: Browser, folder: Path, width: int) -> None:
    report = hostile(every_state())
    file = folder / "hostile.html"
    file.write_text("".join(page_pieces(report, f"sharer report -l '{HOSTILE[0]}'")))
    page = opened(browser, file, width=width)
    assert page.run("document.getElementById('notes').hidden")
    page.run("document.querySelector('.chips button').click()")
    assert "GPU 1: XID 79" in page.run("document.getElementById('notes').textContent")
    page.run("document.getElementById('clear').click()")
    page.run("new Promise((done) => setTimeout(done, 20))")
    for place in range(len(report.nodes)):
        page.run("document.getElementById('fleet').focus()")
        page.press("Home", *["ArrowRight"] * place, "Enter")
        page.run("document.querySelector('#detail details')?.setAttribute('open', '')")
        assert page.run("document.querySelectorAll('#detail code').length") > 0
    assert page.run("document.querySelectorAll('img, svg, b b, [onload], [onerror]').length") == 0
    assert page.run("document.querySelectorAll('script').length") == 2
    assert page.run("document.documentElement.scrollWidth <= innerWidth")
    assert (page.run("document.title"), page.problems()) == (f"GPUs of {report.cluster}", [])
    page.close()


def test_the_content_policy_lets_nothing_else_run_or_be_fetched(browser: Browser, states: Path) -> None:
    page = opened(browser, states)
    picture = '<img src="https://example.com/x.png" onerror="document.title = 1">'
    page.run(f"document.body.insertAdjacentHTML('beforeend', '{picture}')")
    page.run("fetch('https://example.com/').catch(() => 0)")
    page.run("Promise.resolve(document.body.setAttribute('style', 'color: red'))")
    refused = [problem for problem in page.problems() if problem.startswith("security:")]
    for directive in ("img-src", "connect-src", "style-src", "script-src"):
        assert any(directive in problem for problem in refused), directive
    assert page.run("document.title") == "GPUs of https://api.example.com:6443"
    page.close()


# ---- a large fleet


def test_of_5000_nodes_only_those_in_sight_are_drawn_and_every_one_is_found(browser: Browser, folder: Path) -> None:
    """On an idle machine of 2 cores: seen after 1.1 s, a filter takes 0.1 s (not measured here)."""
    file = folder / "many.html"
    with file.open("w") as out:
        out.writelines(page_pieces(many(every_state(), 5000), "sharer report --html many.html"))
    page = opened(browser, file)
    assert shown(page).startswith("5,000 nodes · 10,000 GPUs · ")
    drawn = "document.querySelectorAll('[role=option]').length"
    assert 20 < page.run(drawn) < 250
    page.run("document.getElementById('fleet').focus()")
    page.press("End")
    assert page.run("document.querySelector('.card.active').getBoundingClientRect().bottom <= innerHeight")
    assert (names(page)[-1], page.run(drawn) < 250) == ("node-04999", True)
    page.press("/")
    page.type("node-0432")
    assert (shown(page)[:19], names(page)[0]) == ("10 of 5,000 nodes ·", "node-04320")
    assert page.problems() == []
    page.close()
