"""The packets of TVM's session protocol: eight bytes of length, then so many bytes."""

from __future__ import annotations

import struct

_LENGTH = struct.Struct("<Q")


class TvmPackets:
    """Follows the packets in a stream of bytes, behind the greeting."""

    def __init__(self) -> None:
        self._head = b""  # of a packet whose length is not whole
        self._left = 0  # bytes of the packet

    def partial(self, data: memoryview) -> bool:
        """Whether the stream, whose next bytes are ``data``, ends within a packet."""
        at, size = 0, len(data)
        while at < size:
            if not self._left:
                more = data[at : at + _LENGTH.size - len(self._head)]
                self._head += more
                at += len(more)
                if len(self._head) < _LENGTH.size:
                    return True
                self._left, self._head = _LENGTH.unpack(self._head)[0], b""
            step = min(self._left, size - at)
            self._left -= step
            at += step
        return self._left > 0
