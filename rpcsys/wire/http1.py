"""HTTP/1.1 without a socket: the fields of a head, the head of an answer, bodies in chunks, and a request's head made.

Strict about all that leaves a length in doubt, since two programs that see different ends of a message can be made to
take a part of a body for a request (RFC 9112, section 11.2). What a server reads is in `rpcsys.wire.http1_requests`.
"""

from __future__ import annotations

import re
from typing import Any, Dict, NamedTuple, Optional, Sequence, Tuple

from rpcsys.errors import ProtocolError, UsageError

#: The length of a body in chunks, and of one that ends with its connection.
CHUNKED = -1
TO_THE_END = -2

TOKEN = rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+"
TEXT = rb"[\t\x20-\x7e\x80-\xff]*"
_TOKEN_START = re.compile(TOKEN)
_FIELD = re.compile(rb"(%b):(%b)\r\n" % (TOKEN, TEXT))
_STATUS = re.compile(rb"HTTP/1\.([01]) ([1-9][0-9][0-9])(?: %b)?\r\n" % TEXT)
_CHUNK = re.compile(rb"([0-9A-Fa-f]{1,15})(?:[\t ]*;%b)?\r\n" % TEXT)
_LENGTH = re.compile(r"[0-9]{1,15}")
_LINE = re.compile(r"[\t -~]*")
_END = b"\r\n"
#: Bytes of a line between chunks.
_MAX_LINE = 1024


class HttpLimits(NamedTuple):
    """The most bytes of a head (and of the trailers of a body in chunks), fields in it, and bytes of a body."""

    head: int = 16 << 10
    fields: int = 128
    body: int = 1 << 30


DEFAULT = HttpLimits()


class HttpError(ProtocolError):
    """Bytes that HTTP does not allow, or more than a limit allows. ``status``: that of the answer, if there is one."""

    def __init__(self, message: str, status: int = 400) -> None:
        super().__init__(message)
        self.status = status


class ResponseHead(NamedTuple):
    """The head of an answer. ``fields``: by names in lower case. ``length``: of its body, or `CHUNKED`, `TO_THE_END`.

    An answer of status 100 to 199 is followed by another head.
    """

    status: int
    fields: Dict[str, str]
    length: int
    keep_alive: bool


def find_head(data: bytearray, start: int, end: int, limits: HttpLimits = DEFAULT) -> Optional[Tuple[int, int]]:
    """Where in ``data[start:end]`` a head begins and ends, the empty line included; None until it has come.

    Empty lines before it are passed. Raises `HttpError` for more bytes than a head may have (431), and as soon as the
    first byte begins none.
    """
    most = start + limits.head
    while data.startswith(_END, start, end):
        start += 2
    if start < end and data[start:end] != b"\r" and not _TOKEN_START.match(data, start, end):
        raise HttpError(f"what begins with {bytes(data[start : min(end, start + 8)])!r} is not HTTP")
    place = data.find(b"\r\n\r\n", start, min(end, most))
    if place >= 0:
        return start, place + 4
    if end >= most:
        raise HttpError(f"a head of more than {limits.head} bytes", 431)
    return None


def parse_response(head: bytes, limits: HttpLimits = DEFAULT, method: str = "POST") -> ResponseHead:
    """The head of the answer to a request with ``method``, with its empty line. Raises `HttpError`."""
    line = _STATUS.match(head)
    if line is None:
        raise HttpError(f"an answer that begins with {head[:40]!r} is not HTTP/1.1")
    old, status = line[1] == b"0", int(line[2])
    fields = parse_fields(head, line.end(), limits)
    length = body_length(fields, old, TO_THE_END, limits)
    if method == "HEAD" or status < 200 or status in (204, 304):
        length = 0
    return ResponseHead(status, fields, length, length != TO_THE_END and keeps_alive(fields, old))


def parse_fields(head: bytes, start: int, limits: HttpLimits) -> Dict[str, str]:
    """The fields from ``start`` on: by names in lower case; values of one name joined by ", ". Raises `HttpError`."""
    fields: Dict[str, str] = {}
    for _ in range(limits.fields + 1):
        field = _FIELD.match(head, start)
        if field is None:
            break
        start = field.end()
        name, value = field[1].decode().lower(), field[2].strip(b"\t ").decode("latin-1")
        fields[name] = f"{fields[name]}, {value}" if name in fields else value
    else:
        raise HttpError(f"a head of more than {limits.fields} fields", 431)
    if head[start:] != _END:
        raise HttpError(f"a head with the line {head[start:].split(_END)[0][:40]!r}, which is no field")
    return fields


