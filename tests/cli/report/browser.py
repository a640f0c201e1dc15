"""A real browser, driven by its own DevTools protocol over a pipe: JSON, each message ended by a NUL.

`find_browser` takes the machine's Chromium. Where there is none it fetches Debian's headless one with apt, once, into a
cache folder: no root, nothing installed. It needs no other network, and the page that is looked at needs none at all.
"""

from __future__ import annotations

import base64
import contextlib
import fcntl
import functools
import json
import os
import select
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "chromium-headless-shell")
PACKAGES = ("chromium-headless-shell", "fonts-dejavu-core")
ANSWER_S = 20.0  # until a browser that does not answer is given up; a busy machine needs 2
_FETCH_S = 120.0
_FLAGS = (
    "--headless", "--remote-debugging-pipe", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-dev-shm-usage", "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--hide-scrollbars", "--force-device-scale-factor=1", "--host-resolver-rules=MAP * ~NOTFOUND",
)  # fmt: skip


class BrowserMissingError(Exception):
    """There is none, and none can be had; the message says why."""


# ---- to have one


@functools.cache
def find_browser() -> tuple[Path, Mapping[str, str]]:
    """The program, and the environment that it needs. Raises BrowserMissingError."""
    for name in NAMES:
        if found := shutil.which(name):
            return Path(found), {}
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "sharer-tests", "chromium")
    if not cache.exists():
        _fetch(cache)
    libraries = [str(folder) for folder in (cache / "usr/lib").glob("*-linux-gnu*")]
    libraries += [str(folder) for folder in (cache / "usr/lib").glob("*-linux-gnu/pulseaudio")]
    return cache / "usr/lib/chromium/chromium-headless-shell", {
        "LD_LIBRARY_PATH": ":".join(libraries),
        "FONTCONFIG_FILE": str(cache / "fonts.conf"),
    }


def _fetch(cache: Path) -> None:
    for tool in ("apt-get", "dpkg-deb"):
        if shutil.which(tool) is None:
            raise BrowserMissingError(f"there is no {' and no '.join(NAMES)} here, and no {tool} to fetch one with")
    cache.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache.parent) as folder:
        root, apt = Path(folder, "root"), Path(folder, "apt")
        root.mkdir()
        (apt / "lists/partial").mkdir(parents=True)
        (apt / "archives/partial").mkdir(parents=True)
        options = [
            f"Dir::State={apt}", f"Dir::Cache={apt}", "Dir::State::status=/var/lib/dpkg/status", "Debug::NoLocking=1",
            "Acquire::http::Timeout=10", "Acquire::https::Timeout=10", "Acquire::Retries=0", "APT::Sandbox::User=",
        ]  # fmt: skip
        apt_get = ["apt-get", "-qq", *(word for option in options for word in ("-o", option))]
        install = ["install", "--yes", "--download-only", "--no-install-recommends", *PACKAGES]
        _call(*apt_get, "update")
        _call(*apt_get, *install)
        for package in (apt / "archives").glob("*.deb"):
            _call("dpkg-deb", "--extract", str(package), str(root))
        fonts = f"<dir>{cache}/usr/share/fonts</dir><dir>/usr/share/fonts</dir><cachedir>{cache}/fonts</cachedir>"
        last = "<match><edit name='family' mode='append_last'><string>DejaVu Sans</string></edit></match>"
        (root / "fonts.conf").write_text(f"<fontconfig>{fonts}{last}</fontconfig>")
        with contextlib.suppress(OSError):  # somebody else was faster
            root.rename(cache)


def _call(*command: str) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_FETCH_S, check=False)
    except subprocess.TimeoutExpired as error:
        raise BrowserMissingError(
            f"Debian's Chromium could not be fetched: {command[0]} took over {_FETCH_S:g} s"
        ) from error
    if done.returncode:
        raise BrowserMissingError(
            f"Debian's Chromium could not be fetched: {' '.join((done.stderr or done.stdout).split())}"
        )


# ---- to drive it


@contextlib.contextmanager
def browsing() -> Iterator[Browser]:
    """A browser of its own, with an empty profile. Raises BrowserMissingError."""
    program, environment = find_browser()
    with (
        tempfile.TemporaryDirectory(prefix="s-", ignore_cleanup_errors=True) as profile,
        contextlib.ExitStack() as ends,
    ):
        theirs_in, ours_out = _pipe(ends)
        ours_in, theirs_out = _pipe(ends)
        log = ends.enter_context(Path(profile, "log").open("w+b"))
        pid = os.posix_spawn(
            program,
            [str(program), *_FLAGS, f"--user-data-dir={profile}", "about:blank"],
            {**os.environ, **environment, "HOME": profile},
            file_actions=[
                (os.POSIX_SPAWN_DUP2, theirs_in, 3),  # where it reads from, by its convention
                (os.POSIX_SPAWN_DUP2, theirs_out, 4),
                (os.POSIX_SPAWN_DUP2, log.fileno(), 1),
                (os.POSIX_SPAWN_DUP2, log.fileno(), 2),
            ],
            setpgroup=0,
        )
        try:
            os.close(theirs_in)
            os.close(theirs_out)
            yield Browser(ours_in, ours_out, log.name)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)  # the group: its zygotes and renderers too
            os.waitpid(pid, 0)


def _pipe(ends: contextlib.ExitStack) -> tuple[int, int]:
    """Both ends above the numbers that the browser wants, so that dup2 overwrites none of them."""
    ends_of_it = []
    for low in os.pipe():
        high = fcntl.fcntl(low, fcntl.F_DUPFD_CLOEXEC, 10)
        os.close(low)
        ends.callback(_close, high)
        ends_of_it.append(high)
    return ends_of_it[0], ends_of_it[1]


