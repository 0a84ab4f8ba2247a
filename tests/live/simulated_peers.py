"""Thousands of simulated servers and clients of a tracker, in one thread; each reconnects after the tracker restarts.

They send and read tracker frames, and store what they receive for the test's checks.
"""

from __future__ import annotations

import errno
import itertools
import json
import random
import selectors
import socket
import struct
import threading
import time
from typing import Any

from tests.live.probe import PUT, TRACKER_MAGIC

AGAIN_S = 0.2
_CONNECTS = 64  # new connections in one turn


def frame(message: Any) -> bytes:
    data = json.dumps(message).encode()
    return struct.pack("<i", len(data)) + data


class Peer:
    """One connection, which is kept open. ``numbers`` are the ids of its requests."""

    def __init__(self, name: str, key: str) -> None:
        self.name = name
        self.key = key
        self.socket: socket.socket | None = None
        self.again_at = 0.0
        self.gone = False
        self.numbers = itertools.count(10)
        self._in = b""
        self._out = b""
        self._magic_due = True

    def opening(self) -> list[Any]:
        """Its first messages after the hello."""
        raise NotImplementedError

    def receive_message(self, message: Any) -> None:
        raise NotImplementedError

    def send(self, message: Any) -> None:
        self._out += frame(message)

    def connect(self, address: tuple[str, int]) -> None:
        self.socket = socket.socket()
        self.socket.setblocking(False)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._in, self._magic_due = b"", True
        hello = [1, {"op": "hello", "version": "0", "user": self.name}]
        self._out = struct.pack("<i", TRACKER_MAGIC) + b"".join(map(frame, [hello, *self.opening()]))
        code = self.socket.connect_ex(address)
        if code not in (0, errno.EINPROGRESS):
            raise OSError(code, "connect")

    def receive(self) -> None:
        assert self.socket is not None
        data = self.socket.recv(1 << 16)
        if not data:
            raise ConnectionResetError
        self._in += data
        if self._magic_due and len(self._in) >= 4:
            self._in, self._magic_due = self._in[4:], False
        while len(self._in) >= 4 and not self._magic_due:
            end = 4 + struct.unpack_from("<i", self._in)[0]
            if len(self._in) < end:
                break
            message, self._in = json.loads(self._in[4:end]), self._in[end:]
            if isinstance(message, dict):
                self.receive_message(message)

    def flush(self) -> None:
        if self._out and self.socket is not None:
            try:
                self._out = self._out[self.socket.send(self._out) :]
            except BlockingIOError:
                pass

    @property
    def wants(self) -> int:
        return selectors.EVENT_READ | (selectors.EVENT_WRITE if self._out else 0)


class Server(Peer):
    """A server with one slot. ``lease``: the running lease; ``taken``: its match keys that were leased."""

    def __init__(self, name: str, key: str) -> None:
        super().__init__(name, key)
        self.offering = False
        self.offered = 0
        self.taken: list[str] = []
        self.lease: dict[str, Any] | None = None
        self.registered = False

    def opening(self) -> list[Any]:
        self.registered = False
        running = [] if self.lease is None else [{**self.lease, "since_s": 1.0}]
        register = {"op": "register", "id": 1, "key": self.key, "name": self.name, "port": 9090}
        return [{**register, "running": running}, *([self._offer()] if self.offering else [])]

    def offer(self) -> None:
        """Offer a match key, and again after each reconnection until it is leased."""
        self.offering = True
        if self.socket is not None:
            self.send(self._offer())

    def _offer(self) -> list[Any]:
        self.offered += 1
        return [PUT, self.key, [9090, f"{self.key}:{self.name}-{self.offered}"], None]

    def receive_message(self, message: dict[str, Any]) -> None:
        if message.get("op") == "taken":
            assert self.lease is None, f"{self.name} has two holders"
            self.offering = False
            self.taken.append(message["matchkey"])
            self.lease = {"lease": message["lease"], "epoch": message["epoch"]}
            self.send({"id": message["id"], "ok": True})
            self.send({"op": "lease_started", "id": next(self.numbers), **self.lease, "peer": "simulated"})
        elif "op" in message:
            self.send({"id": message["id"], "ok": True})
        elif message.get("id") == 1:
            self.registered = message["ok"]


class Client(Peer):
    """Waits for one device and closes when it has it. ``leases``: all leases that it received."""

    def __init__(self, name: str, key: str) -> None:
        super().__init__(name, key)
        self.ticket: str | None = None
        self.queued = False
        self.leases: list[dict[str, Any]] = []
        self.refused: list[dict[str, Any]] = []

    def opening(self) -> list[Any]:
        self.queued = False
        return [{"op": "request", "id": 1, "key": self.key, "wait_for_key": True, "ticket": self.ticket}]

    def receive_message(self, message: dict[str, Any]) -> None:
        if message.get("event") == "queued":
            self.ticket, self.queued = message["ticket"], True
        elif "leases" in message:
            self.leases += message["leases"]
            self.gone = True
        elif message.get("ok") is False:
            self.refused.append(message)


class SimulatedPeers(threading.Thread):
    """Keeps its peers connected to ``address`` until `stop`; ``seed`` sets the order of reconnections."""

    def __init__(self, address: tuple[str, int], seed: int) -> None:
        super().__init__(daemon=True)
        self.address = address
        self.peers: list[Peer] = []
        self.problem: BaseException | None = None
        self._chance = random.Random(seed)
        self._halt = threading.Event()
        self._calls: list[Any] = []
        self._selector = selectors.DefaultSelector()

    def add(self, peers: list[Any]) -> None:
        """Add peers; they first connect in this order."""
        self.peers += peers

    def call(self, function: Any) -> None:
        """Call a function in this thread."""
        self._calls.append(function)

    def stop(self) -> None:
        self._halt.set()
        self.join(60)
        for peer in self.peers:
            if peer.socket is not None:
                peer.socket.close()
        self._selector.close()
        if self.problem is not None:
            raise self.problem

    def run(self) -> None:
        try:
            while not self._halt.is_set():
                calls, self._calls = self._calls, []
                for function in calls:
                    function()
                if calls:
                    self._watch()
                self._connect_some()
                self._turn()
        except BaseException as problem:
            self.problem = problem

    def _connect_some(self) -> None:
        now = time.monotonic()
        begun = 0
        for peer in self.peers:
            if begun == _CONNECTS:
                return
            if peer.socket is None and not peer.gone and peer.again_at <= now:
                begun += 1
                try:
                    peer.connect(self.address)
                    self._selector.register(peer.socket, peer.wants, peer)
                except OSError:
                    self._lose(peer)

    def _turn(self) -> None:
        for key, events in self._selector.select(0.005):
            peer = key.data
            try:
                if events & selectors.EVENT_READ:
                    peer.receive()
                peer.flush()
                if peer.gone:
                    self._lose(peer)
                else:
                    self._selector.modify(peer.socket, peer.wants, peer)
            except BlockingIOError:
                pass
            except OSError:
                self._lose(peer)

    def _watch(self) -> None:
        """Wait for writability where a call has queued messages."""
        for key in [*self._selector.get_map().values()]:
            self._selector.modify(key.fileobj, key.data.wants, key.data)

    def _lose(self, peer: Peer) -> None:
        if peer.socket is not None:
            try:
                self._selector.unregister(peer.socket)
            except (KeyError, ValueError):
                pass
            peer.socket.close()
            peer.socket = None
        peer.again_at = time.monotonic() + AGAIN_S * (1 + self._chance.random())
