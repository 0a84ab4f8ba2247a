"""The tracker connection's frames: an int32 length and that many bytes of strict UTF-8 JSON.

Both sides send the int32 `MAGIC` before the first of them, the client before the tracker. All integers
are little-endian. Strict means: no NaN or Infinity, and no nesting or number that would exhaust the parser.
"""

from __future__ import annotations

import json
import struct
from typing import Any, Callable, Union

from rpcsys.errors import LimitExceeded, ProtocolError, ValueNotSupported

MAGIC = 0x2F271
MAGIC_BYTES = struct.pack("<i", MAGIC)

MAX_FRAME = 1 << 20
"""Bytes of JSON in a frame: what TVM's tracker takes."""

MAX_DEPTH = 32
"""Lists and objects inside each other. No message needs six; Python's own limit would end whoever prints one."""

_LENGTH = struct.Struct("<i")
# Python turns at most 4,300 digits into a number, and older versions any count in quadratic time.
_MAX_DIGITS = 4300


class FrameReader:
    """Takes bytes as they come, gives frames as they are whole.

    With ``magic`` the bytes begin with `MAGIC`.
    """

    __slots__ = ("_at", "_buffer", "_due", "_magic_due")

    def __init__(self, magic: bool = True) -> None:
        # What comes in one piece is taken apart where it is, and mostly it is one frame, or the text of one.
        self._buffer: Union[bytes, bytearray] = b""
        self._at = 0
        self._due = 0  # bytes of the frame whose length has been taken, 0 if the next is a length
        self._magic_due = magic

    @property
    def magic_due(self) -> bool:
        """Whether the magic has not arrived yet."""
        return self._magic_due

    @property
    def partial(self) -> bool:
        """Whether something was begun that no call of `next` has given out."""
        return self._due > 0 or len(self._buffer) > 0

    def feed(self, data: bytes) -> None:
        """Take ``data``; what was given out before is forgotten."""
        if len(self._buffer) <= _LENGTH.size:  # nothing, or mostly the length of what comes now
            self._buffer += data
            return
        buffer = self._buffer if isinstance(self._buffer, bytearray) else bytearray(self._buffer)
        del buffer[: self._at]
        buffer += data
        self._buffer, self._at = buffer, 0

    def next(self) -> bytes | None:
        """The next whole frame, None if there is none yet.

        Raises
        ------
        ProtocolError: the bytes do not begin with the magic.
        LimitExceeded: a length below 1 or above `MAX_FRAME`, refused before the frame is awaited.
        """
        if self._magic_due and not self._take_magic():
            return None
        buffer, start = self._buffer, self._at
        if not self._due:
            if len(buffer) < start + 4:
                return None
            (size,) = _LENGTH.unpack_from(buffer, start)
            if not 0 < size <= MAX_FRAME:
                raise LimitExceeded(f"a tracker frame of {size} bytes (allowed: 1 to {MAX_FRAME})")
            self._due = size
            start = self._give_out(start + 4)
            buffer = self._buffer
        end = start + self._due
        if len(buffer) < end:
            return None
        self._due = 0
        self._give_out(end)
        return bytes(buffer[start:end])

    def _give_out(self, end: int) -> int:
        """What comes before ``end`` is done with; where the rest begins."""
        if end == len(self._buffer):
            self._buffer, end = b"", 0
        self._at = end
        return end

    def _take_magic(self) -> bool:
        held = bytes(self._buffer[:4])
        if not MAGIC_BYTES.startswith(held):
            raise ProtocolError(f"not a tracker connection: it begins with {held!r}")
        if len(held) < 4:
            return False
        self._magic_due = False
        self._give_out(4)
        return True


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def _short_integer(digits: str) -> int:
    if len(digits) > _MAX_DIGITS:
        raise ValueError(f"a number of {len(digits)} digits")
    return int(digits)


_quick = json.JSONDecoder(parse_constant=_no_constant)
_careful = json.JSONDecoder(parse_constant=_no_constant, parse_int=_short_integer)
_encoder = json.JSONEncoder(separators=(",", ":"), allow_nan=False)


def _make_text() -> Callable[[Any], str]:
    """The encoder of JSON texts. `json` builds its C encoder anew for every text, which costs as much as the text."""
    make: Any = getattr(json.encoder, "c_make_encoder", None)
    if make is None:
        return _encoder.encode
    escape = json.encoder.encode_basestring_ascii
    encode = make(None, _encoder.default, escape, None, ":", ",", False, False, False)
    return lambda value: "".join(encode(value, 0))


_text = _make_text()


def decode_json(data: bytes) -> Any:
    """The JSON value in ``data``.

    Raises
    ------
    ProtocolError: not UTF-8, not JSON, NaN or Infinity, nested too deeply, or a number too long.
    """
    # Only a text longer than the longest number can hold one that is too long.
    decoder = _quick if len(data) <= _MAX_DIGITS else _careful
    try:
        text = data.decode("utf-8")
        value, end = decoder.raw_decode(text)
        if end != len(text):
            value = decoder.decode(text)
    except RecursionError:
        raise ProtocolError("JSON nested too deeply") from None
    except ValueError as error:
        # The careful way skips white space in front, which some writers put there.
        if data[:1] in (b" ", b"\t", b"\n", b"\r"):
            return decode_json(data.strip(b" \t\n\r"))
        raise ProtocolError(f"not JSON: {error}") from None
    # Only a text with that many brackets can be nested that deeply.
    if data.count(b"[") + data.count(b"{") > MAX_DEPTH and _deeper(value, MAX_DEPTH):
        raise ProtocolError(f"JSON nested more than {MAX_DEPTH} deep")
    return value


def _deeper(value: Any, limit: int) -> bool:
    """Whether lists and objects in ``value`` are nested more than ``limit`` deep."""
    level = [value]
    for _ in range(limit):
        inner: list[Any] = []
        for item in level:
            if type(item) is list:
                inner.extend(item)
            elif type(item) is dict:
                inner.extend(item.values())
        level = inner
    return any(type(item) in (list, dict) for item in level)


def frame(text: str, limit: int = MAX_FRAME) -> bytes:
    """``text``, which must be ASCII, as a frame."""
    data = text.encode("ascii")
    if len(data) > limit:
        raise LimitExceeded(f"a tracker frame of {len(data)} bytes (allowed: {limit})")
    return _LENGTH.pack(len(data)) + data


def encode(message: Any, limit: int = MAX_FRAME) -> bytes:
    """A message (one of this protocol, or plain JSON) as a frame.

    Raises
    ------
    LimitExceeded: the frame would be longer than ``limit``, in bytes.
    ValueNotSupported: it holds what JSON has no form for, NaN among it.
    """
    plain = message.to_json() if hasattr(message, "to_json") else message
    try:
        text = _text(plain)
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueNotSupported(f"a message to or from the tracker: {error}") from None
    return frame(text, limit)
