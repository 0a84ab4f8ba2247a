"""The two ends of encrypted streams, for tests that run with and without TLS."""

from __future__ import annotations

import functools
import socket
import time
from collections.abc import Sequence

from rpcsys import stream as streams
from rpcsys.link import identity, tls
from rpcsys.link.tls import Tunnel
from rpcsys.secure_stream import SecureStream, open_secure
from rpcsys.stream import Stream
from rpcsys.wire import pinned_keys

OWN = identity.from_seed(b"1" * 32)
#: A device's match key.
MATCH_KEY = pinned_keys.PinnedMatchKey("key", OWN.pin, "5" * 32)
#: Whether the streams of tests are encrypted now: a parameter of the fixture ``speedups`` sets it.
secure = False

_server = functools.cache(tls.server_context)
_client = functools.cache(tls.client_context)


def tunnels() -> tuple[Tunnel, Tunnel]:
    """A client's and a server's end, both open."""
    client, server = Tunnel(_client(), server=False, pins=(OWN.pin,)), Tunnel(_server(OWN), server=True)
    while not (client.handshake() and server.open):
        server.feed(client.outgoing())
        server.handshake()
        client.feed(server.outgoing())
    server.feed(client.outgoing())
    server.handshake()
    return client, server


def open_both(socks: Sequence[socket.socket]) -> list[Stream]:
    """A stream for each of two connected sockets."""
    if not secure:
        return [streams.open(sock) for sock in socks]
    return [open_secure(*each).finished() for each in zip(socks, tunnels(), strict=True)]


def receive_raw(stream: Stream, most: int, seconds: float) -> bytes:
    """Bytes as they are, at least one, from a stream that was opened by `open_raw`."""
    if isinstance(stream, SecureStream):
        return stream.receive_raw(most, time.monotonic() + seconds)
    return stream.socket.recv(most)


def open_raw(socks: Sequence[socket.socket]) -> list[Stream]:
    """As `open_both`; the second is for `receive_raw`."""
    if not secure:
        return [streams.open(sock) for sock in socks]
    one, other = zip(socks, tunnels(), strict=True)
    return [open_secure(*one).finished(), open_secure(*other)]
