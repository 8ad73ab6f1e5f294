"""Chromium, driven over a pipe: real pointers, real downloads. No driver to install."""

from __future__ import annotations

import base64
import fcntl
import json
import os
import select
import shutil
import subprocess
import time
from pathlib import Path
from types import TracebackType
from typing import Any

BROWSER = next((b for b in ("chromium", "chromium-browser", "google-chrome", "chrome") if shutil.which(b)), None)
FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"]
FLAGS += ["--disable-component-update", "--disable-sync", "--hide-scrollbars"]
PATIENCE = 60.0  # seconds for anything


class Browser:
    """One window on one page; speaks the browser's own protocol, messages end with a zero byte."""

    def __init__(self, folder: Path) -> None:
        assert BROWSER is not None, "CI is set, so that Chromium must be installed"
        self.downloads = folder / "downloads"
        self.downloads.mkdir(parents=True, exist_ok=True)
        (their_in, self._out), (self._in, their_out) = os.pipe(), os.pipe()
        high = [fcntl.fcntl(fd, fcntl.F_DUPFD, 60) for fd in (their_in, their_out)]  # clear of 3 and 4, and nobody's

        def connect() -> None:
            for place, fd in zip((3, 4), high, strict=True):
                os.dup2(fd, place)

        command = [BROWSER, *FLAGS, f"--user-data-dir={folder / 'driven'}", "--remote-debugging-pipe", "about:blank"]
        quiet = subprocess.DEVNULL
        self._process = subprocess.Popen(command, preexec_fn=connect, pass_fds=(3, 4), stdout=quiet, stderr=quiet)
        for fd in (their_in, their_out, *high):
            os.close(fd)
        self._rest, self._count, self._session = b"", 0, ""
        self.says: list[str] = []  # errors and refusals in the page's console
        page = next(t for t in self.tell("Target.getTargets")["targetInfos"] if t["type"] == "page")
        self._session = self.tell("Target.attachToTarget", targetId=page["targetId"], flatten=True)["sessionId"]
        self.tell("Browser.setDownloadBehavior", behavior="allow", downloadPath=str(self.downloads))
        for domain in ("Page", "Log", "Runtime"):
            self.tell(f"{domain}.enable")

    def __enter__(self) -> Browser:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._process.kill()
        self._process.wait()
        for fd in (self._in, self._out):
            os.close(fd)

    def tell(self, method: str, **given: Any) -> Any:
        self._count += 1
        message: dict[str, Any] = {"id": self._count, "method": method, "params": given}
        if self._session and not method.startswith(("Browser.", "Target.")):
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        while (answer := self._hear()).get("id") != self._count:
            self._note(answer)
        assert "error" not in answer, f"{method}: {answer['error']}"
        return answer["result"]

    def _hear(self) -> dict[str, Any]:
        until = time.monotonic() + PATIENCE
        while b"\0" not in self._rest:
            ready, _, _ = select.select([self._in], [], [], max(0.0, until - time.monotonic()))
            assert ready, "the browser does not answer"
            piece = os.read(self._in, 1 << 20)
            assert piece, "the browser is gone"
            self._rest += piece
        text, _, self._rest = self._rest.partition(b"\0")
        return dict(json.loads(text))

    def _note(self, event: dict[str, Any]) -> None:
        if event.get("method") == "Runtime.exceptionThrown":
            self.says.append(json.dumps(event["params"]["exceptionDetails"])[:500])
        if event.get("method") == "Log.entryAdded" and event["params"]["entry"]["level"] == "error":
            self.says.append(event["params"]["entry"]["text"])

    def open(self, path: Path, width: int = 1280, height: int = 900, dark: bool = False) -> None:
        self.visit(path.as_uri(), width, height, dark)

    def visit(
        self, url: str, width: int = 1280, height: int = 900, dark: bool = False, lands: str | None = None
    ) -> None:
        """`lands` where the address sends us on."""
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.tell("Emulation.setEmulatedMedia", features=[scheme])
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.tell("Emulation.setDeviceMetricsOverride", **size)
        self.tell("Page.navigate", url=url)
        self.wait(f"location.href === {json.dumps(lands or url)} && document.readyState === 'complete'")

    def ask(self, expression: str) -> Any:
        answer = self.tell("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def wait(self, expression: str) -> None:
        until = time.monotonic() + PATIENCE
        while not self.ask(expression):
            assert time.monotonic() < until, expression
            time.sleep(0.02)

    def place(self, found: str) -> tuple[float, float]:
        """The middle of the element that this expression finds, brought into view and at rest."""
        self.ask(f"({found}).scrollIntoView({{block: 'center', inline: 'center'}})")
        self.ask("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => done(1))))")
        x, y = self.ask(f"(r => [r.x + r.width / 2, r.y + r.height / 2])(({found}).getBoundingClientRect())")
        return x, y

    def hover(self, found: str) -> None:
        x, y = self.place(found)
        self.tell("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def click(self, found: str) -> None:
        x, y = self.place(found)
        for kind in ("mouseMoved", "mousePressed", "mouseReleased"):
            self.tell("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def downloaded(self, name: str) -> Path:
        """The file, once it is whole."""
        path, until = self.downloads / name, time.monotonic() + PATIENCE
        while not path.exists() or any(self.downloads.glob("*.crdownload")):
            assert time.monotonic() < until, f"{name} was not downloaded: {self.says}"
            time.sleep(0.02)
        return path

    def picture(self, path: Path, clip: dict[str, float] | None = None) -> Path:
        shot = self.tell("Page.captureScreenshot", **({"clip": {**clip, "scale": 1}} if clip else {}))
        path.write_bytes(base64.b64decode(shot["data"]))
        return path
