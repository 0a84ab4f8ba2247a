"""Makes the pictures of README.md from real runs: a terminal (SVG), and the tracker's page (PNG).

python docs/site/pictures.py [terminal] [page]        both, without a name; `make pictures` is this
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PICTURES = ROOT / "docs" / "pictures"
sys.path[:0] = [str(ROOT), str(Path(__file__).resolve().parent)]

import terminal  # noqa: E402

from rpcsys.graph import samples  # noqa: E402
from rpcsys.lab import Lab  # noqa: E402

COMMANDS = (
    "query_tracker",
    "rpcsys compare model.onnx@threads=2 model.onnx@threads=1 --key desk",
    "rpcsys shell --key desk",
    "rpcsys exec uname -srm",
    "rpcsys run model.onnx",
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
