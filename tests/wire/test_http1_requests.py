"""The heads of requests as a server reads them, and those of its answers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rpcsys.errors import UsageError
from rpcsys.wire.http1 import CHUNKED, HttpError, HttpLimits, make_request, parse_response
from rpcsys.wire.http1_requests import make_response, parse_request
from tests.wire.test_http1 import DOUBTFUL, head

FIRST = b"POST /v2/models/m/infer?a=b&c HTTP/1.1\r\n"
HOST = "Host: h:8000"


def test_a_request() -> None:
    fields = {"host": "h:8000", "content-length": "5", "user-agent": "curl"}
    request = parse_request(head(HOST, "Content-Length: 5", "User-Agent: curl", first=FIRST))
    assert request == ("POST", "/v2/models/m/infer", "a=b&c", fields, 5, False, True, False)


@pytest.mark.parametrize(
    ("first", "lines", "length", "expects", "keep_alive"),
    [
        (b"GET / HTTP/1.1\r\n", [HOST], 0, False, True),
        (b"GET / HTTP/1.1\r\n", [HOST, "Connection: close"], 0, False, False),
        (b"GET / HTTP/1.0\r\n", [], 0, False, False),
        (b"HEAD / HTTP/1.0\r\n", ["Connection: keep-alive"], 0, False, True),
        (b"PUT / HTTP/1.1\r\n", [HOST, "Transfer-Encoding: chunked", "Expect: 100-Continue"], CHUNKED, True, True),
        (b"PUT / HTTP/1.1\r\n", [HOST, "Content-Length: 0", "Expect: 100-continue"], 0, False, True),
        (b"PUT / HTTP/1.0\r\n", ["Content-Length: 7", "Expect: 100-continue"], 7, False, False),
        (b"PUT / HTTP/1.1\r\n", ["Host:", "Content-Length: 007"], 7, False, True),
    ],
)
def test_what_follows_a_request(first: bytes, lines: list[str], length: int, expects: bool, keep_alive: bool) -> None:
    request = parse_request(head(*lines, first=first))
    assert (request.length, request.expects, request.keep_alive) == (length, expects, keep_alive)
    assert request.old == (b"1.0" in first)


@pytest.mark.parametrize(
    ("target", "path", "query"),
    [
        (b"http://h:8000/a?b", "/a", "b"),
        (b"HTTPS://h", "/", ""),
        (b"http://h?a", "/", "a"),
        (b"*", "*", ""),
        (b"//h/a", "//h/a", ""),
        (b"/a%2Fb/%20?x=/?y", "/a%2Fb/%20", "x=/?y"),
    ],
)
def test_paths(target: bytes, path: str, query: str) -> None:
    request = parse_request(head(HOST, first=b"GET %b HTTP/1.1\r\n" % target))
    assert (request.path, request.query) == (path, query)


@pytest.mark.parametrize(("lines", "words"), DOUBTFUL)
def test_a_length_in_doubt_is_refused(lines: list[str], words: str) -> None:
    with pytest.raises(HttpError, match=words):
        parse_request(head(HOST, *lines, first=FIRST))


@pytest.mark.parametrize(
    ("first", "lines", "status", "words"),
    [
        (FIRST, [], 400, "one Host"),
        (FIRST, [HOST, HOST], 400, "one Host"),
        (FIRST, ["Host: a b"], 400, "one Host"),
        (FIRST, ["Host: a/b"], 400, "one Host"),
        (b"GET / HTTP/1.0\r\n", [HOST, HOST], 400, "one Host"),
        (b"GET / HTTP/1.0\r\n", ["Transfer-Encoding: chunked"], 400, "Transfer-Encoding and HTTP/1.0"),
        (FIRST, [HOST, "Transfer-Encoding: gzip"], 501, "only chunked"),
        (FIRST, [HOST, "Expect: 200-ok"], 417, "only 100-continue"),
        (b"PRI * HTTP/2.0\r\n", [], 505, "gRPC has a port of its own"),
        (b"GET / HTTP/1.2\r\n", [HOST], 505, "HTTP/1.2 is not spoken"),
        (b"GET / HTTP/1.1 \r\n", [HOST], 400, "is not HTTP/1.1"),
        (b"GET  / HTTP/1.1\r\n", [HOST], 400, "is not HTTP/1.1"),
        (b"GET  HTTP/1.1\r\n", [HOST], 400, "does not begin with /"),
        (b"GET / HTTP/1.1\n", [HOST], 400, "is not HTTP/1.1"),
        (b"GET / HTTP/11\r\n", [HOST], 400, "is not HTTP/1.1"),
        (b"GET /\r\n", [HOST], 400, "is not HTTP/1.1"),
        (b"GET /#a HTTP/1.1\r\n", [HOST], 400, "is not HTTP/1.1"),
        (b"GET /\xc3\xa9 HTTP/1.1\r\n", [HOST], 400, "is not HTTP/1.1"),
        (b"GET /\0 HTTP/1.1\r\n", [HOST], 400, "is not HTTP/1.1"),
        (b"GET a HTTP/1.1\r\n", [HOST], 400, "does not begin with /"),
        (b"CONNECT h:443 HTTP/1.1\r\n", [HOST], 400, "does not begin with /"),
        (b"G(T / HTTP/1.1\r\n", [HOST], 400, "is not HTTP/1.1"),
    ],
)
def test_what_is_refused(first: bytes, lines: list[str], status: int, words: str) -> None:
    with pytest.raises(HttpError, match=words) as caught:
        parse_request(head(*lines, first=first))
    assert caught.value.status == status


def test_a_body_has_a_limit() -> None:
    with pytest.raises(HttpError, match="at most 4 are taken") as caught:
        parse_request(head(HOST, "Content-Length: 5", first=FIRST), HttpLimits(body=4))
    assert caught.value.status == 413


@given(st.binary(max_size=60), st.binary(max_size=60))
def test_any_bytes_are_a_request_or_refused(target: bytes, fields: bytes) -> None:
    for data in (target, b"GET /%b HTTP/1.1\r\nHost: h\r\n%b\r\n\r\n" % (target, fields)):
        try:
            request = parse_request(data)
        except HttpError:
            continue
        assert request.path[:1] in ("/", "*")
        assert data.count(b"\n") == data.count(b"\r\n") == data.count(b"\r")


@given(st.sampled_from(["GET", "POST"]), st.text("abc%2F/?", max_size=9), st.integers(0, 99))
def test_what_a_client_makes_is_read(method: str, target: str, length: int) -> None:
    request = parse_request(make_request(method, f"/{target}", "h:1", [("A", "b c")], length))
    assert (request.method, request.length, request.fields["a"]) == (method, length, "b c")
    assert f"/{target}" in (request.path, f"{request.path}?{request.query}")


@pytest.mark.parametrize(
    ("status", "line"),
    [(200, b"200 OK"), (400, b"400 Bad Request"), (499, b"499 Client Closed Request"), (799, b"799 "),
     (503, b"503 Service Unavailable")],
)  # fmt: skip
def test_an_answer_that_is_made_is_read(status: int, line: bytes) -> None:
    made = make_response(status, 7, [("Content-Type", "application/json")], keep_alive=status == 200)
    assert made.startswith(b"HTTP/1.1 %b\r\n" % line)
    answer = parse_response(made)
    assert (answer.status, answer.length, answer.keep_alive) == (status, 7, status == 200)
    assert answer.fields["content-type"] == "application/json"


def test_nothing_can_be_put_into_an_answer() -> None:
    with pytest.raises(UsageError):
        make_response(200, 0, [("A", "b\r\nSet-Cookie: c")])
