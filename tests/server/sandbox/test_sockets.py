"""What sockets hold, as the kernel tells it."""

import contextlib
import os
import socket

import pytest

from rpcsys.server.sandbox import sockets

MB = 1 << 20


def inode(sock):
    return os.fstat(sock.fileno()).st_ino


def fill(sock):
    sock.setblocking(False)
    total = 0
    try:
        while True:
            total += sock.send(bytes(65536))
    except BlockingIOError:
        return total


def test_what_was_sent_and_is_not_read_counts_for_its_sender():
    one, other = socket.socketpair()
    with one, other:
        both = {inode(one), inode(other)}
        assert sockets.buffered(both) == 0
        total = fill(one)
        assert total <= sockets.buffered(both) < 3 * total
        assert sockets.buffered({inode(other)}) == 0
        assert sockets.buffered(both) <= 2 * sockets.most()


def test_what_a_sender_that_has_left_has_sent_counts_for_who_does_not_read_it():
    one, other = socket.socketpair()
    with other:
        total = fill(one)
        one.close()
        assert sockets.buffered({inode(other)}) >= total


def test_what_was_sent_before_it_was_accepted_counts(tmp_path):
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "place"))
        listener.listen(8)
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(tmp_path / "place"))
            total = fill(client)
        assert sockets.buffered({inode(listener)}) >= total


@pytest.mark.parametrize(("family", "address"), [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")])
def test_connections_to_oneself_count(family, address):
    with contextlib.ExitStack() as stack:
        try:
            listener = stack.enter_context(socket.create_server((address, 0), family=family))
        except OSError:
            pytest.skip(f"no {address} here")
        mine, total = set(), 0
        while total < 2 * sockets.LITTLE:
            client = stack.enter_context(socket.create_connection(listener.getsockname()[:2]))
            accepted = stack.enter_context(listener.accept()[0])
            mine |= {inode(client), inode(accepted)}
            total += fill(client)
        assert total <= sockets.buffered(mine) < 4 * total


def test_other_sockets_do_not_count():
    one, other = socket.socketpair()
    with one, other:
        fill(one)
        assert sockets.buffered(frozenset()) == 0
