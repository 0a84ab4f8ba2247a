"""A client's connection to a model host, which never blocks."""

from __future__ import annotations

import socket

import pytest

from rpcsys.errors import ProtocolError
from rpcsys.server.models.connection import ClientConnection
from rpcsys.stream import Ended
from rpcsys.wire import frames
from rpcsys.wire.memory import Pool


@pytest.fixture
def pair():
    ours, theirs = socket.socketpair()
    connection = ClientConnection(ours, "peer", Pool(), 1 << 20)
    with ours, theirs:
        yield connection, theirs


def ping(number: int) -> bytes:
    return b"".join(frames.pack(frames.PING, number))


def test_frames_are_received_as_they_arrive(pair):
    connection, theirs = pair
    assert connection.receive() == []
    theirs.sendall(ping(1) + ping(2) + ping(3)[:10])
    assert [frame.call_id for frame in connection.receive()] == [1, 2]
    assert connection.receive() == []
    theirs.sendall(ping(3)[10:])
    assert [frame.call_id for frame in connection.receive()] == [3]


@pytest.mark.parametrize("begun", [1, 23, 24, 30])
def test_carefully_no_byte_is_read_beyond_the_frame(pair, begun):
    connection, theirs = pair
    head, buffers = frames.encode_head({"f": [0, "main"], "a": [b"x" * 100_000]})
    whole = b"".join(frames.pack(frames.CALL, 7, head, buffers))
    theirs.sendall(whole[:begun])
    assert connection.receive() == []
    theirs.sendall(whole[begun:] + ping(8))
    found = []
    for _ in range(100):
        found += connection.receive(carefully=True)
    assert [frame.call_id for frame in found] == [7]
    assert bytes(found[0].buffers[0]) == b"x" * 100_000
    assert connection.stream.missing == 0
    assert connection.socket.recv(1000) == ping(8)  # left for the next process


def test_unsent_data_is_kept_and_sent_in_order(pair):
    connection, theirs = pair
    pieces = [[bytes([number]) * 300_000] for number in range(5)]
    sent = [connection.send(piece) for piece in pieces]
    assert not all(sent)
    assert connection.backlog
    theirs.settimeout(10)
    received = b""
    while len(received) < 1_500_000:
        received += theirs.recv(65536)
        connection.flush()
    assert received == b"".join(piece[0] for piece in pieces)
    assert not connection.backlog


def test_a_closed_peer_raises_ended_on_reading_only(pair):
    connection, theirs = pair
    theirs.close()
    assert connection.send([b"nobody reads this"])  # only reading shows it
    with pytest.raises(Ended):
        connection.receive()
    connection.close()
    assert connection.send([b"nor this"])


def test_a_frame_that_is_too_large_is_refused(pair):
    connection, theirs = pair
    head, _ = frames.encode_head({"f": 1, "a": [b""]})
    theirs.sendall(frames.HEADER.pack(len(head), frames.CALL, 0, 0, 0, 1, 2 << 20) + head)
    with pytest.raises(ProtocolError, match="at most 1048576 here"):
        connection.receive()
