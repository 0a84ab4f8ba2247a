"""Openings of encrypted sessions: who is refused, with which error, and what is said before that."""

from __future__ import annotations

import socket
from collections.abc import Callable

import pytest

from rpcsys.errors import NoTls, ProtocolError, RpcsysError, ServerRefused, ServerUnreachable, WrongPin
from rpcsys.link import tls
from rpcsys.link.tls import Tunnel
from rpcsys.link.tls_openings import DIAL_S, HANDSHAKE_S
from rpcsys.wire.handshake import Greeting, Options, encode_greeting, encode_mismatch
from tests.link.terminators import ANSWER, INNER, KEY, OTHER, OUTER, Both, Reading, at_end, both, readable

ALONE = tls.client_context()


class Peer:
    """A client that speaks TLS with a terminator in the server's role."""

    def __init__(self, one: Both) -> None:
        self.one = one
        self.sock = socket.create_connection(one.address)
        self.sock.sendall(encode_greeting(OUTER))
        one.accept()
        assert self.sock.recv(len(ANSWER)) == ANSWER
        self.tunnel = Tunnel(ALONE, server=False, pins=(KEY.pin,))

    def open(self) -> None:
        while not self.tunnel.handshake():
            self.send()
            self.one.until(lambda: bool(self._receive()))
        self.send()

    def send(self, *pieces: bytes) -> None:
        self.tunnel.write(pieces)
        self.sock.sendall(self.tunnel.outgoing())

    def _receive(self) -> int:
        reading = Reading(self.sock)
        reading.go_on()
        self.tunnel.feed(bytes(reading.data))
        return len(reading.data)

    def read(self, count: int) -> bytes:
        space = memoryview(bytearray(count))
        self.one.until(lambda: bool(self._receive()))
        return bytes(space[: self.tunnel.read_into(space)])


def test_what_follows_the_inner_greeting_arrives_whatever_the_pieces() -> None:
    whole = encode_greeting(INNER) + b"the session's own"
    for size in (1, 7, len(whole)):
        with both() as one:
            peer = Peer(one)
            peer.open()
            for start in range(0, len(whole), size):
                peer.send(whole[start : start + size])
                one.terminator.turn()
            one.until(lambda one=one: bool(one.opened))  # type: ignore[misc]
            reading = Reading(one.opened[0][1])
            one.until(lambda reading=reading: reading.go_on() == 17)  # type: ignore[misc]
            assert bytes(reading.data) == b"the session's own"
            assert peer.read(1 << 10) == ANSWER
            peer.sock.close()
            one.closed()


@pytest.mark.parametrize(
    "greeting",
    [
        Greeting("client", KEY._replace(secret="6" * 32).text),
        Greeting("client", KEY.name),
        Greeting("client", "rpi4"),
        Greeting("server", KEY.text),
    ],
    ids=["another secret", "the public name", "the plain key", "a server"],
)
def test_a_client_without_the_right_is_refused_inside_tls(greeting: Greeting) -> None:
    with both() as one:
        peer = Peer(one)
        peer.open()
        peer.send(encode_greeting(greeting))
        assert peer.read(100) == encode_mismatch()
        one.until(lambda: bool(one.ended))
        assert isinstance(one.ended[0], ServerRefused)
        assert "6666" not in str(one.ended[0])
        assert not one.opened
        assert not len(one.terminator)


def test_of_several_match_keys_any_is_right() -> None:
    with both() as one:
        one.expected.append(KEY._replace(secret="6" * 32).text)
        for key in list(one.expected):
            peer = Peer(one)
            peer.open()
            peer.send(encode_greeting(Greeting("client", key)))
            one.until(lambda: bool(one.opened))
            assert one.opened.pop()[0].key == key


@pytest.mark.parametrize(
    ("send", "error"),
    [
        (lambda peer: peer.sock.sendall(b"GET / HTTP/1.1\r\n\r\n"), NoTls),
        (lambda peer: peer.sock.sendall(encode_greeting(INNER)), NoTls),
        (lambda peer: peer.sock.close(), NoTls),
        (lambda peer: (peer.open(), peer.send(b"GET / HTTP")), ProtocolError),
        (lambda peer: (peer.open(), peer.send(b"\x71\xf2\x0f\x00\xff\xff\xff\x7f")), ProtocolError),
        (lambda peer: (peer.open(), peer.sock.sendall(b"\x17\x03\x03\x00\x20" + b"x" * 32)), ProtocolError),
        (lambda peer: (peer.open(), peer.sock.close()), NoTls),
    ],
    ids=["HTTP", "in the clear", "hang-up", "other bytes", "a length", "changed bytes", "hang-up inside"],
)
def test_a_client_that_says_something_else_ends(send: Callable[[Peer], object], error: type[RpcsysError]) -> None:
    with both() as one:
        peer = Peer(one)
        send(peer)
        one.until(lambda: bool(one.ended))
        assert isinstance(one.ended[0], error)
        assert not one.opened
        assert not len(one.terminator)


