"""Ends of streams that meet at a proxy, spoken by hand."""

from __future__ import annotations

import struct
import time

import psutil

from tests.live.daemons import Daemon
from tests.live.probe import SESSION_MAGIC, Probe

DUPLICATE, MISMATCH = 0xFF272, 0xFF273


class Stream(Probe):
    """Says a greeting, and has read nothing yet. ``more`` is sent in the same breath."""

    def __init__(self, address: tuple[str, int], text: str, more: bytes = b"") -> None:
        super().__init__(address)
        self.socket.sendall(opening(text) + more)

    def answer(self) -> str | int:
        """The other's greeting, or the code of a refusal."""
        code = self.read_int()
        return self.read(self.read_int()).decode() if code == SESSION_MAGIC else code


def opening(text: str) -> bytes:
    return struct.pack("<ii", SESSION_MAGIC, len(text.encode())) + text.encode()


def joined(proxy: Daemon, key: str = "k") -> tuple[Stream, Stream]:
    """A client and a server that have met."""
    server = Stream(proxy.address, f"server:{key}")
    return met(Stream(proxy.address, f"client:{key}")), met(server)


def met(stream: Stream) -> Stream:
    assert isinstance(stream.answer(), str)
    return stream


def gone(stream: Probe, within_s: float) -> float:
    """How long the other end took to close the stream."""
    started = time.monotonic()
    stream.socket.settimeout(within_s)
    assert stream.ended()
    return time.monotonic() - started


def streams_of(proxy: Daemon) -> int:
    """How many streams the proxy has taken."""
    found = psutil.Process(proxy.pid).net_connections("tcp")
    return sum(connection.status == psutil.CONN_ESTABLISHED for connection in found)
