"""Heads of HTTP at a gateway: remembered by their bytes, since equal requests and answers have equal heads."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

from rpcsys.gateway.content_coding import accepted, coding_of
from rpcsys.wire.http1 import HttpError, HttpLimits
from rpcsys.wire.http1_requests import RequestHead, make_response, parse_request
from rpcsys.wire.inference import InferenceError

#: Heads of requests that are remembered, and their bytes at most; heads of answers.
REMEMBERED, REMEMBERED_BYTES, REMEMBERED_ANSWERS = 1024, 2048, 1024

_ANY_BODY = 10**15  # more than a Content-Length can say
#: Answers a connection's request with a body, at once or later. Raises `InferenceError`.
Handler = Callable[[Any, memoryview], None]


class HttpRoute(NamedTuple):
    """What a path leads to. ``methods``: those it has. ``refused``: told the status of one that is refused."""

    methods: tuple[str, ...]
    handle: Handler
    refused: Callable[[int], None] = lambda status: None


class KnownHead(NamedTuple):
    """A request's head and what follows from it.

    ``route``: None where there is none. ``error``: why the request is refused. ``json_bytes``: of the JSON before a
    binary part; None for a body that is JSON alone. ``coding`` and ``accepts``: of the body, and of the answer.
    """

    request: RequestHead
    route: HttpRoute | None
    error: InferenceError | None
    json_bytes: int | None
    coding: str
    accepts: str


class KnownHeads:
    """The heads of requests. ``route(path)`` finds what a path leads to, and raises `InferenceError`."""

    def __init__(self, route: Callable[[str], HttpRoute], limits: HttpLimits) -> None:
        self._route = route
        self._limits = limits
        self._known: dict[bytes, KnownHead] = {}

    def __len__(self) -> int:
        return len(self._known)

    def get(self, raw: bytes) -> KnownHead:
        """What a head says, with its empty line. Raises `HttpError`."""
        head = self._known.get(raw)
        if head is None:
            try:
                request = parse_request(raw, self._limits)
            except HttpError as error:
                self._note_too_long(raw, error.status)
                raise
            head = self._read(request)
            if len(raw) <= REMEMBERED_BYTES:
                if len(self._known) >= REMEMBERED:
                    self._known.clear()
                self._known[raw] = head
        return head

    def _note_too_long(self, raw: bytes, status: int) -> None:
        """Tell the route of a request that is refused for the length of its body."""
        if status == 413:
            route = self._read(parse_request(raw, self._limits._replace(body=_ANY_BODY))).route
            if route is not None:
                route.refused(status)

    def _read(self, request: RequestHead) -> KnownHead:
        fields = request.fields
        route = None
        try:
            route = self._route(request.path)
            return KnownHead(request, route, None, _json_bytes(fields), coding_of(fields), accepted(fields))
        except InferenceError as error:
            return KnownHead(request, route, error.with_traceback(None), None, "", "")


def _json_bytes(fields: dict[str, str]) -> int | None:
    text = fields.get("inference-header-content-length")
    if text is not None and not (text.isascii() and text.isdigit() and len(text) < 16):
        raise InferenceError(f"the Inference-Header-Content-Length {text[:40]!r} is no number of bytes")
    return None if text is None else int(text)


@functools.lru_cache(REMEMBERED_ANSWERS)
def answer_head(
    status: int,
    size: int,
    json_bytes: int | None,
    coding: str,
    keep: bool,
    old: bool,
    fields: tuple[tuple[str, str], ...],
) -> bytes:
    """The head of an answer. ``json_bytes``: of the JSON before arrays, None for JSON alone. ``old``: to HTTP/1.0."""
    kind = "application/json" if json_bytes is None else "application/octet-stream"
    made: list[tuple[str, Any]] = [("Content-Type", kind)]
    if json_bytes is not None:
        made.append(("Inference-Header-Content-Length", json_bytes))
    if coding:
        made.append(("Content-Encoding", coding))
    if old and keep:
        made.append(("Connection", "keep-alive"))
    return make_response(status, size, [*made, *fields], keep)
