"""HTTP/1.1 as a server has it, without a socket: the heads of requests read, those of answers made."""

from __future__ import annotations

import re
from http import HTTPStatus
from typing import Any, Dict, NamedTuple, Sequence, Tuple

from rpcsys.wire.http1 import DEFAULT, TOKEN, HttpError, HttpLimits, body_length, keeps_alive, make_head, parse_fields

#: What a client waits for that expects to be told to send its body.
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"

#: Method, scheme and authority (as to a proxy), path and query, version.
_REQUEST = re.compile(
    rb"(%b) ([hH][tT][tT][pP][sS]?://[^\x00-\x20/?#\x7f-\xff]*)?([!\"$-~]*) HTTP/([0-9])\.([0-9])\r\n" % TOKEN
)
_HOST = re.compile(r"[^\s/?#@,\\]*")
_PHRASES = {**{status.value: status.phrase for status in HTTPStatus}, 499: "Client Closed Request"}


class RequestHead(NamedTuple):
    """The head of a request.

    ``path``: as it came, with escapes; ``query``: behind "?", without it. ``fields``: by names in lower case; values of
    a name that occurs twice are joined by ", ". ``length``: of the body, or `http1.CHUNKED`. ``expects``: whether the
    client waits for `CONTINUE`. ``keep_alive``: whether another request may follow. ``old``: whether it is HTTP/1.0,
    whose client is told where a connection stays open (``Connection: keep-alive``).
    """

    method: str
    path: str
    query: str
    fields: Dict[str, str]
    length: int
    expects: bool
    keep_alive: bool
    old: bool


def parse_request(head: bytes, limits: HttpLimits = DEFAULT) -> RequestHead:
    """The head of a request, with its empty line. Raises `HttpError` with the status of the answer."""
    line = _REQUEST.match(head)
    if line is None:
        raise HttpError(f"a request that begins with {head[:40]!r} is not HTTP/1.1")
    major, minor = line[4].decode(), line[5].decode()
    if major != "1" or minor not in "01":
        raise HttpError(f"HTTP/{major}.{minor} is not spoken here, but HTTP/1.1; gRPC has a port of its own", 505)
    old = minor == "0"
    path, _, query = line[3].decode().partition("?")
    if line[2] and not path:
        path = "/"
    if path[:1] != "/" and path != "*":
        raise HttpError(f"the path {path[:40]!r} does not begin with /")
    fields = parse_fields(head, line.end(), limits)
    if not _HOST.fullmatch(fields.get("host", "" if old else ",")):
        raise HttpError("a request needs one Host")
    length = body_length(fields, old, 0, limits)
    expected = fields.get("expect", "").lower()
    if expected not in ("", "100-continue"):
        raise HttpError(f"the expectation {expected[:40]!r}; only 100-continue is met", 417)
    expects = bool(expected and length and not old)
    return RequestHead(line[1].decode(), path, query, fields, length, expects, keeps_alive(fields, old), old)


def make_response(status: int, length: int, fields: Sequence[Tuple[str, Any]] = (), keep_alive: bool = True) -> bytes:
    """The head of an answer with a body of ``length`` bytes. Raises `UsageError` for a text that would end a line."""
    ending = [] if keep_alive else [("Connection", "close")]
    line = f"HTTP/1.1 {status} {_PHRASES.get(status, '')}"
    return make_head(line, [*fields, *ending, ("Content-Length", length)])
