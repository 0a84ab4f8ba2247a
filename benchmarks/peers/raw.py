"""A raw Python socket: the speed limit of a blocking Python program on this machine.

An exchange: 16 bytes with two lengths, then so many bytes to the server and so many back. A ping has the lengths 0 and
16. The receiver reads into reused memory; the socket options are those of rpcsys.
"""

from __future__ import annotations

import itertools
import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager

from benchmarks.peers.memory import octets
from benchmarks.peers.subject import Subject, Trial, TwoAtOnce, announce
from rpcsys.link.tcp import tune

LENGTHS = struct.Struct("<QQ")  # bytes to the server, bytes back
PING = 16


class RawSocket(Subject):
    server_arguments = ("-m", "benchmarks.peers.raw")

    @contextmanager
    def null_call(self) -> Iterator[Trial]:
        with self._connected() as sock:
            ping = LENGTHS.pack(0, PING)
            sendall, recv = sock.sendall, sock.recv

            def run() -> None:
                sendall(ping)
                recv(PING)

            yield Trial(run)

    @contextmanager
    def exchange(self, there: int, back: int) -> Iterator[Trial]:
        """``there`` bytes to the server and ``back`` bytes from it, in one exchange."""
        with self._connected() as sock:
            lengths = LENGTHS.pack(there, back)
            outgoing, incoming = octets(there), octets(back)

            def run() -> None:
                send_both(sock, lengths, outgoing)
                receive_into(sock, incoming)

            yield Trial(run)

    def to_device(self, size: int):
        return self.exchange(size, PING)

    def from_device(self, size: int):
        return self.exchange(0, size)

    @contextmanager
    def session(self) -> Iterator[Trial]:
        """A connection and the first ping on it."""
        opened: list[socket.socket] = []

        def run() -> None:
            sock = socket.create_connection(("127.0.0.1", self.port))
            tune(sock)
            sock.sendall(LENGTHS.pack(0, PING))
            sock.recv(PING)
            opened.append(sock)

        yield Trial(run, after=lambda: opened.pop().close())

    @contextmanager
    def _connected(self) -> Iterator[socket.socket]:
        with socket.create_connection(("127.0.0.1", self.port)) as sock:
            tune(sock)
            yield sock


class TwoRawSockets(TwoAtOnce, RawSocket):
    """Two servers; connections go to each in turn."""

    def start(self) -> None:
        self._ports = itertools.cycle([self.start_server(self.server_arguments) for _ in range(2)])

    @contextmanager
    def _connected(self) -> Iterator[socket.socket]:
        self.port = next(self._ports)
        with super()._connected() as sock:
            yield sock


def send_both(sock: socket.socket, lengths: bytes, body: memoryview) -> None:
    """Send both in one system call if the kernel accepts them."""
    sent = sock.sendmsg([lengths, body])
    if sent < len(lengths) + len(body):
        sock.sendall(body[sent - len(lengths) :])


def receive_into(sock: socket.socket, memory: memoryview) -> None:
    """Fill the memory. Raises ConnectionError if the stream ends first."""
    received = 0
    while received < len(memory):
        count = sock.recv_into(memory[received:])
        if not count:
            raise ConnectionError("the stream ended within an exchange")
        received += count


def serve(sock: socket.socket) -> None:
    """Reply to exchanges until the client closes."""
    memory: dict[int, memoryview] = {}
    lengths = memoryview(bytearray(LENGTHS.size))
    while True:
        try:
            receive_into(sock, lengths)
        except ConnectionError:
            return
        there, back = LENGTHS.unpack(lengths)
        if there:
            receive_into(sock, memory.get(there) or memory.setdefault(there, octets(there)))
        sock.sendall(memory.get(back) or memory.setdefault(back, octets(back)))


def main() -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    announce(listener.getsockname()[1])
    while True:
        sock, _ = listener.accept()
        with sock:
            tune(sock)
            serve(sock)


if __name__ == "__main__":
    main()
