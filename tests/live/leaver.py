"""A raw client of one lease, which may leave behind any of its steps, and in any way."""

from __future__ import annotations

import json
import random
import socket
import struct
import time
from collections.abc import Callable, Iterator
from typing import Any

from tests.live.intervals import Held
from tests.live.probe import REQUEST, SESSION_MAGIC, TRACKER_MAGIC, opening
from tests.live.swarm import frame

STEPS = (
    *("connected", "hello said", "device asked for", "lease granted", "server reached"),
    *("opening half sent", "session open", "call running", "session closing"),
)
ENDLESS = ("hostile.nap", "hostile.spin", "hostile.seize")
TIMEOUT_S = 30.0
_HELLO, _CALL, _RESULT, _ERROR, _GOODBYE = 1, 2, 3, 4, 11  # kinds of frames
_RESET = struct.pack("ii", 1, 0)  # SO_LINGER: closed at once, with a reset


def session_frame(kind: int, call: int, head: Any, size: int = 0) -> bytes:
    """A frame of a session, up to its body of ``size`` bytes."""
    data = json.dumps(head).encode()
    return struct.pack("<IBBHIIQ", len(data), kind, 0, 0, 0, call, size) + data


class Leaver:
    """One client at a time for ``key``; ``left`` counts who left at which step, ``held`` says what it was told."""

    endless = ENDLESS

    def __init__(self, address: tuple[str, int], key: str, seed: int) -> None:
        self.address = address
        self.key = key
        self.held: list[Held] = []
        self._chance = random.Random(seed)
        self._sockets: list[socket.socket] = []

    def lease(self, last: str = "") -> None:
        """Lease and use a device, as far as ``last``, then leave. Raises OSError or EOFError if the lab fails it."""
        try:
            for step in self._steps(last):
                if step == last:
                    break
        finally:
            way = self._chance.choice((self._close, self._reset, self._half))
            for sock in self._chance.sample(self._sockets, len(self._sockets)):
                way(sock)
            self._sockets.clear()

    def _steps(self, last: str) -> Iterator[str]:
        tracker = self._reach(self.address)
        yield "connected"
        tracker.sendall(struct.pack("<i", TRACKER_MAGIC))
        _read(tracker, 4)
        tvms = self._chance.random() < 0.3
        if not tvms:
            tracker.sendall(frame([1, {"op": "hello", "version": "0", "user": f"raw-{self.key}"}]))
        yield "hello said"
        ours = {"op": "request", "id": 1, "key": self.key, "wait_for_key": True}
        tracker.sendall(frame([REQUEST, self.key, "", 1] if tvms else ours))
        yield "device asked for"
        host, port, matchkey = _granted(tracker)
        yield "lease granted"
        server = self._reach((host, port))
        yield "server reached"
        words = opening(matchkey, "-session=rpcsys/1")
        server.sendall(words[:-9])
        yield "opening half sent"
        server.sendall(words[-9:])
        answer = struct.unpack("<i", _read(server, 4))[0]
        if answer != SESSION_MAGIC:
            raise EOFError(f"no session: {answer:#x}")
        _read(server, struct.unpack("<i", _read(server, 4))[0])
        server.sendall(session_frame(_HELLO, 0, {"version": 1}))
        board = _call(server, 1, "hostile.workdir").rpartition("/session-")[0]
        since = time.monotonic()
        yield "session open"
        if last == "call running":
            server.sendall(session_frame(_CALL, 2, {"f": self._chance.choice(self.endless), "a": []}))
            time.sleep(self._chance.random() * 0.1)
        else:
            _call(server, 2, "hostile.pid")
        self.held.append(Held(board, since, time.monotonic(), "raw"))
        yield "call running"
        server.sendall(session_frame(_GOODBYE, 0, {}))
        yield "session closing"
        while server.recv(65536):
            pass

    def _reach(self, address: tuple[str, int]) -> socket.socket:
        sock = socket.create_connection(address, TIMEOUT_S)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._sockets.append(sock)
        return sock

    def _close(self, sock: socket.socket) -> None:
        sock.close()

    def _reset(self, sock: socket.socket) -> None:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        sock.close()

    def _half(self, sock: socket.socket) -> None:
        try:
            sock.shutdown(socket.SHUT_WR)
            time.sleep(0.05)
        except OSError:
            pass  # it is closed from the other side
        sock.close()


def _read(sock: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        piece = sock.recv(count - len(data))
        if not piece:
            raise EOFError("closed")
        data += piece
    return data


def _granted(tracker: socket.socket) -> tuple[str, int, str]:
    """Wait for a lease, whichever of the two answers it comes in."""
    while True:
        said = json.loads(_read(tracker, struct.unpack("<i", _read(tracker, 4))[0]))
        if isinstance(said, list):
            if said[0] != 0:
                raise EOFError(f"refused: {said}")
            return said[1][0], said[1][1], said[1][2]
        if said.get("ok") is False:
            raise EOFError(f"refused: {said}")
        if "leases" in said:
            lease = said["leases"][0]
            return lease["host"], lease["port"], lease["matchkey"]


def _call(server: socket.socket, number: int, name: str) -> Any:
    """Call a function without arguments; its result, whatever stands before it."""
    server.sendall(session_frame(_CALL, number, {"f": name, "a": []}))
    while True:
        size, kind, _, _, _, call, body = struct.unpack("<IBBHIIQ", _read(server, 24))
        head = json.loads(_read(server, size))
        _read(server, body)
        if kind == _ERROR:
            raise EOFError(f"refused: {head}")
        if kind == _RESULT and call == number:
            return head["r"]


def one_in_ten(chance: random.Random) -> Callable[[], str]:
    """Where the next client leaves: one in ten behind each step, the last of ten at the end."""
    return lambda: chance.choice((*STEPS, ""))
