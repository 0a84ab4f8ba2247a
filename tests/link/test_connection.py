"""One connection to a tracker; what `Link` adds is in test_link.py."""

import socket
import time

import pytest

from rpcsys.errors import TrackerError, TrackerUnreachable, UnknownKey
from rpcsys.link.connection import MAX_MESSAGE, TrackerConnection, error_of
from tests.link.fake_replicas import replicas


def opened(address, **more):
    return TrackerConnection(address, user="ann", capabilities=("session/1", "replicas/1"), timeout=30, **more)


def advance(connection, until):
    messages = []
    end = time.monotonic() + 30
    while not until(messages):
        assert time.monotonic() < end
        connection.wait(1)
        messages += connection.advance()
    return messages


def test_the_conversation_begins_anew_on_the_same_connection():
    with replicas(2) as group:
        connection = opened(group.each[1].address)
        advance(connection, lambda _: connection.ready)
        assert connection.welcome["role"] == "standby"
        number = connection.fileno()
        group.lead(1)
        (news,) = advance(connection, bool)
        assert (news["here"], news["term"]) == (True, 2)
        connection.begin_anew(30)
        assert not connection.ready
        assert connection.due < float("inf")
        advance(connection, lambda _: connection.ready)
        assert (connection.welcome["role"], connection.welcome["term"]) == ("leader", 2)
        assert connection.fileno() == number
        assert len(group.each[1].connections) == 1
        connection.close()


def test_why_there_is_no_answer_is_kept():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = listener.getsockname()
    connection = opened(address)
    with pytest.raises(TrackerUnreachable):
        advance(connection, lambda _: False)
    assert connection.reason == "Connection refused"
    connection.close()
    connection.close()


def test_an_error_has_the_class_that_the_tracker_names_and_a_bounded_text():
    assert type(error_of({"ok": False, "error": "UnknownKey", "message": "no"})) is UnknownKey
    found = error_of({"ok": False, "error": "Exception", "message": "x" * 10_000})
    assert type(found) is TrackerError
    assert len(str(found)) <= MAX_MESSAGE
