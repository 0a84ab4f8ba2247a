"""Heads that are remembered."""

from __future__ import annotations

import pytest

from rpcsys.gateway import http_heads
from rpcsys.gateway.http_heads import HttpRoute, KnownHeads, answer_head
from rpcsys.wire.http1 import DEFAULT, HttpError, parse_response
from rpcsys.wire.inference import InferenceError
from tests.gateway.running import request

ROUTE = HttpRoute(("GET",), lambda client, body: None)


def route(path: str) -> HttpRoute:
    if path == "/nothing":
        raise InferenceError("there is nothing", 404)
    return ROUTE


def test_equal_heads_are_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    heads = KnownHeads(route, DEFAULT)
    raw = request("GET", "/v2", b"", "Accept-Encoding: gzip", "Inference-Header-Content-Length: 7")
    first = heads.get(raw)
    assert heads.get(bytes(raw)) is first
    assert (first.route, first.json_bytes, first.accepts, first.coding) == (ROUTE, 7, "gzip", "")
    monkeypatch.setattr(http_heads, "REMEMBERED", 3)
    for number in range(10):
        heads.get(request("GET", f"/{number}"))
    assert len(heads) <= 3
    before = len(heads)
    heads.get(request("GET", "/v2", b"", "X: " + "y" * http_heads.REMEMBERED_BYTES))
    assert len(heads) == before


def test_what_is_wrong_with_a_head_is_an_answer() -> None:
    heads = KnownHeads(route, DEFAULT)
    for raw, status in (
        (request("GET", "/nothing"), 404),
        (request("GET", "/v2", b"", "Inference-Header-Content-Length: -1"), 400),
        (request("GET", "/v2", b"", "Content-Encoding: br"), 415),
    ):
        error = heads.get(raw).error
        assert error is not None
        assert (error.status, error.__traceback__) == (status, None)
    with pytest.raises(HttpError):
        heads.get(b"no head\r\n\r\n")


def test_a_route_hears_of_a_body_that_is_too_long() -> None:
    refused: list[int] = []
    told = ROUTE._replace(refused=refused.append)
    heads = KnownHeads(lambda path: told if path == "/told" else route(path), DEFAULT._replace(body=4))
    assert heads.get(request("POST", "/told", b"", "Content-Length: 4")).route is told
    for path in ("/told", "/other", "/nothing"):
        with pytest.raises(HttpError, match="at most 4"):
            heads.get(request("POST", path, b"", "Content-Length: 5"))
    assert refused == [413]


def test_heads_of_answers() -> None:
    plain = answer_head(200, 5, None, "", True, False, ())
    assert plain is answer_head(200, 5, None, "", True, False, ())
    assert parse_response(plain).fields == {"content-type": "application/json", "content-length": "5"}
    binary = parse_response(answer_head(503, 9, 4, "gzip", False, True, (("Retry-After", "1"),)))
    assert (binary.status, binary.keep_alive) == (503, False)
    assert binary.fields == {
        "content-type": "application/octet-stream",
        "inference-header-content-length": "4",
        "content-encoding": "gzip",
        "retry-after": "1",
        "connection": "close",
        "content-length": "9",
    }
    assert parse_response(answer_head(200, 5, None, "", True, True, ())).fields["connection"] == "keep-alive"
