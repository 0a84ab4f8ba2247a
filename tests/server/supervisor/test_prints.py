"""What is printed below the server becomes lines of its log."""

from __future__ import annotations

import logging
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rpcsys.server.supervisor.loop import Loop
from rpcsys.server.supervisor.prints import BURST, LINE, PER_S, Prints


class Script:
    """Prints with a clock, and a pipe to print into."""

    def __init__(self) -> None:
        self.now = 100.0
        self.loop = Loop()
        self.prints = Prints(self.loop, lambda: self.now)
        self.writing = self.prints.open()

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
        self.prints.close()
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
    script.writing = script.prints.open()  # of the next zygote
    script.print(b"more\n")
    assert said()[-1] == "printed: more"


def test_a_line_without_an_end(script, said):
    script.print(b"x" * 3 * LINE)
    assert said()
    assert max(map(len, said())) <= LINE + len("printed: ")


def test_who_prints_without_end_is_left_out_and_that_is_told(script, said):
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


def test_last_words_have_a_place_behind_a_flood(script, said):
    script.print(b"flood\n" * (2 * BURST // 6))
    script.prints.last(b"x\n" * 30_000 + b"terminate called\nafter throwing")
    assert said()[-2:] == ["printed: terminate called", "printed: after throwing"]
