"""Heads of answers, bodies in chunks and requests that are made: whole, byte by byte, and with more behind."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rpcsys.errors import UsageError
from rpcsys.wire.http1 import (
    CHUNKED,
    TO_THE_END,
    ChunkReader,
    HttpError,
    HttpLimits,
    find_head,
    make_request,
    parse_response,
)

OK = b"HTTP/1.1 200 OK\r\n"
LIMITS = HttpLimits(head=200, fields=4, body=100)


def head(*lines: str, first: bytes = OK) -> bytes:
    return first + "".join(f"{line}\r\n" for line in lines).encode("latin-1") + b"\r\n"


# ---------------------------------------------------------------- where a head ends


@given(st.integers(0, 3), st.binary(max_size=20))
def test_a_head_is_found_as_soon_as_it_is_there(empty: int, behind: bytes) -> None:
    text = head("A: b")
    data = bytearray(b"before" + b"\r\n" * empty + text + behind)
    start = 6 + 2 * empty
    for end in range(6, start + len(text)):
        assert find_head(data, 6, end) is None
    for end in range(start + len(text), len(data) + 1):
        assert find_head(data, 6, end) == (start, start + len(text))


@pytest.mark.parametrize("data", [b"\x16\x03\x01", b"\0", b"\n", b" GET", b"\r\n\xff", b"(", b"\rG"])
def test_what_begins_no_head_is_refused_at_once(data: bytes) -> None:
    with pytest.raises(HttpError, match="is not HTTP"):
        find_head(bytearray(data), 0, len(data))


@pytest.mark.parametrize("filler", [b"x", b"\r\n"])
def test_a_head_has_an_end(filler: bytes) -> None:
    data = bytearray((filler * 200)[:200])
    assert find_head(data, 0, 199, LIMITS) is None
    with pytest.raises(HttpError, match="more than 200 bytes") as caught:
        find_head(data, 0, 200, LIMITS)
    assert caught.value.status == 431


# ---------------------------------------------------------------- answers


def test_an_answer() -> None:
    answer = parse_response(head("Content-Length: 5", "X-Text: \t a b\xe9 ", "x-text:c"))
    assert answer == (200, {"content-length": "5", "x-text": "a bé, c"}, 5, True)


@pytest.mark.parametrize(
    ("first", "lines", "length", "keep_alive"),
    [
        (OK, ["Transfer-Encoding: Chunked"], CHUNKED, True),
        (OK, [], TO_THE_END, False),
        (OK, ["Content-Length: 0", "Connection: x, Close"], 0, False),
        (b"HTTP/1.0 200 OK\r\n", ["Content-Length: 7"], 7, False),
        (b"HTTP/1.0 200 OK\r\n", ["Content-Length: 7", "Connection: Keep-Alive"], 7, True),
        (b"HTTP/1.1 100 Continue\r\n", [], 0, True),
        (b"HTTP/1.1 204\r\n", [], 0, True),
        (b"HTTP/1.1 304 \r\n", ["Content-Length: 7"], 0, True),
        (b"HTTP/1.1 503 not now\r\n", ["Content-Length: 7"], 7, True),
    ],
)
def test_how_long_an_answer_is(first: bytes, lines: list[str], length: int, keep_alive: bool) -> None:
    answer = parse_response(head(*lines, first=first))
    assert (answer.length, answer.keep_alive) == (length, keep_alive)


def test_an_answer_to_head_has_no_body() -> None:
    assert parse_response(head("Content-Length: 7"), method="HEAD").length == 0


DOUBTFUL = [
    (["Content-Length: 5", "Content-Length: 5"], "Content-Length '5, 5'"),
    (["Content-Length: 5", "Content-Length: 6"], "Content-Length '5, 6'"),
    (["Content-Length: 5, 5"], "Content-Length '5, 5'"),
    (["Content-Length: +5"], "Content-Length"),
    (["Content-Length: -5"], "Content-Length"),
    (["Content-Length: 0x5"], "Content-Length"),
    (["Content-Length: 5 5"], "Content-Length"),
    (["Content-Length:"], "Content-Length ''"),
    (["Content-Length: \xb2"], "Content-Length"),
    (["Content-Length: " + "9" * 16], "Content-Length"),
    (["Content-Length: 5", "Transfer-Encoding: chunked"], "Transfer-Encoding and Content-Length"),
    (["Transfer-Encoding: gzip, chunked"], "only chunked is understood"),
    (["Transfer-Encoding: chunked", "Transfer-Encoding: chunked"], "only chunked"),
    (["Transfer-Encoding: identity"], "only chunked"),
    (["Transfer-Encoding: \x0bchunked"], "is no field"),
    (["Transfer-Encoding : chunked"], "is no field"),
    (["Content-Length\t: 5"], "is no field"),
    (["A: b", " folded"], "is no field"),
    (["A: b", "\tfolded"], "is no field"),
    ([" A: b"], "is no field"),
    (["A"], "is no field"),
    ([": b"], "is no field"),
    (["A(: b"], "is no field"),
    (["\xe9: b"], "is no field"),
    (["A: b\0"], "is no field"),
    (["A: b\nContent-Length: 5"], "is no field"),
    (["A: b\rContent-Length: 5"], "is no field"),
    (["A: b\n"], "is no field"),
]


@pytest.mark.parametrize(("lines", "words"), DOUBTFUL)
def test_a_length_in_doubt_is_refused(lines: list[str], words: str) -> None:
    with pytest.raises(HttpError, match=words):
        parse_response(head(*lines))


@pytest.mark.parametrize(
    "first",
    [b"HTTP/1.1 20 OK\r\n", b"HTTP/2 200\r\n", b"HTTP/1.1  200 OK\r\n", b"HTTP/1.1 099 OK\r\n", b"200\r\n",
     b"HTTP/1.1 200 O\0K\r\n", b"HTTP/1.1 200 OK\n", b"HTTP/1.1 2000\r\n", b""],
)  # fmt: skip
def test_what_is_no_answer(first: bytes) -> None:
    with pytest.raises(HttpError, match=r"is not HTTP/1\.1"):
        parse_response(head("A: b", first=first))


def test_limits() -> None:
    assert parse_response(head(*["A: b"] * 3, "Content-Length: 100"), LIMITS).length == 100
    with pytest.raises(HttpError, match="at most 100 are taken") as caught:
        parse_response(head("Content-Length: 101"), LIMITS)
    assert caught.value.status == 413
    with pytest.raises(HttpError, match="more than 4 fields") as caught:
        parse_response(head(*["A: b"] * 5), LIMITS)
    assert caught.value.status == 431


@given(st.binary(max_size=80))
def test_any_bytes_are_an_answer_or_refused(data: bytes) -> None:
    for text in (data, OK + data, OK + data + b"\r\n\r\n"):
        try:
            answer = parse_response(text)
        except HttpError:
            continue
        assert text.endswith(b"\r\n\r\n")
        assert answer.length >= TO_THE_END


# ---------------------------------------------------------------- chunks


def chunks(*pieces: bytes, size: str = "{:x}", last: bytes = b"0\r\n\r\n") -> bytes:
    return b"".join(size.format(len(piece)).encode() + b"\r\n" + piece + b"\r\n" for piece in pieces) + last


pieces = st.lists(st.binary(min_size=1, max_size=20), max_size=5)
sizes = st.sampled_from(["{:x}", "{:X}", "{:04x}", "{:x};a=b", '{:x} ; "é"'.encode().decode("latin-1")])
lasts = st.sampled_from([b"0\r\n\r\n", b"000\r\n\r\n", b"0;x\r\nA: b\r\nContent-Length: 5\r\n\r\n"])


@given(pieces, sizes, lasts, st.binary(max_size=9))
def test_a_body_in_chunks(parts: list[bytes], size: str, last: bytes, behind: bytes) -> None:
    data = chunks(*parts, size=size, last=last)
    whole = ChunkReader()
    assert whole.feed(memoryview(data + behind)) == len(data)
    assert whole.done
    assert whole.body == b"".join(parts)
    assert whole.feed(behind) == 0
    slow = ChunkReader()
    for at in range(len(data)):
        assert not slow.done
        assert slow.feed(data[at : at + 1]) == 1
    assert slow.done
    assert slow.body == whole.body


@pytest.mark.parametrize(
    "data",
    [b"\r\n", b"x\r\n", b"5\n", b"5 \r\n", b" 5\r\n", b"0x5\r\n", b"-5\r\n", b"+5\r\n", b"5\r\r\n", b"5;a\n\r\n",
     b"5;\0\r\n", b"1" * 16 + b"\r\n", b"1\r\naXY", b"1\r\na\n\n", b"1\r\nab\r\n", b"0\r\nA\r\n", b"0\r\nA : b\r\n",
     b"0\r\n A: b\r\n", b"0\r\n\n", b"5;" + b"a" * 2000],
)  # fmt: skip
def test_chunks_that_leave_a_length_in_doubt(data: bytes) -> None:
    with pytest.raises(HttpError):
        ChunkReader().feed(data)
    slow = ChunkReader()
    with pytest.raises(HttpError):
        sum(slow.feed(data[at : at + 1]) for at in range(len(data)))


def test_a_body_in_chunks_has_a_limit() -> None:
    reader = ChunkReader(LIMITS)
    reader.feed(chunks(b"x" * 60, b"x" * 40, last=b""))
    with pytest.raises(HttpError, match="more than 100 bytes") as caught:
        reader.feed(b"1\r\n")
    assert caught.value.status == 413
    with pytest.raises(HttpError, match="more than 100 bytes"):
        ChunkReader(LIMITS).feed(b"fffffffffffffff\r\n")
    with pytest.raises(HttpError, match="one too many"):
        ChunkReader(LIMITS).feed(b"0\r\n" + b"A: b\r\n" * 5)


@given(st.lists(st.binary(max_size=12), max_size=8))
def test_any_bytes_are_chunks_or_refused(parts: list[bytes]) -> None:
    whole, slow = ChunkReader(LIMITS), ChunkReader(LIMITS)
    data = b"".join(parts)
    outcomes: list[object] = []
    for reader, given_parts in ((whole, [data]), (slow, parts)):
        try:
            taken = sum(reader.feed(part) for part in given_parts)
            outcomes.append((taken, reader.done, bytes(reader.body)))
        except HttpError as error:
            outcomes.append(type(error))
    assert outcomes[0] == outcomes[1]


# ---------------------------------------------------------------- requests


def test_a_request_that_is_made() -> None:
    made = make_request("POST", "/v2/models/a%20b/infer", "[::1]:8000", [("X", 7)], 5)
    assert made == b"POST /v2/models/a%20b/infer HTTP/1.1\r\nHost: [::1]:8000\r\nX: 7\r\nContent-Length: 5\r\n\r\n"


@pytest.mark.parametrize(
    ("target", "host", "fields"),
    [("/a b", "h", []), ("/a\r\nb", "h", []), ("/\xe9", "h", []), ("/", "h\r\nA: b", []),
     ("/", "h", [("A", "b\r\nC: d")]),
     ("/", "h", [("A\n", "b")]), ("/", "h", [("A", "\0")]), ("/", "h", [("A", "\u20ac")])],
)  # fmt: skip
def test_nothing_can_be_put_into_a_request(target: str, host: str, fields: list[tuple[str, str]]) -> None:
    with pytest.raises(UsageError):
        make_request("GET", target, host, fields)
