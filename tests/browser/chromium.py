"""Debian's headless Chromium, driven over its DevTools socket: no driver program, no package."""

from __future__ import annotations

import base64
import itertools
import json
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from websockets.sync.client import ClientConnection, connect

START_TIMEOUT_S = 60.0
PATIENCE_S = 30.0
"""For whatever a page does; only turns a hang into a failure on a loaded machine."""
POLL_S = 0.05
NAMES = ("chromium", "chromium-browser", "google-chrome")
FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--no-first-run",
    "--hide-scrollbars",
    "--remote-debugging-port=0",
    "--autoplay-policy=no-user-gesture-required",
    # A microphone that plays a file, offered without asking.
    "--use-fake-device-for-media-stream",
)


class PageError(Exception):
    """A script in the page threw, or the browser refused a command."""


def find_chromium() -> str | None:
    """Path of the browser, or None."""
    return next((path for name in NAMES if (path := shutil.which(name))), None)


class Page:
    """One tab, command by command. Events of the browser are kept in `console` or dropped."""

    def __init__(self, socket: ClientConnection) -> None:
        self._socket = socket
        self._ids = itertools.count(1)
        self.console: list[str] = []
        self.requests: list[str] = []
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.command(f"{domain}.enable")

    def command(self, method: str, **params: Any) -> dict[str, Any]:
        """Send a DevTools command and wait for its answer."""
        command_id = next(self._ids)
        self._socket.send(json.dumps({"id": command_id, "method": method, "params": params}))
        while True:
            message = json.loads(self._socket.recv(PATIENCE_S))
            if message.get("id") == command_id:
                if "error" in message:
                    raise PageError(f"{method}: {message['error']['message']}")
                return message["result"]
            self._note(message)

    def allow(self, url: str, permission: str = "granted") -> None:
        """Answer for the user whether a page of this origin may use the microphone."""
        self.command(
            "Browser.setPermission",
            permission={"name": "microphone"},
            setting=permission,
            origin=url,
        )

    @contextmanager
    def before_scripts(self, script: str) -> Iterator[None]:
        """Run a script in every page that is opened meanwhile, before its own."""
        added = self.command("Page.addScriptToEvaluateOnNewDocument", source=script)
        try:
            yield
        finally:
            self.command("Page.removeScriptToEvaluateOnNewDocument", **added)

    def open(self, url: str) -> None:
        """Load a page and wait until its modules have run."""
        self.command("Page.navigate", url=url)
        self.until("document.readyState === 'complete' && location.href !== 'about:blank'")
        self.until("globalThis.parley !== undefined")

    def run(self, script: str) -> Any:
        """Value of an expression; promises are waited for. A click counts as a user's."""
        answer = self.command(
            "Runtime.evaluate",
            expression=script,
            awaitPromise=True,
            returnByValue=True,
            userGesture=True,
        )
        if "exceptionDetails" in answer:
            details = answer["exceptionDetails"]
            raise PageError(details.get("exception", {}).get("description", details["text"]))
        return answer["result"].get("value")

    def until(self, condition: str, timeout_s: float = PATIENCE_S) -> None:
        """Wait until an expression is true."""
        deadline_s = time.monotonic() + timeout_s
        while not self.run(f"Boolean({condition})"):
            assert time.monotonic() < deadline_s, (
                f"never held: {condition}; the page says {self.said()!r}, console {self.console}"
            )
            time.sleep(POLL_S)

    def said(self) -> str:
        """What can be read on the page."""
        return str(self.run("document.body?.innerText ?? ''"))

    def text(self, element_id: str) -> str:
        """Text of an element."""
        return str(self.run(f"document.getElementById({json.dumps(element_id)}).textContent"))

    def click(self, element_id: str) -> None:
        """Press and release the mouse in the middle of an element."""
        self.press(element_id)
        self.lift()

    def press(self, element_id: str) -> None:
        """Press the mouse in the middle of an element, and keep it down."""
        script = (
            f"(() => {{ const element = document.getElementById({json.dumps(element_id)});"
            "element.scrollIntoView({block: 'center', behavior: 'instant'});"
            "const box = element.getBoundingClientRect();"
            "return [box.x + box.width / 2, box.y + box.height / 2]; })()"
        )
        self._at = self.run(script)
        self._mouse("mousePressed")

    def lift(self) -> None:
        """Release the mouse where it was pressed."""
        self._mouse("mouseReleased")

    def type(self, text: str) -> None:
        """Write into the element that has the focus."""
        self.command("Input.insertText", text=text)

    def key(self, key: str, code: str, *, text: str = "", only: str = "") -> None:
        """Press and release a key; `only` is keyDown or keyUp for half of it."""
        for kind in (only,) if only else ("keyDown", "keyUp"):
            fields = {"text": text} if text and kind == "keyDown" else {}
            self.command("Input.dispatchKeyEvent", type=kind, key=key, code=code, **fields)

    def size(self, width: int, height: int, *, is_phone: bool = False) -> None:
        """Set the window's size; a phone has touch and twice the pixels."""
        self.command(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=2,
            mobile=is_phone,
        )

    def theme(self, name: str) -> None:
        """`light` or `dark`."""
        features = [{"name": "prefers-color-scheme", "value": name}]
        self.command("Emulation.setEmulatedMedia", features=features)

    def screenshot(self, path: Path) -> None:
        """Write a picture of what is in the window."""
        picture = self.command("Page.captureScreenshot", format="png")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(base64.b64decode(picture["data"]))

    def _mouse(self, kind: str) -> None:
        x, y = self._at
        self.command("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def _note(self, message: dict[str, Any]) -> None:
        params = message.get("params", {})
        if message.get("method") == "Runtime.exceptionThrown":
            details = params["exceptionDetails"]
            self.console.append(details.get("exception", {}).get("description") or details["text"])
        elif message.get("method") == "Log.entryAdded" and params["entry"]["level"] == "error":
            self.console.append(f"{params['entry']['text']} {params['entry'].get('url', '')}")
        elif message.get("method") == "Network.requestWillBeSent":
            self.requests.append(params["request"]["url"])


@contextmanager
def running_chromium(*flags: str) -> Iterator[Page]:
    """Start a browser with a profile of its own, give its first tab, stop it.

    Args:
        flags: further ones, such as `--use-file-for-fake-audio-capture=question.wav`.
    """
    path = find_chromium()
    assert path is not None, "the caller has looked"
    with tempfile.TemporaryDirectory(prefix="chromium-", ignore_cleanup_errors=True) as profile:
        process = subprocess.Popen(
            [path, *FLAGS, *flags, f"--user-data-dir={profile}", "about:blank"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            port = _port_of(process, Path(profile) / "DevToolsActivePort")
            with connect(_first_tab(port), max_size=None, compression=None) as socket:
                yield Page(socket)
        finally:
            process.terminate()
            process.wait(30)


def _port_of(process: subprocess.Popen[bytes], file: Path) -> int:
    deadline_s = time.monotonic() + START_TIMEOUT_S
    while not file.exists() or "\n" not in file.read_text():
        assert process.poll() is None, f"chromium ended with {process.returncode}"
        assert time.monotonic() < deadline_s, "chromium does not start"
        time.sleep(POLL_S)
    return int(file.read_text().splitlines()[0])


def _first_tab(port: int) -> str:
    import urllib.request

    deadline_s = time.monotonic() + START_TIMEOUT_S
    while True:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/json/list", timeout=20) as answer:
            tabs = [one for one in json.load(answer) if one["type"] == "page"]
        if tabs:
            return str(tabs[0]["webSocketDebuggerUrl"])
        assert time.monotonic() < deadline_s, "chromium opens no tab"
        time.sleep(POLL_S)
