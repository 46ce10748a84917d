"""Headless Chromium, spoken to over a pipe in its own DevTools protocol: no driver, no client library.

with Browser() as browser:
    page = browser.open(path)
    assert page.quiet()
    page.screenshot(png, width=1280)
"""

import base64
import fcntl
import json
import os
import select
import shutil
import subprocess
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

#: Names under which Debian and others install it; the environment variable goes first.
NAMES = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
OPTIONS = (
    "--headless",
    "--remote-debugging-pipe",
    "--no-sandbox",  # as root there is none; the pages are our own
    "--disable-gpu",
    "--hide-scrollbars",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--force-color-profile=srgb",
)
PATIENCE_S = 20.0


def installed() -> str | None:
    """The browser's path, None where there is none."""
    named = os.environ.get("KLEASH_CHROMIUM")
    return named or next((path for name in NAMES if (path := shutil.which(name))), None)


class Browser:
    """One process; as a context manager it is ended at the end."""

    def __init__(self) -> None:
        path = installed()
        assert path is not None, "no Chromium here: make browser"
        self._profile = tempfile.TemporaryDirectory(prefix="kleash-chromium-", ignore_cleanup_errors=True)
        commands, self._write = os.pipe()
        self._read, answers = os.pipe()
        # The child reads its commands from 3 and answers on 4; both are first moved out of each other's way.
        ends = [fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 10) for end in (commands, answers)]
        for end in (commands, answers):
            os.close(end)

        def connect() -> None:
            os.dup2(ends[0], 3)
            os.dup2(ends[1], 4)

        self._process = subprocess.Popen(
            [path, *OPTIONS, f"--user-data-dir={self._profile.name}", "about:blank"],
            preexec_fn=connect,
            pass_fds=(3, 4),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for end in ends:
            os.close(end)
        self._buffer, self._number = b"", 0
        self.events: list[dict[str, Any]] = []

    def __enter__(self) -> "Browser":
        return self

    def __exit__(self, *exception: object) -> None:
        with suppress(OSError, TimeoutError):
            self.call("Browser.close")
        try:
            self._process.wait(5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        for end in (self._read, self._write):
            os.close(end)
        self._profile.cleanup()

    def call(self, method: str, session: str | None = None, **parameters: Any) -> dict[str, Any]:
        """One command and its answer; events that come between are kept."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if session:
            message["sessionId"] = session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while True:
            got = self._receive()
            if got.get("id") == self._number:
                assert "error" not in got, f"{method}: {got['error']}"
                return got["result"]
            self.events.append(got)

    def wait_for(self, method: str, session: str) -> dict[str, Any]:
        """The first event of this name, kept or to come; it is taken out of the events."""
        seen = 0
        while True:
            for event in self.events[seen:]:
                if event.get("method") == method and event.get("sessionId") == session:
                    self.events.remove(event)
                    return event["params"]
            seen = len(self.events)
            self.events.append(self._receive())

    def open(self, where: Path | str, *, width: int = 1280, height: int = 900, dark: bool = False) -> "Page":
        """A new tab with this file, or address, loaded."""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable", session)
        page = Page(self, session)
        page.resize(width, height)
        page.scheme("dark" if dark else "light")
        address = where.resolve().as_uri() if isinstance(where, Path) else where
        self.call("Page.navigate", session, url=address)
        self.wait_for("Page.loadEventFired", session)
        page.address = address
        return page

    def _receive(self) -> dict[str, Any]:
        end = time.monotonic() + PATIENCE_S
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._read], [], [], max(0.0, end - time.monotonic()))
            if not ready:
                raise TimeoutError("the browser does not answer")
            got = os.read(self._read, 1 << 20)
            if not got:
                raise TimeoutError("the browser ended")
            self._buffer += got
        message, _, self._buffer = self._buffer.partition(b"\0")
        return json.loads(message)


@dataclass
class Page:
    """One tab."""

    browser: Browser
    session: str
    address: str = ""
    _kinds: dict[str, str] = field(default_factory=dict)

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        return self.browser.call(method, self.session, **parameters)

    def evaluate(self, script: str) -> Any:
        """The value of a JavaScript expression, as JSON has it; a promise is awaited."""
        got = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in got, got["exceptionDetails"]
        return got["result"].get("value")

    def settle(self) -> None:
        """Two frames, so that what was asked for is drawn and said."""
        self.evaluate("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => done(1))))")

    def complaints(self) -> list[str]:
        """Errors and warnings of the console, exceptions, dialogs: all that a quiet page does not make."""
        self.settle()
        found = []
        for event in self._own():
            said = event["params"]
            match event["method"]:
                case "Runtime.exceptionThrown":
                    found.append(f"exception: {said['exceptionDetails'].get('text')}")
                case "Runtime.consoleAPICalled" if said["type"] in ("error", "warning", "assert"):
                    found.append(f"console.{said['type']}: {said['args']}")
                case "Log.entryAdded" if said["entry"]["level"] in ("error", "warning"):
                    found.append(f"{said['entry']['source']}: {said['entry']['text']}")
                case "Page.javascriptDialogOpening":
                    found.append(f"dialog: {said['message']}")
        return found

    def requests(self) -> list[str]:
        """Addresses that were asked for, the page's own aside."""
        self.settle()
        asked = [e["params"]["request"]["url"] for e in self._own() if e["method"] == "Network.requestWillBeSent"]
        return [address for address in asked if address != self.address]

    def point_at(self, selector: str) -> None:
        """The pointer over the middle of the first such element."""
        box = self.evaluate(
            f"(() => {{ const e = document.querySelector({json.dumps(selector)});"
            "e.scrollIntoView({block: 'center'});"
            "const b = e.getClientRects()[0]; return [b.x + b.width / 2, b.y + b.height / 2]; })()"
        )
        for near in (1, 0):
            self.call("Input.dispatchMouseEvent", type="mouseMoved", x=box[0] + near, y=box[1])
        self.settle()

    def resize(self, width: int, height: int, scale: float = 1.0) -> None:
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=scale, mobile=False
        )

    def scheme(self, scheme: str, media: str = "") -> None:
        """ "light" or "dark"; media "print" for how it would be printed."""
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.call("Emulation.setEmulatedMedia", media=media, features=features)

    def screenshot(self, path: Path, *, of: str | None = None, form: str = "png", quality: int = 80) -> Path:
        """What is seen, or the whole of one element, as png, jpeg or webp."""
        self.settle()
        more: dict[str, Any] = {} if form == "png" else {"quality": quality}
        if of is not None:
            box = self.evaluate(
                f"(() => {{ const b = document.querySelector({json.dumps(of)}).getBoundingClientRect();"
                "return {x: b.x + scrollX, y: b.y + scrollY, width: b.width, height: b.height}; })()"
            )
            more |= {"clip": box | {"scale": 1}, "captureBeyondViewport": True}
        data = self.call("Page.captureScreenshot", format=form, **more)["data"]
        path.write_bytes(base64.b64decode(data))
        return path

    def _own(self) -> list[dict[str, Any]]:
        return [event for event in self.browser.events if event.get("sessionId") == self.session]