@pytest.mark.parametrize("inside", [False, True])
def test_a_client_that_stops_is_let_go(inside: bool) -> None:
    clock = [0.0]
    with both(clock=lambda: clock[0]) as one:
        peer = Peer(one)
        if inside:
            peer.open()
        clock[0] = HANDSHAKE_S - 1.0
        one.terminator.turn(0.1)
        assert not one.ended
        clock[0] = HANDSHAKE_S + 1.0
        one.until(lambda: bool(one.ended))
        assert isinstance(one.ended[0], NoTls)
        one.until(lambda: at_end(peer.sock))


# The client's role


def dialled(one: Both, client: socket.socket) -> Exception:
    """The error of an opening, whose client gets TVM's refusal."""
    one.until(lambda: bool(one.dialled))
    assert client.recv(4) == encode_mismatch()
    assert at_end(client)
    one.closed()
    error = one.dialled[0]
    assert error is not None
    assert KEY.secret not in str(error)
    return error


def test_another_pin_is_found_before_anything_is_said() -> None:
    with both() as one:
        client = one.dial(KEY._replace(pin=OTHER.pin))
        sock = one.incoming()
        said = encode_greeting(Greeting("client", KEY._replace(pin=OTHER.pin).name))
        one.until(lambda: readable(sock, len(said) + 1))
        assert sock.recv(len(said)) == said
        one.serve(sock)
        assert isinstance(dialled(one, client), WrongPin)
        assert not one.opened


@pytest.mark.parametrize(
    ("answer", "error", "text"),
    [
        (encode_mismatch(), ServerRefused, "is not served at"),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", ServerUnreachable, "is a page"),
        (b"", ServerUnreachable, "closed the connection"),
        (ANSWER, NoTls, "older than this client"),
        (ANSWER + ANSWER, NoTls, "handshake failed"),
        (ANSWER + b"\x15\x03\x03\x00\x02\x02\x28", NoTls, "handshake failed"),
    ],
    ids=["mismatch", "a page", "silence", "no TLS", "in the clear", "an alert"],
)
def test_a_server_that_answers_otherwise(answer: bytes, error: type[RpcsysError], text: str) -> None:
    with both() as one:
        client = one.dial()
        sock = one.incoming()
        one.until(lambda: len(Reading(sock).data) + Reading(sock).go_on() > 0)
        sock.sendall(answer)
        sock.shutdown(socket.SHUT_WR)
        found = dialled(one, client)
        assert type(found) is error
        assert text in str(found)
        sock.close()


def test_nobody_is_there() -> None:
    with both() as one:
        one.listener.close()
        assert isinstance(dialled(one, one.dial()), ServerUnreachable)


def test_no_such_host() -> None:
    with both() as one:
        assert isinstance(dialled(one, one.dial(address=("no-such-host.invalid", 9090))), ServerUnreachable)


def test_a_server_that_says_nothing() -> None:
    clock = [0.0]
    with both(clock=lambda: clock[0]) as one:
        client = one.dial()
        sock = one.incoming()
        one.until(lambda: Reading(sock).go_on() > 0)
        clock[0] = DIAL_S + 1.0
        assert "no answer within" in str(dialled(one, client))
        sock.close()


def test_options_travel_inside_only() -> None:
    with both() as one:
        ours, theirs = socket.socketpair()
        options = Options(session="rpcsys/1", serve="head")
        one.terminator.dial(one.address, KEY, options, theirs, one.dialled.append)
        sock = one.incoming()
        outer = encode_greeting(Greeting("client", KEY.name, Options(session="rpcsys/1")))
        one.until(lambda: readable(sock, len(outer) + 1))
        assert sock.recv(len(outer)) == outer
        one.serve(sock)
        one.until(lambda: bool(one.opened))
        assert one.opened[0][0] == Greeting("client", KEY.text, options)
        ours.close()
