"""What a stream opens with, read without a byte too much: a session's greeting, or a link to the tracker."""

from __future__ import annotations

import socket

from rpcsys.wire.handshake import Greeting, OpeningReader
from rpcsys.wire.tracker import MAGIC_BYTES


class Opening:
    """``raw`` is what was read; ``greeting`` stays None for a link to the tracker."""

    def __init__(self, sock: socket.socket) -> None:
        self.raw = bytearray()
        self.greeting: Greeting | None = None
        self._sock = sock
        self._reader: OpeningReader | None = None

    def read(self) -> bool:
        """Read what is there; whether the opening is whole.

        Raises
        ------
        ProtocolError: neither a session nor a link to the tracker, or a length beyond its limit.
        EOFError: the stream ended.
        OSError: it broke.
        """
        while True:
            reader = self._reader
            wanted = len(MAGIC_BYTES) - len(self.raw) if reader is None else reader.needed
            try:
                data = self._sock.recv(wanted)
            except BlockingIOError:
                return False
            if not data:
                raise EOFError
            self.raw += data
            if reader is None:
                if self.raw == MAGIC_BYTES:
                    return True
                if MAGIC_BYTES.startswith(self.raw):
                    continue
                self._reader = reader = OpeningReader()
                data = bytes(self.raw)
            self.greeting = reader.receive(data)
            if self.greeting is not None:
                return True
