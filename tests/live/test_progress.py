"""What a person sees while a command waits and works, and that none of it is in its output."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path

import onnx

import rpcsys
from tests.graph.running import chain
from tests.live.daemons import Daemons, queue, wait_until

KEY = "board"
WAIT_S = 60.0


def test_a_command_that_waits_shows_its_place_and_prints_results_alone(daemons: Daemons, tmp_path: Path) -> None:
    model = tmp_path / "chain.onnx"
    onnx.save(chain(2), model)
    tracker = daemons.tracker()
    daemons.server(KEY, "--tvm", "off", "--preload", "none", tracker=tracker)
    ours, theirs = pty.openpty()
    shown = bytearray()

    def look() -> None:
        with contextlib.suppress(OSError):  # at its end
            while data := os.read(ours, 4096):
                shown.extend(data)

    threading.Thread(target=look, daemon=True).start()
    words = [sys.executable, "-m", "rpcsys", "run", "--tracker", tracker.where, "--key", KEY, "--json", str(model)]
    environment = {**os.environ, "TERM": "xterm", "NO_COLOR": "1"}

    def command() -> subprocess.Popen[bytes]:
        return subprocess.Popen(words, stdout=subprocess.PIPE, stderr=theirs, stdin=theirs, env=environment)

    before = subprocess.run(["stty", "-a"], stdin=theirs, capture_output=True, check=True).stdout
    with rpcsys.connect_tracker(tracker.address) as connection, connection.request(KEY):
        waiting = command()
        wait_until(lambda: b"place 1 in the queue" in shown and b"00:02" in shown, WAIT_S, "the place, and a clock")
        waiting.send_signal(signal.SIGINT)
        out, _ = waiting.communicate(timeout=WAIT_S)
        assert (waiting.returncode, out) == (130, b"")
        gone = rb"\r +\r\r\nrpcsys: interrupted\r\n$"
        wait_until(lambda: re.search(gone, shown), WAIT_S, "the line is gone")
        assert b"\x1b[3" not in shown
        wait_until(lambda: queue(tracker, KEY)["pending"] == 0, WAIT_S, "it has left the queue")
        waiting = command()
        wait_until(lambda: queue(tracker, KEY)["pending"] == 1, WAIT_S, "it waits")
    out, _ = waiting.communicate(timeout=WAIT_S)
    assert waiting.returncode == 0
    assert json.loads(out)["time_s"]
    wait_until(lambda: b"  timing: " in shown, WAIT_S, "the bar")
    assert subprocess.run(["stty", "-a"], stdin=theirs, capture_output=True, check=True).stdout == before
    os.close(theirs)
