"""Pinned match keys pass through TVM's own tracker, and proxies, as they are: sessions are encrypted behind them."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import rpcsys
from rpcsys.link import standing_key
from rpcsys.secure_stream import NativeSecureStream, SecureStream
from rpcsys.wire import handshake, pinned_keys
from rpcsys.wire.handshake import CLIENT, SERVER, Greeting, Options
from tests.live.daemons import START_S, Daemon, Daemons
from tests.live.probe import PUT, TrackerProbe

KEY = "edge"
OURS = Options(session=handshake.SESSION)


@pytest.fixture
def server(daemons: Daemons, tmp_path: Path) -> Daemon:
    return daemons.server(KEY, "--standing-key", str(tmp_path / "edge.key"), "--preload", "none")


@pytest.fixture
def pinned(server: Daemon, tmp_path: Path) -> str:
    return standing_key.match_key(str(tmp_path / "edge.key"))


def offer(tracker: Daemon, pinned: str, port: int) -> TrackerProbe:
    """Offer a match key to TVM's tracker, as TVM's server does. It is offered while the connection is open."""
    probe = TrackerProbe(tracker.address)
    assert probe.ask([PUT, KEY, [port, pinned], "127.0.0.1"]) == 0
    return probe


def lease_and_use(tracker: Daemon, pinned: str) -> None:
    with rpcsys.connect_tracker(tracker.where).request(KEY, wait_timeout=START_S) as session:
        assert isinstance(session._channel._stream, (SecureStream, NativeSecureStream))
        assert session.lease["matchkey"] == pinned
        array = np.arange(1 << 20)
        assert (session.get_function("testing.echo")(array) == array).all()


def test_tvms_tracker_passes_it_on(daemons: Daemons, server: Daemon, pinned: str) -> None:
    tracker = daemons.tracker(flavour="tvm")
    with offer(tracker, pinned, server.address[1]):
        lease_and_use(tracker, pinned)


def test_a_proxy_passes_on_what_it_cannot_read(daemons: Daemons, server: Daemon, pinned: str) -> None:
    tracker, proxy = daemons.tracker(flavour="tvm"), daemons.proxy()
    with offer(tracker, pinned, proxy.address[1]), waiting_at(proxy, server, pinned) as said:
        lease_and_use(tracker, pinned)
    secret = pinned.rpartition("-")[2].encode()
    assert len(said) > 2 * 8 << 20
    assert secret not in said
    assert b"testing.echo" not in said


@contextlib.contextmanager
def waiting_at(proxy: Daemon, server: Daemon, pinned: str) -> Iterator[bytearray]:
    """What passes a proxy at which the server waits, under the match key's public name."""
    name, said = pinned_keys.public_name(pinned), bytearray()
    options = Options(session=handshake.SESSION, server="board", offered=True)
    with socket.create_connection(proxy.address) as near, socket.create_connection(server.address) as far:
        near.sendall(handshake.encode_greeting(Greeting(SERVER, name, options)))
        far.sendall(handshake.encode_greeting(Greeting(CLIENT, name, OURS)))
        answered(far)

        def paired() -> None:
            answered(near)
            moving = [threading.Thread(target=move, args=(*ends, said)) for ends in ((near, far), (far, near))]
            for thread in moving:
                thread.start()
            for thread in moving:
                thread.join()

        both = threading.Thread(target=paired, daemon=True)
        both.start()
        yield said
        both.join(START_S)


def answered(sock: socket.socket) -> None:
    """Receive the answer to a greeting, and not a byte more."""
    reader = handshake.AnswerReader()
    while reader.needed:
        reader.receive(sock.recv(reader.needed))


def move(source: socket.socket, target: socket.socket, said: bytearray) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(1 << 16):
            said += data
            target.sendall(data)
        target.shutdown(socket.SHUT_WR)
