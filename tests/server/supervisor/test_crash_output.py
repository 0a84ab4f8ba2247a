"""What sessions printed before they died."""

from __future__ import annotations

import os

import pytest

from rpcsys.server.supervisor.crash_output import MOST_BYTES, LastWords


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
    words = LastWords(told.append)
    words.keep(1, pipe[0])
    os.write(pipe[1], b"terminate called\nafter")
    words.tell(1)
    words.tell(1)
    assert told == [b"terminate called\nafter"]
    assert is_closed(pipe[0])


def test_nothing_is_left(pipe):
    told: list[bytes] = []
    words = LastWords(told.append)
    words.keep(1, pipe[0])
    words.tell(1)
    words.tell(2)
    assert told == []
    assert is_closed(pipe[0])


def test_no_more_than_a_few_lines(pipe):
    told: list[bytes] = []
    words = LastWords(told.append)
    words.keep(1, pipe[0])
    os.set_blocking(pipe[1], False)
    while True:
        try:
            os.write(pipe[1], b"x" * 4096)
        except BlockingIOError:
            break
    words.tell(1)
    assert sum(map(len, told)) <= MOST_BYTES


def test_descriptors_that_are_no_pipes_or_too_many(pipe, tmp_path):
    told: list[bytes] = []
    words = LastWords(told.append)
    file = os.open(tmp_path / "f", os.O_CREAT | os.O_RDWR)
    assert words.keep(1, file) == file
    assert words.keep(1, pipe[0]) is None
    another, writing = os.pipe()
    assert words.keep(1, another) == another
    for each in (file, another, writing):
        os.close(each)
    words.tell(1)