def _close(number: int) -> None:
    with contextlib.suppress(OSError):
        os.close(number)


class Browser:
    """The other end of its pipe."""

    def __init__(self, answers: int, questions: int, log: str) -> None:
        self._answers, self._questions, self._log = answers, questions, log
        self._rest = b""
        self._number = 0
        self.events: list[dict[str, Any]] = []

    def ask(self, method: str, session: str | None = None, **parameters: object) -> dict[str, Any]:
        """What it answers. What it tells of its own accord meanwhile is in `events`."""
        self._number += 1
        number = self._number
        question = {"id": number, "method": method, "params": parameters, **({"sessionId": session} if session else {})}
        os.write(self._questions, json.dumps(question).encode() + b"\0")
        while True:
            message = self._next()
            if message.get("id") == number:
                assert "error" not in message, f"{method}: {message['error']}"
                result: dict[str, Any] = message["result"]
                return result
            self.events.append(message)

    def wait_for(self, method: str, session: str) -> None:
        """Until it tells this."""
        while not any(one.get("method") == method and one.get("sessionId") == session for one in self.events):
            self.events.append(self._next())

    def _next(self) -> dict[str, Any]:
        end_s = time.monotonic() + ANSWER_S
        while b"\0" not in self._rest:
            ready, _, _ = select.select([self._answers], [], [], max(0.0, end_s - time.monotonic()))
            read = os.read(self._answers, 2**20) if ready else b""
            assert read, f"the browser is silent; it wrote {Path(self._log).read_text(errors='replace')[-2000:]}"
            self._rest += read
        message, _, self._rest = self._rest.partition(b"\0")
        found: dict[str, Any] = json.loads(message)
        return found

    def open(self, file: Path, *, width: int = 1280, height: int = 800, dark: bool = False, hash_: str = "") -> Page:
        """A tab of its own that shows a file, when it has loaded."""
        target = self.ask("Target.createTarget", url="about:blank")["targetId"]
        session = self.ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        page = Page(self, session, target)
        for domain in ("Page", "Runtime", "Log", "Network", "Accessibility"):
            page.ask(f"{domain}.enable")
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        page.ask("Emulation.setDeviceMetricsOverride", **size)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        page.ask("Emulation.setEmulatedMedia", features=[scheme, {"name": "prefers-reduced-motion", "value": "reduce"}])
        page.ask("Page.navigate", url=f"{file.as_uri()}{hash_}")
        self.wait_for("Page.loadEventFired", session)
        return page


class Page:
    """One tab."""

    def __init__(self, browser: Browser, session: str, target: str) -> None:
        self._browser, self._session, self._target = browser, session, target

    def ask(self, method: str, **parameters: object) -> dict[str, Any]:
        return self._browser.ask(method, self._session, **parameters)

    def run(self, script: str) -> Any:  # Any: a value of JSON
        """The value of an expression, in the page. A promise is waited for."""
        answer = self.ask("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def press(self, *keys: str) -> None:
        """Keys by their names: "Tab", "Enter", "ArrowDown", "Shift+Tab", "a"."""
        for key in keys:
            shift, _, name = key.rpartition("+")
            text = {"Enter": "\r", "Space": " "}.get(name, name if len(name) == 1 else "")
            code = {"Tab": 9, "Enter": 13, "Escape": 27, "Space": 32, "PageDown": 34, "End": 35, "Home": 36}
            code |= {"ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39, "ArrowDown": 40}
            parts: dict[str, object] = {
                "key": " " if name == "Space" else name,
                "code": name,
                "windowsVirtualKeyCode": code.get(name, ord(name) if len(name) == 1 else 0),
                "modifiers": 8 if shift else 0,
            }
            self.ask("Input.dispatchKeyEvent", type="keyDown" if text else "rawKeyDown", text=text, **parts)
            self.ask("Input.dispatchKeyEvent", type="keyUp", **parts)

    def type(self, text: str) -> None:
        self.ask("Input.insertText", text=text)

    def picture(self, *, scale: float = 1.0) -> bytes:
        """What is seen of it, as PNG."""
        size = self.run("({width: innerWidth, height: innerHeight})")
        clip = {"x": 0, "y": self.run("scrollY"), **size, "scale": scale}
        answer = self.ask("Page.captureScreenshot", format="png", clip=clip)
        return base64.b64decode(answer["data"])

    def roles(self) -> list[tuple[str, str]]:
        """What a screen reader is told: role and name of everything that is not ignored."""
        nodes = self.ask("Accessibility.getFullAXTree")["nodes"]
        return [
            (node["role"]["value"], node.get("name", {}).get("value", ""))
            for node in nodes
            if not node["ignored"] and "role" in node
        ]

    def problems(self) -> list[str]:
        """Errors of scripts, what the console says, what the content policy forbade, and each request but its own."""
        return [
            problem for one in self._browser.events if one.get("sessionId") == self._session for problem in _of(one)
        ]

    def close(self) -> None:
        self._browser.ask("Target.closeTarget", targetId=self._target)


def _of(event: dict[str, Any]) -> Iterator[str]:
    what = event["params"]
    match event["method"]:
        case "Runtime.exceptionThrown":
            details = what["exceptionDetails"]
            yield f"{details['text']} {details.get('exception', {}).get('description', '')}"
        case "Runtime.consoleAPICalled":
            yield f"console: {what['args']}"
        case "Log.entryAdded":
            yield f"{what['entry']['source']}: {what['entry']['text']}"
        case "Network.requestWillBeSent" if not what["request"]["url"].startswith("file:"):
            yield f"asked for {what['request']['url'][:100]}"
