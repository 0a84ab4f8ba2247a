"""What comes before a lab knows who is there: TLS's records, what is said inside them at first, and secrets as text."""

from __future__ import annotations

import functools
import json
import random
import socket
import ssl
import struct
from typing import Any

from fuzz.mutations import damage
from rpcsys.errors import ConfigError, NoTls, ProtocolError, RpcsysError
from rpcsys.link import credential, identity, tls
from rpcsys.link.terminator import Terminator
from rpcsys.link.tls import Tunnel
from rpcsys.wire import last_words, pinned_keys, tokens
from rpcsys.wire.handshake import CLIENT, SERVER, Greeting, Options, encode_greeting
from rpcsys.wire.tracker import MAGIC_BYTES, MAX_FRAME, TrackerFrameReader

OWN = identity.from_seed(b"1" * 32)
KEY = pinned_keys.PinnedMatchKey("rpi4", OWN.pin, "5" * 32)
SECRET = "A" * 43
_TURNS = 12  # flights of a handshake, and of what is said behind it

_client = functools.cache(tls.client_context)
_server = functools.cache(lambda: tls.server_context(OWN))


def _ends() -> tuple[Tunnel, Tunnel]:
    return Tunnel(_client(), server=False, pins=(OWN.pin,)), Tunnel(_server(), server=True)


# ---------------------------------------------------------------- TLS records, changed on the way

#: Changes, each of 4 bytes: the flight, a place in it (two bytes), and what its byte is combined with.
RECORDS = (b"", b"\0\0\0\0", b"\1\0\7\0\2\0\1\0")
TLS_ERRORS = (NoTls, RpcsysError, EOFError, ssl.SSLError)


def feed_records(data: bytes, rng: random.Random) -> None:
    """A handshake and a greeting between both ends. What arrives is what was said, or nothing."""
    changes = [struct.unpack_from("<BHB", data, at) for at in range(0, len(data) - 3, 4)]
    client, server = _ends()
    said = encode_greeting(Greeting(CLIENT, KEY.text))
    heard, wrote = bytearray(), False
    for flight in range(_TURNS):
        source, target = (client, server) if flight % 2 == 0 else (server, client)
        if not source.open:
            source.handshake()
        if source is client and client.open and not wrote:
            client.write((said,))
            wrote = True
        sent = bytearray(source.outgoing())
        for which, at, byte in changes:
            if sent and which % _TURNS == flight:
                sent[at % len(sent)] ^= byte
        if changes and len(data) % 4 and rng.random() < 0.1:
            sent[:] = damage(bytes(sent), [bytes(sent) or b"\x16"], rng)
        target.feed(sent)
        if target is server and (server.open or server.handshake()):
            space = memoryview(bytearray(4096))
            heard += space[: server.read_into(space)]
    assert said.startswith(heard)
    if heard != said:
        raise ProtocolError("not all has arrived")


# ---------------------------------------------------------------- inside TLS, at a front

_ANSWER = encode_greeting(Greeting(SERVER, "rpi4"))
INNER = tuple(
    encode_greeting(Greeting(CLIENT, KEY.text, options))
    for options in (
        Options(),
        Options(session="rpcsys/1"),
        Options(session="rpcsys/1", serve="net"),
        Options(timeout_s=1.5),
    )
)


def feed_inner(data: bytes, rng: random.Random) -> None:
    """A client that shakes hands with a front and says ``data``: it is opened with the whole match key only."""
    ours, theirs = socket.socketpair()
    front, client = Terminator(), _ends()[0]
    opened: list[Greeting] = []
    ended: list[Exception | None] = []

    def on_open(greeting: Greeting, plain: socket.socket) -> None:
        opened.append(greeting)
        plain.close()

    with ours:
        ours.setblocking(False)
        front.serve(theirs, _server(), [KEY.text], _ANSWER, on_open, ended.append)
        ours.recv(len(_ANSWER))
        try:
            while not client.handshake():
                ours.sendall(client.outgoing())
                front.turn()
                client.feed(ours.recv(1 << 16))
            client.write([data] if data else [])
            ours.sendall(client.outgoing())
            if rng.random() < 0.5:
                ours.shutdown(socket.SHUT_WR)
            for _ in range(4):
                front.turn()
        except OSError:
            pass  # it has hung up
        finally:
            front.close()
    if opened:
        assert opened[0].key == KEY.text
        assert data.startswith(b"\x71\xf2\x0f\0")
    elif isinstance(ended[0], RpcsysError):
        raise ended[0]
    else:
        raise ProtocolError("no whole greeting")


