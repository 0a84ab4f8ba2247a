"""The process of a hold, without its supervisor: what its holder and those that attach can do."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys

import pytest

from rpcsys.server.sandbox import messages
from rpcsys.wire import frames
from tests.device import ROOT, WAIT_S, Raw, until

PROGRAM = """
import os, socket, sys
from rpcsys.server.sandbox import messages
from rpcsys.server.sandbox.messages import RPCSYS, Job
from rpcsys.server.session import held, session
sock, control = (socket.socket(fileno=int(number)) for number in sys.argv[1:])
held.MAX_ATTACHED = 2
job = Job(RPCSYS, b"", os.getcwd(), "k", "peer", options={"log": False})
report = lambda fields: messages.send_json(control, **fields)
print(session.serve(sock, job, report, lambda: None, control))
"""


class Held:
    """A session process with a ``control`` socket; ``holder``: the client that asked for the hold."""

    def __init__(self, workdir: str) -> None:
        self.control, control = messages.pair()
        ours, theirs = socket.socketpair()
        passed = (theirs.fileno(), control.fileno())
        self.process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, *map(str, passed)], pass_fds=passed, stdout=subprocess.PIPE, text=True,
            cwd=workdir, env={**os.environ, "PYTHONPATH": str(ROOT)},
        )  # fmt: skip
        theirs.close()
        control.close()
        self.holder, _ = greeted(ours, hold=True)
        assert [messages.receive(self.control)[0] for _ in range(2)] == [b'{"opened": true}', b'{"held": true}']

    def attached(self) -> socket.socket:
        ours, theirs = socket.socketpair()
        messages.send_json(self.control, theirs.fileno(), attach="10.0.0.1:9", reply="")
        theirs.close()
        return ours

    def outcome(self) -> str:
        return self.process.communicate(timeout=WAIT_S)[0].strip()


def greeted(sock: socket.socket, **hello: object) -> tuple[Raw, int]:
    """A client, and the PID of its session's process."""
    raw = Raw(sock)
    raw.send(frames.HELLO, 0, {"version": 1, **hello})
    frame = raw.receive()
    assert frame.kind == frames.HELLO
    return raw, frame.get("pid")


@pytest.fixture
def hold(tmp_path):
    hold = Held(str(tmp_path))
    yield hold
    hold.process.kill()
    hold.process.communicate()


def called(raw: Raw, function: str, *args: object) -> object:
    raw.call(1, function, *args)
    frame = raw.receive()
    return frame.get("r") if frame.kind == frames.RESULT else frame.get("message")


def gone(pid: int) -> bool:
    return not os.path.exists(f"/proc/{pid}")


def test_what_attaches_calls_and_the_holder_does_not(hold):
    assert called(hold.holder, "testing.echo", 1).startswith("this session is a hold: it makes no calls")
    (one, first), (two, second) = greeted(hold.attached()), greeted(hold.attached())
    assert len({first, second, hold.process.pid}) == 3
    called(one, "session.make_folders", ["made"])
    assert called(two, "session.listdir") == ["made"]
    hold.holder.send(frames.PING, 7)
    assert hold.holder.receive().kind == frames.PONG
    full = Raw(hold.attached()).receive()
    assert (full.kind, full.get("type")) == (frames.ERROR, "Busy")
    one.send(frames.GOODBYE)
    assert one.ended()
    until(lambda: gone(first), "its process is reaped")
    assert called(greeted(hold.attached())[0], "session.listdir") == ["made"]
    hold.holder.send(frames.GOODBYE)
    assert hold.outcome() == "closed"
    assert two.ended()
    until(lambda: gone(second), "it ends with the hold")


def test_a_session_that_hangs_is_ended_with_its_client(hold):
    client, pid = greeted(hold.attached())
    os.kill(pid, signal.SIGSTOP)
    client.sock.close()
    until(lambda: gone(pid), "it is killed")
    for number, name in ((signal.SIGSEGV, "SIGSEGV"), (signal.SIGRTMIN + 6, f"signal {signal.SIGRTMIN + 6}")):
        crashing, pid = greeted(hold.attached())
        os.kill(pid, number)
        last = crashing.receive()
        assert (last.get("type"), f"was ended by {name}" in last.get("message")) == ("SessionLost", True)


@pytest.mark.parametrize("end", ["control", "holder"])
def test_a_hold_ends_with_its_supervisor_and_with_its_holder(hold, end):
    _, pid = greeted(hold.attached())
    (hold.control if end == "control" else hold.holder.sock).close()
    assert hold.outcome() == "lost"
    until(lambda: gone(pid), "what is attached ends, too")
