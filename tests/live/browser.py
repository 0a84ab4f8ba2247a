"""A real Chromium, driven by Debian's chromium-driver over the WebDriver protocol (https://www.w3.org/TR/webdriver2/)."""

from __future__ import annotations

import base64
import json
import re
import shutil
import subprocess
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.live.daemons import wait_until

FLAGS = (
    "--headless",
    "--no-sandbox",  # the tests may run as root
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--lang=en",
)
START_S = 60.0
PHONE, DESKTOP = (390, 844), (1280, 900)


class Browser:
    """One browser with one page. ``folder`` holds its profile and the driver's log; ``flags`` are Chromium's."""

    def __init__(self, folder: Path, size: tuple[int, int] = DESKTOP, flags: Sequence[str] = ()) -> None:
        driver, chromium = shutil.which("chromedriver"), shutil.which("chromium")
        missing = [name for name, path in (("chromium-driver", driver), ("chromium", chromium)) if path is None]
        assert not missing, f"the page's tests need a browser; type: sudo apt-get install {' '.join(missing)}"
        self._log = (folder / "chromedriver.log").open("w+")
        self._process = subprocess.Popen([driver, "--port=0"], stdout=self._log, stderr=subprocess.STDOUT)
        try:
            self._url = f"http://127.0.0.1:{wait_until(self._port, START_S, 'chromedriver is up')}/session"
            options = {"binary": chromium, "args": [*FLAGS, *flags, f"--user-data-dir={folder / 'profile'}"]}
            wanted = {"goog:chromeOptions": options, "goog:loggingPrefs": {"browser": "ALL"}}
            made = self._post("", {"capabilities": {"alwaysMatch": wanted}})
            self._url += "/" + made["sessionId"]
            self.resize(*size)
        except BaseException:
            self.close()
            raise

    def _port(self) -> str | None:
        self._log.seek(0)
        found = re.search(r"started successfully on port (\d+)", self._log.read())
        return found and found[1]

    def close(self) -> None:
        """Close the browser and its driver."""
        try:
            if self._url.count("/session/"):
                self._ask("DELETE", "")
        except (OSError, AttributeError):
            pass
        self._process.terminate()
        self._process.wait(15)
        self._log.close()

    def resize(self, width: int, height: int, dark: bool = False) -> None:
        """Set the size of the screen, in CSS pixels, and its colour scheme."""
        self._size = width, height, dark
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        self._command("Emulation.setDeviceMetricsOverride", **metrics)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self._command("Emulation.setEmulatedMedia", features=[scheme])

    def scripts(self, on: bool) -> None:
        """Whether pages that are opened from now on may run scripts; `run` can do so in any case."""
        self._command("Emulation.setScriptExecutionDisabled", value=not on)

    def go(self, url: str) -> None:
        self._post("/url", {"url": url})

    def run(self, script: str, *values: Any) -> Any:
        """Run ``script`` as the body of a function in the page; its result."""
        return self._post("/execute/sync", {"script": script, "args": values})

    def text(self, selector: str = "body") -> str:
        """The visible text of an element."""
        return self.run("return document.querySelector(arguments[0])?.innerText ?? ''", selector)

    def await_text(self, text: str, selector: str = "body", deadline_s: float = 30.0) -> str:
        """Wait until an element shows ``text``; the element's whole text."""
        return wait_until(
            lambda: (shown := self.text(selector)) if text in self.text(selector) else None,
            deadline_s,
            f"{text!r} is shown",
            0.1,
        )

    def console(self) -> list[str]:
        """The console's messages since the last call."""
        return [entry["message"] for entry in self._post("/se/log", {"type": "browser"})]

    def roles(self) -> Counter[str]:
        """What screen readers find in the page: how many elements of each role."""
        nodes = self._command("Accessibility.getFullAXTree")["nodes"]
        return Counter(node["role"]["value"] for node in nodes if not node["ignored"])

    def screenshot(self, path: Path, whole: bool = True) -> None:
        """The page from top to bottom, on a screen of its height, or what of it fits on the screen, as PNG."""
        width, height, dark = self._size
        for _ in range(3 if whole else 0):  # rows that come in sight have other heights than those that were guessed
            self.resize(width, max(height, self.run("return document.documentElement.scrollHeight")), dark)
        self.run("return new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
        image = self._command("Page.captureScreenshot")
        path.write_bytes(base64.b64decode(image["data"]))
        self.resize(width, height, dark)

    def _command(self, name: str, **params: Any) -> Any:
        return self._post("/goog/cdp/execute", {"cmd": name, "params": params})

    def _post(self, path: str, body: dict[str, Any]) -> Any:
        return self._ask("POST", path, body)

    def _ask(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self._url + path, data, method=method)
        try:
            with urllib.request.urlopen(request, timeout=START_S) as reply:
                return json.load(reply)["value"]
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{path}: {error.read().decode()[:500]}") from None