# ---------------------------------------------------------------- a tracker's port

_VIA = {"op": "via", "address": ["10.0.0.9", 1000], "proxy": [None, 9090]}


def _frame(value: Any) -> bytes:
    text = json.dumps(value).encode()
    return struct.pack("<i", len(text)) + text


@functools.cache
def _client_hello() -> bytes:
    client = _ends()[0]
    client.handshake()
    return client.outgoing()


FIRST = (
    _client_hello(),
    MAGIC_BYTES + _frame(_VIA) + _client_hello(),
    MAGIC_BYTES + _frame(_VIA) * 2 + _client_hello(),
    MAGIC_BYTES + _frame([6]),
)


def feed_first(data: bytes, rng: random.Random) -> None:
    """What a lab's tracker is told first: the words of proxies, and TLS at once or behind them."""
    reader = TrackerFrameReader(limit=4096)
    tunnel: Tunnel | None = None
    start = 0
    while start < len(data):
        piece = data[start : start + rng.randint(1, 700)]
        start += len(piece)
        if tunnel is None:
            reader.feed(piece)
            if reader.begins_tls:
                tunnel = Tunnel(_server(), server=True)
                tunnel.feed(reader.rest())
            else:
                while (frame := reader.next()) is not None:
                    assert len(frame) <= 4096 < MAX_FRAME
                    if reader.begins_tls:
                        tunnel = Tunnel(_server(), server=True)
                        tunnel.feed(reader.rest())
                        break
        else:
            tunnel.feed(piece)
        if tunnel is not None:
            assert not tunnel.handshake(), "nobody has finished"
            assert len(tunnel.outgoing()) < 8192


# ---------------------------------------------------------------- secrets as texts

_INVITATION = tokens.Invitation(("lab-host:9190", "[::1]:9"), (f"sha256:{OWN.pin}",) * 2, "aaaaaaaa", SECRET)
_HELD = credential.Credential(
    "basement", "ann", ("lab-host:9190",), (f"sha256:{OWN.pin}",) * 2, f"rpcsys_p_aaaaaaaa_{SECRET}"
)
TEXTS = (
    _INVITATION.text.encode(),
    _INVITATION._replace(addresses=("a:1",) * 8).text.encode(),
    _HELD.text().encode(),
    _HELD._replace(next_token=f"rpcsys_p_aaaaaaaa_{'B' * 43}").text().encode(),
    _HELD.token.encode(),
    KEY.text.encode(),
    last_words.encode(KEY, "SessionTimeout", "over"),
)


def feed_text(data: bytes, rng: random.Random) -> None:
    """An invitation, a credential, a token, a match key, or last words. Errors do not repeat what they have read."""
    text = data.decode("utf-8", "replace")
    try:
        if data[-2100:].find(last_words.MAGIC) >= 0:
            found = last_words.find(data, KEY)
            if found is None:
                raise ConfigError("these are nobody's last words")
            assert found["message"] == "over"
        elif text.startswith(tokens.INVITATION):
            assert SECRET not in repr(tokens.parse_invitation(text))
        elif text.startswith("{"):
            assert SECRET not in repr(credential.parse(text, "it"))
        elif text.startswith("rpcsys_"):
            assert SECRET not in repr(tokens.parse(text))
        elif pinned_keys.parse(text) is None:
            raise ConfigError("this is no pinned match key")
        elif text.startswith("rpi4:t1-"):
            assert KEY.secret not in pinned_keys.shown(text)
    except ConfigError as error:
        if SECRET in str(error):
            raise ValueError("the error repeats the secret") from None
        raise
