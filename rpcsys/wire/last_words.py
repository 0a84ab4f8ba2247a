"""What the server says for a session that can no longer encrypt: why it was ended, in the clear, behind all records.

``74 f2 0f 00``, int32 length, so many bytes of JSON, and 32 bytes of HMAC-SHA256 with the match key's secret. Whoever
has no part in the session cannot make it, and it is for one session only.
"""

from __future__ import annotations

import hmac
import json
import struct
from typing import Any

from rpcsys.wire.pinned_keys import PinnedMatchKey

MAGIC = bytes.fromhex("74f20f00")
#: Bytes of all in which a client looks for them.
MAX_BYTES = 2048
_MAX_MESSAGE = 400  # characters of its sentence: four bytes each, and no more than a hundred beside them
_MAC_BYTES = 32
_LENGTH = struct.Struct("<i")
_LABEL = b"rpcsys last words"


def encode(match_key: PinnedMatchKey, kind: str, message: str, *, retryable: bool = False) -> bytes:
    """The last words of a session: an error's class and sentence, as an ERROR frame has them."""
    fields = {"type": kind, "message": message[:_MAX_MESSAGE], "retryable": retryable, "fault": "user"}
    text = json.dumps(fields, ensure_ascii=False).encode("utf-8", "replace")
    return MAGIC + _LENGTH.pack(len(text)) + text + _mac(match_key, text)


def find(tail: bytes, match_key: PinnedMatchKey) -> dict[str, Any] | None:
    """The fields of the last words at the end of ``tail``; None unless they are there, and this session's own."""
    at = tail.rfind(MAGIC)
    while at >= 0:
        begin, end = at + len(MAGIC) + _LENGTH.size, len(tail) - _MAC_BYTES
        text = tail[begin:end]
        whole = end > begin and tail[at + len(MAGIC) : begin] == _LENGTH.pack(len(text))
        if whole and hmac.compare_digest(_mac(match_key, text), tail[end:]):
            fields: dict[str, Any] = json.loads(text)
            return fields
        at = tail.rfind(MAGIC, 0, at + len(MAGIC) - 1)
    return None


def _mac(match_key: PinnedMatchKey, text: bytes) -> bytes:
    return hmac.digest(match_key.secret.encode(), _LABEL + match_key.pin.encode() + text, "sha256")