def body_length(fields: Dict[str, str], old: bool, unsaid: int, limits: HttpLimits) -> int:
    """Bytes of the body behind a head, or `CHUNKED`; ``unsaid`` if the fields do not say it. ``old``: for HTTP/1.0.

    Raises `HttpError` for fields that leave it in doubt, 413 for more than the limit.
    """
    length, coding = fields.get("content-length"), fields.get("transfer-encoding")
    if coding is not None:
        if length is not None or old:
            raise HttpError("a head with Transfer-Encoding and {}".format("HTTP/1.0" if old else "Content-Length"))
        if coding.lower() != "chunked":
            raise HttpError(f"the Transfer-Encoding {coding[:40]!r}; only chunked is understood", 501)
        return CHUNKED
    if length is None:
        return unsaid
    if not _LENGTH.fullmatch(length):
        raise HttpError(f"the Content-Length {length[:40]!r}")
    if int(length) > limits.body:
        raise HttpError(f"a body of {int(length)} bytes, and at most {limits.body} are taken", 413)
    return int(length)


def keeps_alive(fields: Dict[str, str], old: bool) -> bool:
    """Whether a connection is used again behind a message with these fields. ``old``: for HTTP/1.0."""
    said = {word.strip().lower() for word in fields.get("connection", "").split(",")}
    return "close" not in said and (not old or "keep-alive" in said)


def make_request(method: str, target: str, host: str, fields: Sequence[Tuple[str, Any]] = (), length: int = 0) -> bytes:
    """The head of a request with a body of ``length`` bytes. Raises `UsageError` for a text that no head can have."""
    line = f"{method} {target} HTTP/1.1"
    if len(line.split(" ")) != 3:
        raise UsageError(f"{target!r} is no path of a URL: a space needs an escape (%20)")
    return make_head(line, [("Host", host), *fields, ("Content-Length", length)])


def make_head(line: str, fields: Sequence[Tuple[str, Any]]) -> bytes:
    """A head of a first line and fields. Raises `UsageError` for a text that no head can have."""
    lines = [line, *(f"{name}: {value}" for name, value in fields)]
    for text in lines:
        if not _LINE.fullmatch(text):
            raise UsageError(f"a head of HTTP cannot have {text!r}"[:300])
    return "\r\n".join([*lines, "", ""]).encode()


class ChunkReader:
    """Receives a body in chunks. ``body``: what came so far; ``done``: whether its end has come."""

    def __init__(self, limits: HttpLimits = DEFAULT) -> None:
        self.body = bytearray()
        self.done = False
        self._limits = limits
        self._line = bytearray()  # the part of a line that came
        self._left = 0  # of the chunk, with the end of line behind it
        self._trailers = -1  # lines behind the last chunk; -1 before it

    def feed(self, data: Any) -> int:
        """Take the next bytes; returns how many belong to this body, fewer than all only behind its end.

        Raises `HttpError`, 413 for a body above the limit.
        """
        at = 0
        while at < len(data) and not self.done:
            if self._left:
                piece = data[at : at + self._left]
                self.body += piece
                self._left -= len(piece)
                if not self._left:
                    self._end_chunk()
            else:
                piece = bytes(data[at : at + _MAX_LINE])
                piece = piece[: piece.find(b"\n") + 1] or piece
                self._line += piece
                if len(self._line) > _MAX_LINE or piece.endswith(b"\n"):
                    self._take_line(bytes(self._line))
                    self._line.clear()
            at += len(piece)
        return at

    def _end_chunk(self) -> None:
        if not self.body.endswith(_END):
            raise HttpError("a chunk longer than it says")
        del self.body[-2:]

    def _take_line(self, line: bytes) -> None:
        if self._trailers < 0:
            chunk = _CHUNK.fullmatch(line)
            if chunk is None:
                raise HttpError(f"a chunk that begins with {line[:40]!r}")
            size = int(chunk[1], 16)
            if len(self.body) + size > self._limits.body:
                raise HttpError(f"a body of more than {self._limits.body} bytes", 413)
            self._left = size + 2 if size else 0
            self._trailers = -1 if size else 0
        else:  # trailers mean nothing here, but have to be fields
            self._trailers += 1
            self.done = line == _END
            if not self.done and (self._trailers > self._limits.fields or not _FIELD.fullmatch(line)):
                raise HttpError(f"a trailer {line[:40]!r} that is no field, or one too many")
