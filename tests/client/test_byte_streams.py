"""The client's byte streams: who reads for them, and older servers."""

import threading

import pytest

from rpcsys.client import byte_streams
from rpcsys.errors import NotSupported, SessionLost
from tests.device import Device, until


def readers(name="rpcsys-streams-reader"):
    return [thread for thread in threading.enumerate() if thread.name == name]


def test_a_thread_reads_while_there_are_streams():
    before = len(readers())
    with Device(allow_exec=True) as device, device.session() as session:
        first, second = session.popen(["cat"]), session.popen(["cat"])
        assert len(readers()) == before + 1
        for process in (first, second):
            process.stdin.close()
            assert process.wait(30) == 0
        until(lambda: len(readers()) == before)
        assert session.exec(["echo", "again"]).stdout == b"again\n"
        until(lambda: len(readers()) == before)


def test_nothing_is_left_here_of_a_session_that_is_closed():
    before = readers("rpcsys-streams")
    with Device(allow_exec=True) as device:
        session = device.session()
        with session.forward(80):
            assert len(readers("rpcsys-streams")) == len(before) + 1
        until(lambda: session._streams.pump.idle and not session._streams.pump._jobs)  # only the end wakes it
        session.close()
        until(lambda: readers("rpcsys-streams") == before)


def test_an_older_server_is_told_apart():
    with pytest.raises(NotSupported, match="update rpcsys there"):
        byte_streams.check_able({"capabilities": {"pickle": True}})
    byte_streams.check_able({"capabilities": {"exec": False}})


def test_nothing_is_opened_in_a_session_that_is_over():
    with Device(allow_exec=True) as device, device.session() as session:
        session.exec(["true"])
        device.process.kill()
        with pytest.raises(SessionLost):
            until(lambda: session.get_function("testing.nop")() and False)
        for start in (lambda: session.popen(["true"]), lambda: session.forward(80)):
            with pytest.raises(SessionLost):
                start()
