"""Connections over HTTP: whole, byte by byte, ahead, cut, and wrong."""

from __future__ import annotations

import gzip
import json
import random
import socket
import zlib

import pytest

from rpcsys.gateway import http_connection
from rpcsys.wire.handshake import CLIENT, Greeting, encode_greeting
from rpcsys.wire.tracker import MAGIC_BYTES
from tests.gateway.running import GatewayBench, in_binary, in_json, infer_path, request

FLOATS = infer_path("float32")
BODY = in_json("FP32", (1, 3), [1, 2.5, -3])


def test_requests_follow_each_other_on_one_connection(bench: GatewayBench) -> None:
    with bench.connect() as client:
        for _ in range(3):
            told = client.ask("POST", FLOATS, BODY)
            assert (told.status, told.json["outputs"][0]["data"]) == (200, [1, 2.5, -3])
            assert client.ask("GET", "/v2/health/live").json == {"live": True}


def test_a_request_may_come_byte_by_byte(bench: GatewayBench) -> None:
    body, field = in_binary("UINT8", (1, 5), b"abcde")
    with bench.connect() as client:
        client.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for byte in request("POST", infer_path("uint8"), body, field):
            client.sock.sendall(bytes([byte]))
        told = client.reply()
        assert told.status == 200
        assert told.body.endswith(b"abcde")
        assert int(told.fields["inference-header-content-length"]) == len(told.body) - 5


@pytest.mark.parametrize("size", [1, 20_000, 3_000_000])
def test_a_body_is_received_whole(bench: GatewayBench, size: int) -> None:
    data = random.Random(size).randbytes(size)
    body, field = in_binary("UINT8", (1, size), data)
    with bench.connect() as client:
        for _ in range(2):
            told = client.ask("POST", infer_path("uint8"), body, field)
            assert (told.status, told.body[-size:]) == (200, data)
    bench.await_true(lambda: bench.service.memory.taken == 0)


def test_requests_that_are_sent_ahead_are_answered_in_order(bench: GatewayBench) -> None:
    count = 300
    sent = b"".join(request("POST", FLOATS, in_json("FP32", (1, 1), [number])) for number in range(count))
    with bench.connect() as client:
        client.sock.sendall(sent + request("GET", "/v2/health/live") * count)
        for number in range(count):
            assert client.reply().json["outputs"][0]["data"] == [number]
        for _ in range(count):
            assert client.reply().json == {"live": True}


def test_a_body_in_chunks(bench: GatewayBench) -> None:
    with bench.connect() as client:
        head = request("POST", FLOATS, b"", "Transfer-Encoding: chunked", "Expect: 100-continue")
        client.sock.sendall(head)
        assert client.reply().status == 100
        for at in range(0, len(BODY), 7):
            piece = BODY[at : at + 7]
            client.sock.sendall(b"%x\r\n%b\r\n" % (len(piece), piece))
        client.sock.sendall(b"0\r\n\r\n" + request("GET", "/v2/health/live"))
        assert client.reply().json["outputs"][0]["data"] == [1, 2.5, -3]
        assert client.reply().json == {"live": True}


def test_a_client_that_expects_it_is_told_to_go_on(bench: GatewayBench) -> None:
    sent = request("POST", FLOATS, BODY, "Expect: 100-continue")
    with bench.connect() as client:
        client.sock.sendall(sent[: -len(BODY)])
        assert client.reply().status == 100
        client.sock.sendall(BODY)
        assert client.reply().status == 200


def test_http_1_0_and_close(bench: GatewayBench) -> None:
    for line, kept in (
        (b"GET /v2 HTTP/1.0\r\n\r\n", False),
        (b"GET /v2 HTTP/1.0\r\nConnection: keep-alive\r\n\r\n", True),
        (b"GET /v2 HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n", False),
    ):
        with bench.connect() as client:
            client.sock.sendall(line)
            told = client.reply()
            assert told.status == 200
            if kept:
                assert told.fields["connection"] == "keep-alive"
                assert client.ask("GET", "/v2/health/live").status == 200
            else:
                assert client.ended()


def test_a_head_has_no_body(bench: GatewayBench) -> None:
    with bench.connect() as client:
        head = client.ask("HEAD", "/v2")
        got = client.ask("GET", "/v2")
        assert head.fields == got.fields
        assert (head.body, len(got.body)) == (b"", int(head.fields["content-length"]))


@pytest.mark.parametrize("pack", [gzip.compress, zlib.compress], ids=["gzip", "deflate"])
@pytest.mark.parametrize("size", [300, 200_000])
def test_bodies_are_compressed_both_ways(bench: GatewayBench, pack: object, size: int) -> None:
    name = "gzip" if pack is gzip.compress else "deflate"
    data = random.Random(1).randbytes(size)
    body, field = in_binary("UINT8", (1, size), data)
    packed = gzip.compress(body) if name == "gzip" else zlib.compress(body)
    fields = (field, f"Content-Encoding: {name}", f"Accept-Encoding: {name}")
    told = bench.ask("POST", infer_path("uint8"), packed, *fields)
    assert (told.status, told.fields["content-encoding"]) == (200, name)
    assert zlib.decompress(told.body, 47).endswith(data)
    assert "content-encoding" not in bench.ask("GET", "/v2", b"", f"Accept-Encoding: {name}").fields


