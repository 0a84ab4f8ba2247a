"""Many streams through one proxy: all bytes arrive in order, no stream delays another, memory is bounded."""

from __future__ import annotations

import hashlib
import os
import resource
import selectors
import socket
import time
from collections.abc import Iterator

import psutil
import pytest

from tests.live.daemons import Daemon, Daemons, rss_mb, wait_until
from tests.proxy.streams import Stream, joined, met

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

PAIRS, BUSY = 1000, 200
EACH_WAY = 1 << 20
STOPPED_S = 60.0
DESCRIPTORS = 4096
PIECE = 64 << 10
POOL = os.urandom(1 << 20)  # senders start at different places and wrap around
KEPT_MB = 64 + 30  # the proxy's limit for all buffers, and a margin for the allocator


@pytest.fixture(autouse=True)
def descriptors() -> Iterator[None]:
    """Allow this process many sockets."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, DESCRIPTORS), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


class Sender:
    """Sends ``size`` bytes of the pool from ``place`` on."""

    def __init__(self, sock: socket.socket, place: int, size: int) -> None:
        self.sock, self.left = sock, size
        self._doubled = memoryview(POOL + POOL[:PIECE])
        self._place = place % len(POOL)
        self.digest = hashlib.blake2b()

    def step(self) -> bool:
        """Send what the socket accepts; whether bytes are left."""
        try:
            sent = self.sock.send(self._doubled[self._place : self._place + min(PIECE, self.left)])
        except BlockingIOError:
            return True
        self.digest.update(self._doubled[self._place : self._place + sent])
        self._place = (self._place + sent) % len(POOL)
        self.left -= sent
        return self.left > 0


class Receiver:
    """Receives ``size`` bytes."""

    def __init__(self, sock: socket.socket, size: int) -> None:
        self.sock, self.left = sock, size
        self.digest = hashlib.blake2b()

    def step(self) -> bool:
        try:
            data = self.sock.recv(min(PIECE, self.left))
        except BlockingIOError:
            return True
        assert data, f"ended with {self.left} bytes to come"
        self.digest.update(data)
        self.left -= len(data)
        return self.left > 0


class Traffic:
    """Senders and receivers on a selector. One socket may have both."""

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._flows: list[tuple[Sender, Receiver]] = []
        self._roles: dict[socket.socket, dict[int, Sender | Receiver]] = {}

    def add(self, sender: socket.socket, receiver: socket.socket, size: int) -> None:
        flow = Sender(sender, 7919 * len(self._flows), size), Receiver(receiver, size)
        self._flows.append(flow)
        for end, event in zip(flow, (selectors.EVENT_WRITE, selectors.EVENT_READ), strict=True):
            end.sock.setblocking(False)
            self._roles.setdefault(end.sock, {})[event] = end
            self._watch(end.sock)

    def run(self, deadline_s: float) -> None:
        """Run until all bytes have arrived; check them."""
        end = time.monotonic() + deadline_s
        while self._selector.get_map():
            ready = self._selector.select(5)
            assert ready, "nothing moves"
            assert time.monotonic() < end, "it takes too long"
            for key, events in ready:
                for event in (selectors.EVENT_READ, selectors.EVENT_WRITE):
                    if events & event and not key.data[event].step():
                        del self._roles[key.fileobj][event]
                        self._watch(key.fileobj)
        for sender, receiver in self._flows:
            assert sender.digest.digest() == receiver.digest.digest()

    def _watch(self, sock: socket.socket) -> None:
        roles = self._roles[sock]
        if sock in self._selector.get_map():
            self._selector.unregister(sock)
        if roles:
            self._selector.register(sock, sum(roles), dict(roles))


def join_all(proxy: Daemon, count: int) -> list[tuple[Stream, Stream]]:
    """``count`` joined pairs, each with its own key."""
    servers = [Stream(proxy.address, f"server:{number}") for number in range(count)]
    clients = [Stream(proxy.address, f"client:{number}") for number in range(count)]
    return [(met(client), met(server)) for client, server in zip(clients, servers, strict=True)]


def test_a_thousand_pairs_with_two_hundred_busy_ones_are_relayed(
    daemons: Daemons, record_property: pytest.RecordProperty
) -> None:
    proxy = daemons.proxy("--silent")
    before = rss_mb([proxy.pid])
    started = time.monotonic()
    pairs = join_all(proxy, PAIRS)
    record_property("pairings a second", round(PAIRS / (time.monotonic() - started)))
    record_property("kB for an idle pair", round((rss_mb([proxy.pid]) - before) * 1000 / PAIRS, 1))
    traffic = Traffic()
    for client, server in pairs[:: PAIRS // BUSY]:
        traffic.add(client.socket, server.socket, EACH_WAY)
        traffic.add(server.socket, client.socket, EACH_WAY)
    started = time.monotonic()
    traffic.run(90)
    record_property("MB a second", round(2 * BUSY * EACH_WAY / 1e6 / (time.monotonic() - started)))
    grown = rss_mb([proxy.pid]) - before
    record_property("MB for all", round(grown))
    assert grown < KEPT_MB
    for client, server in pairs:  # the idle pairs, too
        client.socket.setblocking(True)
        client.socket.sendall(b"still there?")
        server.socket.setblocking(True)
        assert server.read(12) == b"still there?"
        client.close()
        server.close()
    wait_until(lambda: streams(proxy) == 0, 20, "all have closed")


def streams(proxy: Daemon) -> int:
    """The number of the proxy's connections."""
    found = psutil.Process(proxy.pid).net_connections("tcp")
    return sum(connection.status == psutil.CONN_ESTABLISHED for connection in found)


