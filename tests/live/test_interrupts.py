"""Ctrl-C in programs with a leased device: a child process gets SIGINT while a call runs, and goes on."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import rpcsys
from rpcsys import module
from tests.live import deployed
from tests.live.daemons import START_S, Daemon, Daemons, queue, wait_until

BEGIN = """
import sys, threading, time
import numpy as np
import rpcsys

tracker = rpcsys.connect_tracker(sys.argv[1], user="mo")
session = tracker.request("edge")


def under_way():
    while not session._channel._receiver.pending:
        time.sleep(0.01)
    print("ready", flush=True)


"""
LOOP = """
loop = session.load_module(sys.argv[2])
for wait in (loop, lambda x: loop.submit(loop.submit(x).result()).result(), loop.time_evaluator(number=1)):
    threading.Thread(target=under_way).start()
    try:
        wait(np.int64(1 << 62))
    except KeyboardInterrupt as error:
        assert not str(error), error
    print(int(loop(np.int64(11))), flush=True)
"""
SLEEP = """
sleep = session.get_function("testing.sleep")
threading.Thread(target=under_way).start()
try:
    sleep(600)
except KeyboardInterrupt as error:
    print(error, flush=True)
print(tracker.request("edge", wait_timeout=20).get_function("testing.echo")("right"), flush=True)
"""
QUEUE = """
import sys
import rpcsys

try:
    rpcsys.connect_tracker(sys.argv[1], user="mo").request("edge")
except KeyboardInterrupt:
    print("left", flush=True)
sys.stdin.read()
"""


class Program:
    """A child process with pipes; a context manager that waits for its end."""

    def __init__(self, *words: object) -> None:
        self.process = subprocess.Popen(
            [sys.executable, *map(str, words)], stdin=-1, stdout=-1, stderr=-1, text=True, bufsize=1
        )

    def line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def interrupt(self) -> None:
        self.process.send_signal(signal.SIGINT)

    def end(self) -> tuple[int, str]:
        """The exit status, and what it wrote to standard error."""
        _, errors = self.process.communicate(timeout=START_S)
        return self.process.returncode, errors


@pytest.fixture
def tracker(daemons: Daemons) -> Daemon:
    started = daemons.tracker()
    daemons.server("edge", *deployed.WITH_NUMPY, tracker=started)
    return started


def test_a_long_model_is_stopped_and_the_session_goes_on(tracker: Daemon, tmp_path: Path) -> None:
    model = deployed.endless_model(tmp_path / "loop.onnx")
    program = Program("-c", BEGIN + LOOP, tracker.where, model)
    for _ in range(3):
        assert program.line() == "ready"
        program.interrupt()
        assert program.line() == "11"
    assert program.end() == (0, "")


def test_a_function_that_cannot_be_stopped_costs_the_session_and_frees_the_slot(tracker: Daemon) -> None:
    program = Program("-c", BEGIN + SLEEP, tracker.where)
    assert program.line() == "ready"
    program.interrupt()
    line = program.line()
    assert line.startswith("the session with ")
    assert " is lost, and the modules, arrays and files on it: the call was cancelled; its process was ended" in line
    assert program.line() == "right"
    assert program.end() == (0, "")


def test_a_waiting_request_leaves_the_queue_at_once(tracker: Daemon) -> None:
    with rpcsys.connect_tracker(tracker.where) as queues, queues.request("edge"):
        program = Program("-c", QUEUE, tracker.where)
        wait_until(lambda: queue(tracker, "edge")["pending"] == 1, START_S, "the request to wait")
        program.interrupt()
        assert program.line() == "left"
        wait_until(lambda: queue(tracker, "edge")["pending"] == 0, START_S, "the place to be given up")
        assert program.process.poll() is None
        assert program.end()[0] == 0


def test_a_command_is_interrupted_in_one_line(tracker: Daemon, tmp_path: Path) -> None:
    model = deployed.endless_model(tmp_path / "loop.onnx")
    feed = tmp_path / "feed.npz"
    np.savez(feed, n=np.int64(1 << 62))
    program = Program("-m", "rpcsys", "run", model, feed, "--key", "edge", "--tracker", tracker.where)
    while not program.line().startswith("inputs:"):
        assert program.process.poll() is None
    program.interrupt()
    status, errors = program.end()
    assert (status, errors.strip().splitlines()[-1:]) == (130, ["rpcsys: interrupted"])
    assert "Traceback" not in errors
    wait_until(lambda: queue(tracker, "edge")["free"] == 1, START_S, "the slot to be free")


class Slow:
    """An object that loads for longer than any test."""

    def __reduce__(self) -> tuple[Callable[[float], None], tuple[float]]:
        return time.sleep, (600.0,)


def test_an_interrupted_deploy_names_the_command_that_shows_its_effect(tmp_path: Path) -> None:
    slow, root = Slow(), tmp_path / "deploy"
    library = tmp_path / "slow.so"
    module.export_library(module.python({"main": lambda: slow}), library)
    daemons = Daemons(tmp_path)
    try:
        where = daemons.server("edge", *deployed.WITH_NUMPY, "--deploy", str(root)).where
        program = Program("-m", "rpcsys", "deploy", library, "--to", where)
        wait_until(lambda: list(root.glob("slow/0001-*")), START_S, "the server to load the module")
        program.interrupt()
        status, errors = program.end()
        shows = f"rpcsys deploy --list --to {where}"
        line = f"rpcsys: interrupted: slow may still go live at {where}; this shows it: {shows}"
        assert (status, errors.strip().splitlines()[-1:]) == (130, [line])
        wait_until(lambda: not list(root.glob("slow/0001-*")), START_S, "the server to drop the module")
    finally:
        daemons.stop()
