"""What is printed below the server becomes lines of its log."""

from __future__ import annotations

import logging
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rpcsys.server.supervisor.child_output import BURST, CRASH_BYTES, LINE, PER_S, ChildOutput, CrashOutput
from rpcsys.server.supervisor.loop import Loop


class Script:
    """Output with a clock, and a pipe to print into."""

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
def script():
    made = Script()
    yield made
    made.close()


@pytest.fixture
def said(caplog):
    caplog.set_level(logging.INFO, "rpcsys.server")
    return lambda: [record.getMessage() for record in caplog.records]


def test_lines(script, said):
    script.print(b"one\ntwo\nth")
    script.print(b"ree\n\nlast")
    assert said() == ["printed: one", "printed: two", "printed: three"]
    os.close(script.writing)
    script.loop.run_once(0)
    assert said()[-1] == "printed: last"
    script.writing = script.output.open()  # of the next zygote
    script.print(b"more\n")
    assert said()[-1] == "printed: more"


def test_a_line_without_an_end(script, said):
    script.print(b"x" * 3 * LINE)
    assert said()
    assert max(map(len, said())) <= LINE + len("printed: ")


def test_who_output_without_end_is_left_out_and_that_is_told(script, said):
    script.print(b"flood\n" * (2 * BURST // 6))
    assert sum(map(len, said())) < 4 * BURST
    before = len(said())
    script.print(b"more\n" * 100)
    assert len(said()) == before
    script.now += 10
    script.print(b"quiet\n")
    assert "lines were printed that are left out here" in said()[before]
    assert said()[before + 1 :] == ["printed: quiet"]
    script.print(b"x\n" * (10 * PER_S))
    assert len(said()) - before < PER_S


@given(st.binary(max_size=300))
def test_any_bytes(data):
    script = Script()
    try:
        script.print(data)
    finally:
        script.close()


def test_what_a_crash_leaves_is_told_behind_a_flood(script, said):
    script.print(b"flood\n" * (2 * BURST // 6))
    script.output.crash(b"x\n" * 30_000 + b"terminate called\nafter throwing")
    assert said()[-2:] == ["printed: terminate called", "printed: after throwing"]


# What a crash leaves


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


def test_what_is_left_is_told(pipe):
    told: list[bytes] = []
    words = CrashOutput(told.append)
    words.keep(1, pipe[0])
    os.write(pipe[1], b"terminate called\nafter")
    words.log(1)
    words.log(1)
    assert told == [b"terminate called\nafter"]
    assert is_closed(pipe[0])


def test_nothing_is_left(pipe):
    told: list[bytes] = []
    words = CrashOutput(told.append)
    words.keep(1, pipe[0])
    words.log(1)
    words.log(2)
    assert told == []
    assert is_closed(pipe[0])


def test_no_more_than_a_few_lines(pipe):
    told: list[bytes] = []
    words = CrashOutput(told.append)
    words.keep(1, pipe[0])
    os.set_blocking(pipe[1], False)
    while True:
        try:
            os.write(pipe[1], b"x" * 4096)
        except BlockingIOError:
            break
    words.log(1)
    assert sum(map(len, told)) <= CRASH_BYTES


def test_descriptors_that_are_no_pipes_or_too_many(pipe, tmp_path):
    told: list[bytes] = []
    words = CrashOutput(told.append)
    file = os.open(tmp_path / "f", os.O_CREAT | os.O_RDWR)
    assert words.keep(1, file) == file
    assert words.keep(1, pipe[0]) is None
    another, writing = os.pipe()
    assert words.keep(1, another) == another
    for each in (file, another, writing):
        os.close(each)
    words.log(1)
