"""Log lines that a thread writes."""

import io
import logging
import os
import threading

import pytest

from rpcsys import logs
from rpcsys.daemon import log_handler
from rpcsys.daemon.log_handler import BatchLogHandler


@pytest.fixture
def stream():
    """The stream of the root logger, set up as in a daemon; restored afterwards."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    logs.setup("rpcsys-test")
    written = root.handlers[0].stream = io.StringIO()
    yield written
    root.handlers[:] = handlers
    root.setLevel(level)


def test_all_lines_are_written_in_order(stream):
    made = BatchLogHandler()
    for number in range(1000):
        made.note_all([(float(number), logging.INFO, "granted", {"lease": f"a-{number}"})])
        logging.getLogger("rpcsys.test").info("sentence %d", number)
    made.close()
    lines = stream.getvalue().splitlines()
    assert [line.split(None, 4)[4] for line in lines] == [
        text for number in range(1000) for text in (f"granted lease=a-{number}", f"sentence {number}")
    ]
    logging.getLogger("rpcsys.test").info("after the end")
    assert stream.getvalue().splitlines()[-1].endswith("after the end")


def test_silent_suppresses_information(stream):
    logging.getLogger().setLevel(logging.WARNING)
    made = BatchLogHandler()
    made.note_all([(0.0, logging.INFO, "granted", {})])
    made.note_all([(0.0, logging.WARNING, "set_aside", {"server": "board"})])
    made.close()
    (line,) = stream.getvalue().splitlines()
    assert line.endswith("WARNING set_aside server=board")


def test_dropped_lines_are_counted(stream, monkeypatch):
    monkeypatch.setattr(log_handler, "MAX_LINES", 10)
    full = threading.Event()
    monkeypatch.setattr(stream, "write", lambda text, write=stream.write: (full.wait(60), write(text))[1])
    made = BatchLogHandler()
    made.note_all([(0.0, logging.INFO, "first", {})])
    while made._lines:
        pass  # until the thread has taken it, and hangs
    for _ in range(25):
        made.note_all([(0.0, logging.INFO, "more", {})])
    full.set()
    made.close()
    lines = stream.getvalue().splitlines()
    assert len(lines) == 12
    assert lines[-1].endswith("WARNING missing lines=15")


def test_a_closed_pipe_does_not_stop_the_daemon(stream):
    reader, writer = os.pipe()
    os.close(reader)
    root = logging.getLogger()
    with os.fdopen(writer, "w") as broken:
        root.handlers[0].stream = broken
        made = BatchLogHandler()
        made.note_all([(0.0, logging.INFO, "granted", {})])
        made.close()
        root.handlers[0].stream = stream
        with pytest.raises(BrokenPipeError):
            broken.flush()
        os.dup2(os.open(os.devnull, os.O_WRONLY), writer)


def test_unwritten_long_lines_are_bounded(stream, monkeypatch):
    monkeypatch.setattr(log_handler, "MAX_CHARACTERS", 100_000)
    taken = threading.Event()
    monkeypatch.setattr(stream, "flush", lambda: taken.wait(30))
    made = BatchLogHandler()
    for number in range(1000):
        made.note_all([(float(number), logging.INFO, "joined", {"labels": "x" * 10_000})])
    assert sum(map(len, made._lines)) <= 100_000
    taken.set()
    made.close()
    written = stream.getvalue().count("joined")
    missing = sum(int(word[6:]) for word in stream.getvalue().split() if word.startswith("lines="))
    assert 5 < written < 40
    assert written + missing == 1000
