"""Compressed bodies of HTTP: gzip and deflate, both ways."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from typing import Any

from rpcsys.wire.inference import InferenceError

#: zlib's window of each coding when it writes. When it reads, `_EITHER` takes both.
_WINDOWS = {"gzip": 31, "deflate": 15}
_EITHER = 47
#: Bytes of an answer that is compressed: a smaller one gains nothing, a larger one would hold the loop.
SMALLEST, LARGEST = 256, 1 << 20
#: Bytes of a compressed body that the loop takes itself; they are at most a thousand times as many.
AT_ONCE = 16 << 10
_LEVEL = 1


def coding_of(fields: Mapping[str, str]) -> str:
    """The coding of a request's body; "" for none. Raises `InferenceError` (415) for an unknown one."""
    coding = fields.get("content-encoding", "").lower()
    if coding in ("", "identity"):
        return ""
    if coding not in _WINDOWS:
        raise InferenceError(f"the Content-Encoding {coding[:40]!r} is unknown: gzip and deflate are taken", 415)
    return coding


def accepted(fields: Mapping[str, str]) -> str:
    """The coding that a client takes for the answer; "" for none."""
    for word in fields.get("accept-encoding", "").lower().split(","):
        coding, _, quality = word.strip().partition(";")
        if coding.strip() in _WINDOWS and quality.replace(" ", "") not in ("q=0", "q=0.0", "q=0.00", "q=0.000"):
            return coding.strip()
    return ""


def unpacked(data: Any, coding: str, limit: int) -> memoryview:
    """The body in ``data``. Raises `InferenceError`: 400 if it is not of that coding, 413 above ``limit`` bytes."""
    reader = zlib.decompressobj(_EITHER)
    try:
        body = reader.decompress(data, limit + 1)
    except zlib.error as error:
        raise InferenceError(f"the body is not {coding}: {error}") from None
    if len(body) > limit:
        raise InferenceError(f"a body of more than {limit} bytes; the gateway's --max-body allows more", 413)
    if not reader.eof or reader.unused_data:
        raise InferenceError(f"the body is not {coding}: it {'goes on behind its end' if reader.eof else 'is cut'}")
    return memoryview(body)


def packed(pieces: Sequence[Any], coding: str) -> bytes:
    """The pieces of a body, compressed."""
    writer = zlib.compressobj(_LEVEL, zlib.DEFLATED, _WINDOWS[coding])
    return b"".join([*map(writer.compress, pieces), writer.flush()])
