"""A page of the tracker inside one frame: compressed, in base64."""

from __future__ import annotations

import binascii
import zlib

from rpcsys.errors import ProtocolError

MOST = 32 << 20  # bytes of a page


def pack(body: bytes) -> str:
    """The text for ``body``."""
    return binascii.b2a_base64(zlib.compress(body, 1), newline=False).decode()


def unpack(text: str) -> bytes:
    """What was packed. Raises `ProtocolError`: nothing was, or more than `MOST`."""
    reader = zlib.decompressobj()
    try:
        body = reader.decompress(binascii.a2b_base64(text), MOST)
    except (ValueError, zlib.error):  # binascii.Error is a ValueError
        raise ProtocolError("a page that is not packed") from None
    if not reader.eof:
        raise ProtocolError(f"a page that was cut, or has more than {MOST} bytes")
    return body
