"""Byte streams without their pump: what waits in them, what they wait for, and their descriptors."""

import os
import select
import socket

from hypothesis import given
from hypothesis import strategies as st

from rpcsys.byte_streams import Backlog, ByteStream, listening, pipe_for, stream_of


@given(st.lists(st.tuples(st.integers(0, 9000), st.integers(0, 20000))))
def test_a_backlog_keeps_all_bytes_in_order(steps):
    backlog, put, got = Backlog(), bytearray(), bytearray()
    for number, (length, taken) in enumerate(steps):
        piece = bytes([number % 251]) * length
        put += piece
        backlog.append(memoryview(piece))
        if backlog:
            with backlog.first() as first:
                count = min(taken, len(first))
                got += first[:count]
            backlog.drop(count)
    while backlog:
        with backlog.first() as first:
            got += first
            count = len(first)
        backlog.drop(count)
    assert got == put


def test_many_short_pieces_take_no_more_memory_than_their_bytes():
    backlog = Backlog()
    for _ in range(100_000):
        backlog.append(memoryview(b"x"))
    assert len(backlog._pieces) <= 2
    backlog.clear()
    assert not backlog


def test_a_stream_waits_for_what_it_can_do():
    stream = ByteStream(1, 2, source=10, target=11)
    assert stream.mask() == {10: select.POLLIN}
    stream.backlog.append(memoryview(b"x"))
    assert stream.mask() == {10: select.POLLIN, 11: select.POLLOUT}
    stream.credit = 0
    assert stream.mask() == {11: select.POLLOUT}
    shared = ByteStream(1, 2, 10, 10)
    shared.backlog.append(memoryview(b"x"))
    assert shared.mask() == {10: select.POLLIN | select.POLLOUT}


def test_a_write_takes_what_there_is_space_for():
    ours, theirs = pipe_for(reads=False)
    stream = ByteStream(1, 2, target=ours)
    taken = stream.write(bytes(4 << 20))
    assert 0 < taken == stream.freed < 4 << 20
    assert stream.write(b"x") == 0
    assert not os.get_blocking(ours)
    assert os.get_blocking(theirs)
    os.close(ours)
    os.close(theirs)


def test_a_socket_is_closed_by_halves():
    with listening(0) as listener, socket.create_connection(listener.getsockname()) as peer:
        select.select([listener], [], [], 10)
        stream = stream_of(1, 0, listener.accept()[0])
        stream.end_of_input()
        assert peer.recv(1) == b""
        peer.sendall(b"more")
        assert select.select([stream.source], [], [], 10)[0]
        assert os.read(stream.source, 10) == b"more"
        os.close(stream.shared)