def test_a_compressed_body_has_limits_too(bench: GatewayBench) -> None:
    bomb = gzip.compress(bytes(64 << 20))
    told = bench.ask("POST", FLOATS, bomb, "Content-Encoding: gzip")
    assert (told.status, "--max-body" in told.json["error"]) == (413, True)
    for body, status in ((b"no gzip", 400), (gzip.compress(BODY)[:-3], 400), (gzip.compress(BODY) + b"more", 400)):
        assert bench.ask("POST", FLOATS, body, "Content-Encoding: gzip").status == status
    assert bench.ask("POST", FLOATS, BODY, "Content-Encoding: br").status == 415


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"\x16\x03\x01\x02\x00", 400),
        (b"PRI * HTTP/2.0\r\n\r\n", 505),
        (b"GET / HTTP/1.1\r\n\r\n", 400),  # no Host
        (b"GET /v2 HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n", 400),
        (b"POST /v2 HTTP/1.1\r\nHost: a\r\nContent-Length: 99999999999\r\n\r\n", 413),
        (b"POST /v2 HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n", 400),
        (b"GET /v2 HTTP/1.1\r\nHost: a\r\nX: " + b"y" * 20_000, 431),
        (b"GET /v2 HTTP/1.1\r\nHost: a\r\nExpect: a miracle\r\n\r\n", 417),
    ],
)
def test_what_is_no_request_is_answered_and_the_connection_ends(bench: GatewayBench, sent: bytes, status: int) -> None:
    with bench.connect() as client:
        client.sock.sendall(sent)
        told = client.reply()
        assert told.status == status
        assert list(told.json) == ["error"]
        assert client.ended()
    assert bench.ask("GET", "/v2/health/live").status == 200


def test_a_peer_with_another_protocol_is_told_what_is_here(bench: GatewayBench) -> None:
    for sent in (MAGIC_BYTES, encode_greeting(Greeting(CLIENT, "a-key"))):
        with bench.connect() as client:
            client.sock.sendall(sent)
            assert b"HTTP" in client.sock.recv(1000)


def test_garbage_ends_its_own_connection_only(bench: GatewayBench) -> None:
    chance = random.Random(3)
    for _ in range(60):
        with bench.connect() as client:
            start = chance.choice([b"", b"POST /v2 HTTP/1.1\r\n", b"GET "])
            try:
                client.sock.sendall(start + chance.randbytes(chance.randrange(3000)))
                client.sock.shutdown(socket.SHUT_WR)
                client.sock.recv(100)
            except OSError:
                pass  # it was cut off
    assert bench.ask("GET", "/v2/health/live").status == 200
    bench.await_true(lambda: len(bench.service.crowd) == 0)


def test_a_request_that_is_cut_leaves_nothing(bench: GatewayBench) -> None:
    body, field = in_binary("UINT8", (1, 1_000_000), bytes(1_000_000))
    whole = request("POST", infer_path("uint8"), body, field)
    for end in (1, 40, 100, 200, 5000, len(whole) - 1):
        with bench.connect() as client:
            client.sock.sendall(whole[:end])
    bench.await_true(lambda: len(bench.service.crowd) == 0)
    assert bench.run(lambda: bench.service.memory.taken) == 0


def test_a_client_that_hangs_up_cancels_its_call(bench: GatewayBench) -> None:
    bench.hosts.mute = True
    with bench.connect() as client:
        client.sock.sendall(request("POST", FLOATS, BODY))
        bench.await_true(lambda: not bench.service.backend.state.idle)
    assert bench.hosts.cancelled.wait(30)
    bench.await_true(lambda: len(bench.service.crowd) == 0 and bench.service.memory.taken == 0)


def test_what_waits_behind_a_call_is_bounded(bench: GatewayBench) -> None:
    """A client that sends ahead is not read from; that it hangs up is noticed all the same."""
    bench.hosts.mute = True
    ahead = request("GET", "/v2") * 5000
    with bench.connect() as client:
        client.sock.sendall(request("POST", FLOATS, BODY) + ahead)
        bench.await_true(lambda: bench.service.crowd.received > 64_000)
        assert bench.run(lambda: bench.service.crowd.received) < 140_000 < len(ahead)
    assert bench.hosts.cancelled.wait(30)


def test_a_slow_reader_costs_its_own_connection_only(bench: GatewayBench) -> None:
    size = 6_000_000
    body, field = in_binary("UINT8", (1, size), bytes(size))
    with bench.connect() as slow:
        slow.sock.sendall(request("POST", infer_path("uint8"), body, field))
        for _ in range(100):
            assert bench.ask("POST", FLOATS, BODY).status == 200
        told = slow.reply()
        assert (told.status, len(told.body)) == (200, size + int(told.fields["inference-header-content-length"]))


def test_bodies_wait_for_memory(bench: GatewayBench) -> None:
    size = 1_000_000
    body, field = in_binary("UINT8", (1, size), b"b" * size)
    whole = request("POST", infer_path("uint8"), body, field)

    def shrink() -> None:
        bench.service.memory.limit = 3_000_000

    bench.run(shrink)
    clients = [bench.connect() for _ in range(6)]
    for client in clients:
        client.sock.sendall(whole[:200_000])
    bench.await_true(lambda: bench.service.memory.taken == 2 * len(body))
    for client in clients:
        client.sock.sendall(whole[200_000:])
        told = client.reply()
        assert (told.status, told.body[-size:]) == (200, b"b" * size)
        client.__exit__()
    bench.await_true(lambda: bench.service.memory.taken == 0)


def test_who_waits_too_long_is_sent_away(bench: GatewayBench, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HEAD_S", "MOVE_S", "END_S"):
        monkeypatch.setattr(http_connection, name, 0.1)
    for sent in (b"GET /v2 HT", request("POST", FLOATS, BODY)[:-3]):
        with bench.connect() as client:
            client.sock.sendall(sent)
            told = client.reply()
            assert (told.status, "error" in json.loads(told.body)) == (408, True)
            assert client.ended()
    monkeypatch.setattr(http_connection, "IDLE_S", 0.1)
    with bench.connect() as client:
        assert client.ended()
