"""A real browser for tests: Chromium without a window, spoken to through its debugging pipe, so that nothing is
installed but Debian's package."""

import base64
import contextlib
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


def find_chromium() -> str | None:
    return next((path for name in NAMES if (path := shutil.which(name))), None)


class Tab:
    """One page. `complaints` are what its console and its scripts said, and every request that left the file."""

    def __init__(self, to_browser: int, from_browser: int) -> None:
        self._to, self._from = to_browser, from_browser
        self._sent, self._buffer, self._session = 0, b"", ""
        self._loaded = False
        self.complaints: list[str] = []
        self.requests: list[str] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._sent += 1
        message = {"id": self._sent, "method": method, "params": parameters}
        message |= {"sessionId": self._session} if self._session else {}
        os.write(self._to, json.dumps(message).encode() + b"\0")
        while (answer := self._next()).get("id") != self._sent:
            self._note(answer)
        assert "error" not in answer, answer
        return answer["result"]

    def open(self, page: Path, width: int, *, dark: bool = False, media: str = "") -> None:
        scheme = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        size = {"width": width, "height": 844, "deviceScaleFactor": 1, "mobile": False}
        self.call("Emulation.setEmulatedMedia", media=media, features=scheme)
        self.call("Emulation.setDeviceMetricsOverride", **size)
        self._loaded = False
        self.call("Page.navigate", url=page.as_uri())
        while not self._loaded:
            self._note(self._next())

    def evaluate(self, script: str) -> Any:
        found = self.call("Runtime.evaluate", expression=script, returnByValue=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def screenshot(self) -> bytes:
        return base64.b64decode(self.call("Page.captureScreenshot", captureBeyondViewport=True)["data"])

    def pdf(self) -> bytes:
        return base64.b64decode(self.call("Page.printToPDF", printBackground=True)["data"])

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            piece = os.read(self._from, 1 << 16)
            assert piece, "the browser ended"
            self._buffer += piece
        message, _, self._buffer = self._buffer.partition(b"\0")
        return json.loads(message)

    def _note(self, event: dict[str, Any]) -> None:
        method, about = event.get("method"), event.get("params", {})
        self._loaded |= method == "Page.loadEventFired"
        if method in ("Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded"):
            self.complaints.append(json.dumps(about))
        if method == "Network.requestWillBeSent":
            self.requests.append(about["request"]["url"])


@contextlib.contextmanager
def browser(executable: str) -> Iterator[Tab]:
    """A tab in a browser of its own, with a profile that is thrown away."""
    commands, answers = os.pipe(), os.pipe()
    # The browser reads commands from descriptor 3 and writes answers to 4.
    words = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars"]
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        started = [executable, *words, f"--user-data-dir={profile}", "--remote-debugging-pipe"]
        shell = f'exec "$@" 3<&{commands[0]} 4>&{answers[1]}'
        process = subprocess.Popen(
            ["bash", "-c", shell, "bash", *started],
            pass_fds=(commands[0], answers[1]), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        os.close(commands[0])
        os.close(answers[1])
        try:
            yield Tab(commands[1], answers[0])
        finally:
            os.close(commands[1])  # upon which it ends
            os.close(answers[0])
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
