"""Makes the pictures of README.md from real runs: a terminal (SVG), and the tracker's page (PNG).

python docs/site/pictures.py [terminal] [page]        both, without a name; `make pictures` is this
"""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PICTURES = ROOT / "docs" / "pictures"
sys.path[:0] = [str(ROOT), str(Path(__file__).resolve().parent)]

import terminal  # noqa: E402

from rpcsys.graph import samples  # noqa: E402
from rpcsys.lab import Lab  # noqa: E402

PAGE_SIZE = 1280, 1040  # CSS pixels
COMMANDS = (
    "rpcsys shell --key desk",
    "rpcsys exec uname -srm",
    "rpcsys run model.onnx",
    "rpcsys compare model.onnx@threads=1 model.onnx@threads=2",
    "exit",
)


def make_terminal() -> None:
    """Two device servers and a shell that uses one of them, on this machine."""
    with tempfile.TemporaryDirectory(prefix="rpcsys-pictures-") as folder:
        samples.save(samples.light_model("squeezenet"), Path(folder) / "model.onnx")
        with Lab({"desk": 2}, server_args=["--allow-exec"]) as lab:
            environment = {**os.environ, "RPCSYS_TRACKER": "{}:{}".format(*lab.tracker_address)}
            environment["PATH"] = f"{Path(sys.executable).parent}:{environment['PATH']}"
            recorded = terminal.record(COMMANDS, Path(folder), environment)
    title = "A shell that leases a board, runs a model and a program on it, and gives it back"
    (PICTURES / "terminal.svg").write_text(terminal.svg(recorded, title), encoding="utf-8")


def make_page() -> None:
    """The page of a tracker that has sample boards, users and leases, in Chromium."""
    from tests.live import browser, daemons, sample_lab

    with tempfile.TemporaryDirectory(prefix="rpcsys-pictures-") as folder, contextlib.ExitStack() as open_things:
        started = daemons.Daemons(Path(folder))
        open_things.callback(started.stop)
        lab = open_things.enter_context(sample_lab.sample_lab(started))
        page = browser.Browser(Path(folder), PAGE_SIZE, ["--hide-scrollbars"])
        open_things.callback(page.close)
        page.go(lab.url)
        page.await_text("shelf-1")
        time.sleep(3)  # its figures are drawn after each other
        page.screenshot(PICTURES / "page.png", whole=False)


MAKERS = {"terminal": make_terminal, "page": make_page}

if __name__ == "__main__":
    for name in sys.argv[1:] or MAKERS:
        MAKERS[name]()
        print(f"pictures: {name}")
