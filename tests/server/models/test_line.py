"""One client's connection: nothing in it waits."""

from __future__ import annotations

import socket

import pytest

from rpcsys.errors import ProtocolError
from rpcsys.server.models.line import Line
from rpcsys.stream import Ended
from rpcsys.wire import frames
from rpcsys.wire.memory import Pool


@pytest.fixture
def pair():
    ours, theirs = socket.socketpair()
    line = Line(ours, "peer", Pool(), 1 << 20)
    with ours, theirs:
        yield line, theirs


def ping(number: int) -> bytes:
    return b"".join(frames.pack(frames.PING, number))


def test_frames_as_they_come(pair):
    line, theirs = pair
    assert line.receive() == []
    theirs.sendall(ping(1) + ping(2) + ping(3)[:10])
    assert [frame.call_id for frame in line.receive()] == [1, 2]
    assert line.receive() == []
    theirs.sendall(ping(3)[10:])
    assert [frame.call_id for frame in line.receive()] == [3]


@pytest.mark.parametrize("begun", [1, 23, 24, 30])
def test_carefully_not_a_byte_past_the_frame_that_has_begun(pair, begun):
    line, theirs = pair
    head, buffers = frames.encode_head({"f": [0, "main"], "a": [b"x" * 100_000]})
    whole = b"".join(frames.pack(frames.CALL, 7, head, buffers))
    theirs.sendall(whole[:begun])
    assert line.receive() == []
    theirs.sendall(whole[begun:] + ping(8))
    found = []
    for _ in range(100):
        found += line.receive(carefully=True)
    assert [frame.call_id for frame in found] == [7]
    assert bytes(found[0].buffers[0]) == b"x" * 100_000
    assert line.reader.missing == 0
    assert line.socket.recv(1000) == ping(8)  # left for who goes on


def test_what_the_peer_does_not_take_stays_and_goes_out_in_order(pair):
    line, theirs = pair
    pieces = [[bytes([number]) * 300_000] for number in range(5)]
    sent = [line.send(piece) for piece in pieces]
    assert not all(sent)
    assert line.backlog
    theirs.settimeout(10)
    received = b""
    while len(received) < 1_500_000:
        received += theirs.recv(65536)
        line.flush()
    assert received == b"".join(piece[0] for piece in pieces)
    assert not line.backlog


def test_a_peer_that_is_gone(pair):
    line, theirs = pair
    theirs.close()
    assert line.send([b"nobody reads this"])  # reading tells
    with pytest.raises(Ended):
        line.receive()
    line.close()
    assert line.send([b"nor this"])


def test_what_is_no_frame_and_what_is_too_large(pair):
    line, theirs = pair
    head, _ = frames.encode_head({"f": 1, "a": [b""]})
    theirs.sendall(frames.HEADER.pack(len(head), frames.CALL, 0, 0, 0, 1, 2 << 20) + head)
    with pytest.raises(ProtocolError, match="at most 1048576 here"):
        line.receive()
