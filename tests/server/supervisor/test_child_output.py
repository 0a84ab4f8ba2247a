"""Output of child processes becomes lines of the server's log."""

from __future__ import annotations

import logging
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rpcsys.server.supervisor.child_output import BURST, CRASH_BYTES, LINE, PER_S, ChildOutput, CrashOutput
from rpcsys.server.supervisor.loop import Loop


class PipedOutput:
    """`ChildOutput` with a clock, and an open pipe."""

    def __init__(self) -> None:
        self.now = 100.0
        self.loop = Loop(lambda: self.now)
        self.output = ChildOutput(self.loop)
        self.writing = self.output.open()

    def print(self, data: bytes) -> None:
        view = memoryview(data)
        os.set_blocking(self.writing, False)
        while view:
            try:
                view = view[os.write(self.writing, view) :]
            except BlockingIOError:
                self.loop.run_once(0)
        for _ in range(20):
            self.loop.run_once(0)

    def close(self) -> None:
        os.close(self.writing)
        self.output.close()
        self.loop.close()


@pytest.fixture
def piped():
    made = PipedOutput()
    yield made
    made.close()


@pytest.fixture
def logged(caplog):
    caplog.set_level(logging.INFO, "rpcsys.server")
    return lambda: [record.getMessage() for record in caplog.records]


def test_printed_lines_are_logged(piped, logged):
    piped.print(b"one\ntwo\nth")
    piped.print(b"ree\n\nlast")
    assert logged() == ["printed: one", "printed: two", "printed: three"]
    os.close(piped.writing)
    piped.loop.run_once(0)
    assert logged()[-1] == "printed: last"
    piped.writing = piped.output.open()  # of the next zygote
    piped.print(b"more\n")
    assert logged()[-1] == "printed: more"


def test_an_unfinished_line_is_logged_by_flush(piped, logged):
    piped.print(b"x" * 3 * LINE)
    assert logged()
    assert max(map(len, logged())) <= LINE + len("printed: ")


def test_output_beyond_the_rate_is_omitted_and_counted(piped, logged):
    piped.print(b"flood\n" * (2 * BURST // 6))
    assert sum(map(len, logged())) < 4 * BURST
    before = len(logged())
    piped.print(b"more\n" * 100)
    assert len(logged()) == before
    piped.now += 10
    piped.print(b"quiet\n")
    assert "lines were printed that are left out here" in logged()[before]
    assert logged()[before + 1 :] == ["printed: quiet"]
    piped.print(b"x\n" * (10 * PER_S))
    assert len(logged()) - before < PER_S


@given(st.binary(max_size=300))
def test_any_bytes_are_logged(data):
    piped = PipedOutput()
    try:
        piped.print(data)
    finally:
        piped.close()


def test_crash_output_is_logged_after_a_flood(piped, logged):
    piped.print(b"flood\n" * (2 * BURST // 6))
    piped.output.crash(b"x\n" * 30_000 + b"terminate called\nafter throwing")
    assert logged()[-2:] == ["printed: terminate called", "printed: after throwing"]


# Output of crashed sessions


@pytest.fixture
def pipe():
    reading, writing = os.pipe()
    yield reading, writing
    os.close(writing)


def is_closed(descriptor):
    try:
        os.fstat(descriptor)
    except OSError:
        return True
    return False


def test_a_dead_sessions_output_is_logged(pipe):
    unread: list[bytes] = []
    crashes = CrashOutput(unread.append)
    crashes.keep(1, pipe[0])
    os.write(pipe[1], b"terminate called\nafter")
    crashes.log(1)
    crashes.log(1)
    assert unread == [b"terminate called\nafter"]
    assert is_closed(pipe[0])


def test_an_empty_pipe_logs_nothing(pipe):
    unread: list[bytes] = []
    crashes = CrashOutput(unread.append)
    crashes.keep(1, pipe[0])
    crashes.log(1)
    crashes.log(2)
    assert unread == []
    assert is_closed(pipe[0])


def test_crash_output_is_bounded_to_a_few_lines(pipe):
    unread: list[bytes] = []
    crashes = CrashOutput(unread.append)
    crashes.keep(1, pipe[0])
    os.set_blocking(pipe[1], False)
    while True:
        try:
            os.write(pipe[1], b"x" * 4096)
        except BlockingIOError:
            break
    crashes.log(1)
    assert sum(map(len, unread)) <= CRASH_BYTES


def test_descriptors_other_than_one_pipe_are_returned(pipe, tmp_path):
    unread: list[bytes] = []
    crashes = CrashOutput(unread.append)
    file = os.open(tmp_path / "f", os.O_CREAT | os.O_RDWR)
    assert crashes.keep(1, file) == file
    assert crashes.keep(1, pipe[0]) is None
    another, writing = os.pipe()
    assert crashes.keep(1, another) == another
    for each in (file, another, writing):
        os.close(each)
    crashes.log(1)
