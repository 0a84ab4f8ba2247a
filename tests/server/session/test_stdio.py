"""A session's output, as its client receives it."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import cloudpickle
import pytest

from rpcsys.server.session import stdio
from rpcsys.server.session.operations import PYTHON
from rpcsys.wire import frames
from tests.device import Device, until
from tests.native import ROOT


@pytest.fixture
def device():
    with Device(log=True, allow_pickle=True) as device:
        yield device


@pytest.fixture
def raw(device):
    return device.raw()


def run(raw, function, *args):
    raw.call(1, "session.run", PYTHON, cloudpickle.dumps(function), *args)


def logged(raw, until):
    """Return the lines of LOG frames up to ``until``, without the process's reports, and the number of lost lines."""
    lines, lost = [], 0
    while until not in lines:
        frame = raw.receive()
        if frame.kind == frames.LOG:
            lines += [line for line in frame.get("message").split("\n") if not line.startswith("{")]
            lost += frame.get("lost", 0)
    return lines, lost


def test_lines_of_python_and_native_code_are_forwarded(raw):
    def speak():
        import ctypes
        import os
        import sys

        print("from Python")
        print("an error", file=sys.stderr)
        ctypes.CDLL(None).puts(b"from C")
        os.write(1, b"\xff raw\nend\n")

    run(raw, speak)
    lines, lost = logged(raw, "end")
    assert sorted(lines) == sorted(["from Python", "an error", "from C", "\ufffd raw", "end"])
    assert lost == 0


def test_an_unfinished_line_is_sent_after_a_while(raw):
    def ask():
        import sys

        sys.stdout.write("name? ")
        sys.stdout.flush()

    run(raw, ask)
    assert logged(raw, "name? ")[0] == ["name? "]


def test_a_long_line_is_cut(raw):
    def speak(size):
        print("x" * size)
        print("end")

    run(raw, speak, 3 * stdio.LINE_BYTES + 5)
    lines, _ = logged(raw, "end")
    assert max(map(len, lines)) == stdio.LINE_BYTES


def test_lines_that_a_client_does_not_read_are_dropped_and_counted(device, raw):
    """The session continues meanwhile: it never waits for a client that does not read."""

    def flood(count):
        from pathlib import Path

        for number in range(count):
            print(f"line {number} {'.' * 70}")
        Path("done").touch()
        print("end")

    run(raw, print, "ready")
    logged(raw, "ready")  # the reports before it, too, which else may be among those dropped
    run(raw, flood, 100_000)
    until((device.workdir / "done").exists, "the function to end")
    lines, lost = logged(raw, "end")
    numbers = [int(line.split()[1]) for line in lines if line.startswith("line")]
    assert numbers == sorted(numbers)
    assert lost > 0
    assert len(numbers) + lost == 100_000


MOVED = """
import array, fcntl, json, os, sys, termios
from rpcsys.server.session import stdio

def waiting(descriptor):
    count = array.array("i", [0])
    fcntl.ioctl(descriptor, termios.FIONREAD, count)
    return count[0]

class Calls:
    tee, left = stdio.LIBC.tee, []

    def splice(self, *arguments):
        self.left.append(waiting(forwarder.pipe))
        return stdio_calls.splice(*arguments)

stdio_calls, stdio.LIBC = stdio.LIBC, Calls()
answer, log = os.dup(1), int(sys.argv[1])
os.dup2(log, 2)
stdio.by_line = bool
forwarder = stdio.OutputForwarder(None, None)
os.write(1, b"the last words")
copy = forwarder._log()
os.write(answer, json.dumps([Calls.left, waiting(forwarder.pipe), copy.decode()]).encode())
"""


@pytest.mark.parametrize("log", ["pipe", "appended to"])
def test_output_is_in_the_pipe_until_it_is_in_the_log(tmp_path, log):
    """So a crash in between loses nothing: the supervisor logs what is in the pipe."""
    if log == "pipe":
        reading, writing = os.pipe()
    else:
        writing = os.open(tmp_path / "log", os.O_CREAT | os.O_APPEND | os.O_WRONLY)
        reading = os.open(tmp_path / "log", os.O_RDONLY)
    command = [sys.executable, "-c", MOVED, str(writing)]
    done = subprocess.run(command, pass_fds=[writing], stdout=subprocess.PIPE, timeout=60, cwd=ROOT)
    os.close(writing)
    assert json.loads(done.stdout) == [[14], 0, "the last words"]
    assert os.read(reading, 100) == b"the last words"
    os.close(reading)


def test_what_was_printed_before_comes_before_the_boards_state(raw):
    """Without the wait, every third line under load, and some on an idle machine, come later."""
    for number in range(300):
        run(raw, lambda number=number: os.write(1, b"line %d\n" % number) and None)
        raw.call(2, "session.board_state")
        received = []
        while len([frame for frame in received if frame.kind == frames.RESULT]) < 2:
            received.append(raw.receive())
        printed = [frame.get("message") for frame in received if frame.kind == frames.LOG]
        assert f"line {number}" in "\n".join(printed).split("\n")