def test_a_hundred_clients_that_do_not_read_cost_bounded_memory(
    daemons: Daemons, record_property: pytest.RecordProperty
) -> None:
    """The waiting bytes arrive when the clients read."""
    proxy = daemons.proxy("--silent")
    before = rss_mb([proxy.pid])
    pairs = join_all(proxy, 100)
    senders = [Sender(server.socket, 7919 * number, PLENTY) for number, (_, server) in enumerate(pairs)]
    for sender in senders:
        sender.sock.setblocking(False)
    while push(senders):
        time.sleep(0.1)  # the proxy accepts more bytes
    grown = rss_mb([proxy.pid]) - before
    record_property("MB for all", round(grown))
    assert grown < KEPT_MB
    quick_client, quick_server = joined(proxy, "quick")
    quick_client.socket.sendall(b"ping")
    assert quick_server.read(4) == b"ping"
    for (client, _), sender in zip(pairs, senders, strict=True):
        receiver = Receiver(client.socket, PLENTY - sender.left)
        while receiver.step():
            pass
        assert receiver.digest.digest() == sender.digest.digest()


PLENTY = 1 << 30


def push(senders: list[Sender]) -> int:
    """Send what the sockets accept; the number of bytes."""
    before = sum(sender.left for sender in senders)
    for sender in senders:
        left = -1
        while left != sender.left:
            left = sender.left
            sender.step()
    return before - sum(sender.left for sender in senders)


def test_a_client_that_stops_reading_for_a_minute_delays_no_other(
    daemons: Daemons, record_property: pytest.RecordProperty
) -> None:
    proxy = daemons.proxy()
    stopped, sender = joined(proxy, "stopped")
    busy, partner = joined(proxy, "busy")
    blob = POOL * 64
    sender.socket.setblocking(False)
    sent = 0
    waits = []
    end = time.monotonic() + STOPPED_S
    while time.monotonic() < end:
        try:
            sent += sender.socket.send(blob[sent:])
        except BlockingIOError:
            pass
        started = time.monotonic()
        busy.socket.sendall(blob[:PIECE])
        assert partner.read(PIECE) == blob[:PIECE]
        waits.append(time.monotonic() - started)
    assert sent < len(blob)
    waits.sort()
    record_property(
        "ms for 64 kB meanwhile, median and worst", [round(1e3 * waits[len(waits) // 2], 2), round(1e3 * waits[-1], 1)]
    )
    assert waits[len(waits) // 2] < 0.1
    assert waits[-1] < 5
    sender.socket.setblocking(True)
    assert stopped.read(sent) == blob[:sent]  # nothing is lost, and the stream is still open
    sender.socket.sendall(b"on")
    assert stopped.read(2) == b"on"
