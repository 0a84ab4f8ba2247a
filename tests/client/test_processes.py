"""Programs on the device, with the names of `subprocess`."""

import io
import signal
from pathlib import Path

import pytest

from rpcsys.client import processes
from rpcsys.errors import DeadlineExceeded, ProtocolError, SessionLost, UsageError
from rpcsys.wire.byte_streams import OPEN, StreamMessage
from tests.device import Device


@pytest.fixture(scope="module")
def session():
    with Device(allow_exec=True) as device, device.session() as session:
        yield session


def test_a_program_is_a_list():
    assert processes.command(["cat", Path("a")]) == ["cat", "a"]
    for wrong in ("cat a", [], b"cat"):
        with pytest.raises(UsageError, match="a program is a list"):
            processes.command(wrong)


def test_how_a_program_is_started():
    assert processes.described(None, None, False) == {"folder": "", "environment": {}}
    assert processes.described("f", {"A": "b"}, True)["size"] == [24, 80]
    assert processes.described("f", {"A": "b"}, (3, 4)) == {"folder": "f", "environment": {"A": "b"}, "size": [3, 4]}


def test_it_has_the_interface_of_a_process(session):
    with session.popen(["sh", "-c", "read x; echo $x; exit 3"]) as process:
        assert process.poll() is None
        assert "runs" in repr(process)
        with pytest.raises(DeadlineExceeded):
            process.wait(0.1)
        process.stdin.write(b"line\n")
        process.stdin.flush()
        assert process.stdout.read() == b"line\n"
    assert (process.returncode, process.poll(), process.wait()) == (3, 3, 3)
    process.terminate()  # it has ended: nothing happens
    assert process.pid
    assert "ended with 3" in repr(process)


@pytest.mark.parametrize(("end", "number"), [("terminate", signal.SIGTERM), ("kill", signal.SIGKILL)])
def test_a_signal_that_ends_it_is_its_returncode(session, end, number):
    process = session.popen(["sleep", "600"])
    getattr(process, end)()
    assert process.wait(30) == -number


def test_input_may_be_a_file_and_need_not_be_read(session):
    assert session.exec(["cat"], stdin=io.BytesIO(b"x" * (3 << 20))).stdout == b"x" * (3 << 20)
    ended = session.exec(["true"], stdin=bytes(8 << 20))
    assert (ended.returncode, ended.stdout) == (0, b"")
    assert "ended with 0" in repr(ended)


def test_a_closed_program_is_killed(session):
    process = session.popen(["sleep", "600"])
    process.close()
    process.close()
    assert process.wait(30) == -signal.SIGKILL
    assert process.stdout.read() == b""


def test_a_message_that_no_program_sends_is_refused(session):
    process = session.popen(["cat"])
    with pytest.raises(ProtocolError, match="sends no message"):
        process._take(StreamMessage(OPEN, 3))
    process.close()


def test_the_end_of_the_session_ends_all_waits():
    with Device(allow_exec=True) as device, device.session() as session:
        process = session.popen(["cat"])
        device.process.kill()
        assert process.stdout.read() == b""
        with pytest.raises(SessionLost):
            process.wait()
