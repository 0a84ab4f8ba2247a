"""An accepted connection and its opening: a session's greeting, or the first bytes of a link to the tracker."""

from __future__ import annotations

import socket
from typing import Any

from rpcsys.wire.handshake import Greeting, OpeningReader
from rpcsys.wire.tracker import MAGIC_BYTES, TLS_RECORD


class ProxyStream:
    """A connection from ``address``, as `accept` returns it.

    ``raw`` holds the bytes of its opening, and none beyond it; ``greeting`` is None for a link to the tracker; ``conn``
    is the stream's number for the state, 0 without a greeting; ``refusal``: why it is not served, empty if it is;
    ``encrypted``: a link that begins with TLS, which ends at the tracker of a lab.
    """

    def __init__(self, sock: socket.socket, address: Any) -> None:
        self.sock = sock
        self.address = str(address[0]).removeprefix("::ffff:") if address else ""
        self.port: int = address[1] if address else 0
        self.conn = 0
        self.raw = bytearray()
        self.greeting: Greeting | None = None
        self.encrypted = False
        self.refusal = ""
        self._reader: OpeningReader | None = None

    @property
    def where(self) -> str:
        return f"{self.address}:{self.port}"

    def read_opening(self) -> bool:
        """Read the bytes that have arrived; whether the opening is whole.

        Raises ProtocolError: neither a session nor a link to the tracker, or a length beyond its limit; EOFError: the
        stream ended; OSError: it broke.
        """
        while True:
            reader = self._reader
            wanted = len(MAGIC_BYTES) - len(self.raw) if reader is None else reader.needed
            try:
                data = self.sock.recv(wanted)
            except BlockingIOError:
                return False
            if not data:
                raise EOFError
            self.raw += data
            if reader is None:
                self.encrypted = self.raw[: len(TLS_RECORD)] == TLS_RECORD
                if self.raw == MAGIC_BYTES or self.encrypted:
                    return True
                if MAGIC_BYTES.startswith(self.raw) or TLS_RECORD.startswith(self.raw):
                    continue
                self._reader = reader = OpeningReader()
                data = bytes(self.raw)
            self.greeting = reader.receive(data)
            if self.greeting is not None:
                return True


def send_first(sock: socket.socket, data: bytes | bytearray) -> bool:
    """Send ``data`` as the first bytes of a stream, whose send buffer is empty; whether it took all of them."""
    try:
        return sock.send(data) == len(data)
    except OSError:
        return False
