"""The first bytes of each kind of connection. They show which kind of port a peer wanted, or which one it has reached.

A daemon answers a peer that wanted another kind of port with its own first bytes (`answer`), so that the peer can say
what is at that address.
"""

from __future__ import annotations

import struct
from typing import Optional, Union

from rpcsys.errors import ProtocolError

TRACKER_MAGIC = 0x2F271
#: TVM's codes of a session: the magic, which opens and accepts it, and two refusals.
SESSION_MAGIC, DUPLICATE, MISMATCH = 0xFF271, 0xFF272, 0xFF273

TRACKER, SESSION, PAGE = "a tracker", "a device server or a proxy", "a page (HTTP)"
_KINDS = {
    struct.pack("<i", TRACKER_MAGIC): TRACKER,
    **dict.fromkeys((struct.pack("<i", code) for code in (SESSION_MAGIC, DUPLICATE, MISMATCH)), SESSION),
    **dict.fromkeys((b"HTTP", b"GET ", b"HEAD", b"POST"), PAGE),
}
_OWN = {TRACKER: struct.pack("<i", TRACKER_MAGIC), SESSION: struct.pack("<i", MISMATCH)}
_NO_PAGE = "this is the port of {}; its page has a port of its own (--http-port)\n"


def kind_of(data: Union[bytes, bytearray, memoryview]) -> Optional[str]:
    """The kind of port, `TRACKER`, `SESSION` or `PAGE`, whose connections begin with ``data``; None: unknown."""
    return _KINDS.get(bytes(data[:4]))


class OtherProtocol(ProtocolError):
    """A connection does not begin as the ``wanted`` kind of port does. ``kind``: the kind with such first bytes."""

    def __init__(self, wanted: str, data: bytes) -> None:
        self.kind = kind_of(data)
        what = self.kind or f"one that begins with {bytes(data[:4])!r}"
        super().__init__(f"not the protocol of {wanted}, but of {what}")


def answer(own: str, wanted: Optional[str]) -> bytes:
    """What a port of the kind ``own`` answers to a peer that wanted another kind; empty for an unknown kind."""
    if wanted is None or wanted == own:
        return b""
    if own != PAGE and wanted != PAGE:
        return _OWN[own]
    text = (_NO_PAGE.format(own) if own != PAGE else f"this port serves {PAGE}\n").encode()
    head = "HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain; charset=utf-8\r\nConnection: close\r\n"
    return f"{head}Content-Length: {len(text)}\r\n\r\n".encode() + text
