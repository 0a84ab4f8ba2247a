"""Where a remote function is, and what is wrong with how that is said."""

from __future__ import annotations

import math

import pytest

from rpcsys.client.endpoint import Endpoint, open_at
from rpcsys.errors import NotSupported, ServerUnreachable
from rpcsys.wire import frames
from tests.client.test_lying_server import frame, session_with


@pytest.mark.parametrize(
    ("endpoint", "complaint"),
    [
        (Endpoint("f", address="host:1"), ""),
        (Endpoint("f", key="k", tracker="host:1"), ""),
        (Endpoint("f", serve="m", tracker="host:1"), ""),
        (Endpoint("", address="host:1"), "has a name"),
        (Endpoint("f"), "give one of the two"),
        (Endpoint("f", address="host:1", tracker="host:1"), "give one of the two"),
        (Endpoint("f", tracker="host:1"), "give one"),
        (Endpoint("f", address="host:1", wait_s=0), "wait_s"),
        (Endpoint("f", address="host:1", wait_s=math.inf), "wait_s"),
        (Endpoint("f", address="host:1", deadline_s=-1), "deadline_s"),
        (Endpoint("f", address="host"), "no address"),
    ],
)
def test_complaints(endpoint, complaint):
    assert complaint in endpoint.complaint()
    assert bool(complaint) == bool(endpoint.complaint())


def test_as_text():
    assert str(Endpoint("f", address="host:1")) == "f at host:1"
    assert str(Endpoint("f", serve="m", tracker="host:1")) == "m.f at a server of the tracker host:1"


def replies(*results):
    return [frame(frames.RESULT, {"r": result}, number) for number, result in enumerate(results, 1)]


def test_a_function_of_a_session():
    with session_with(*replies(True, 5)) as address:
        where = "{}:{}".format(*address)
        connection = open_at(Endpoint("f", key="k", address=where), {}, ("zlib",), 10.0, ())
        try:
            assert connection.call(1) == 5
            assert connection.where == where
            assert not connection.others
        finally:
            connection.close()


def test_an_encoding_that_the_server_does_not_know():
    with session_with() as address, pytest.raises(NotSupported, match="cannot decode zstd"):
        open_at(Endpoint("f", address="{}:{}".format(*address)), {}, ("zstd",), 10.0, ())


def test_nobody_there():
    with pytest.raises(ServerUnreachable):
        open_at(Endpoint("f", address="127.0.0.1:1"), {}, (), 2.0, ())
