"""Clients' and servers' streams at a proxy, with hand-made openings."""

from __future__ import annotations

import struct
import time

import psutil

from tests.live.daemons import Daemon
from tests.live.probe import SESSION_MAGIC, Probe

DUPLICATE, MISMATCH = 0xFF272, 0xFF273


class Stream(Probe):
    """A stream that has sent a greeting, with ``more`` in the same write, and has read nothing."""

    def __init__(self, address: tuple[str, int], text: str, more: bytes = b"") -> None:
        super().__init__(address)
        self.socket.sendall(opening(text) + more)

    def answer(self) -> str | int:
        """The greeting of the other stream, or the code of a refusal."""
        code = self.read_int()
        return self.read(self.read_int()).decode() if code == SESSION_MAGIC else code


def opening(text: str) -> bytes:
    return struct.pack("<ii", SESSION_MAGIC, len(text.encode())) + text.encode()


def joined(proxy: Daemon, key: str = "k") -> tuple[Stream, Stream]:
    """A client's and a server's stream that the proxy has joined."""
    server = Stream(proxy.address, f"server:{key}")
    return met(Stream(proxy.address, f"client:{key}")), met(server)


def met(stream: Stream) -> Stream:
    assert isinstance(stream.answer(), str)
    return stream


def gone(stream: Probe, within_s: float) -> float:
    """Wait for the proxy to close the stream; the seconds that it took."""
    started = time.monotonic()
    stream.socket.settimeout(within_s)
    assert stream.ended()
    return time.monotonic() - started


def streams_of(proxy: Daemon) -> int:
    """The number of the proxy's connections."""
    found = psutil.Process(proxy.pid).net_connections("tcp")
    return sum(connection.status == psutil.CONN_ESTABLISHED for connection in found)
