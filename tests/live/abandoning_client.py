"""A raw client that abandons its lease after a given step: it closes, resets or half-closes its connections."""

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
from tests.live.simulated_peers import frame
from tests.scripted_peers import exactly

STEPS = (
    *("connected", "hello said", "device asked for", "lease granted", "server reached"),
    *("opening half sent", "session open", "call running", "session closing"),
)
ENDLESS = ("fault.nap", "fault.spin", "fault.hold_gil")
TIMEOUT_S = 30.0
_HELLO, _CALL, _RESULT, _ERROR, _GOODBYE = 1, 2, 3, 4, 11  # kinds of frames
_RESET = struct.pack("ii", 1, 0)  # SO_LINGER: close() sends a reset


def session_frame(kind: int, call: int, head: Any, size: int = 0) -> bytes:
    """A session's frame without its body, which has ``size`` bytes."""
    data = json.dumps(head).encode()
    return struct.pack("<IBBHIIQ", len(data), kind, 0, 0, 0, call, size) + data


class AbandoningClient:
    """Leases ``key`` again and again, one lease at a time; ``held``: the intervals in which it had a session."""

    endless = ENDLESS

    def __init__(self, address: tuple[str, int], key: str, seed: int) -> None:
        self.address = address
        self.key = key
        self.held: list[Held] = []
        self._chance = random.Random(seed)
        self._sockets: list[socket.socket] = []

    def lease(self, last: str = "") -> None:
        """Lease and use a device up to the step ``last``, then end all connections. Raises OSError or EOFError."""
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
        exactly(tracker, 4)
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
        answer = struct.unpack("<i", exactly(server, 4))[0]
        if answer != SESSION_MAGIC:
            raise EOFError(f"no session: {answer:#x}")
        exactly(server, struct.unpack("<i", exactly(server, 4))[0])
        server.sendall(session_frame(_HELLO, 0, {"version": 1}))
        board = _call(server, 1, "fault.workdir").rpartition("/session-")[0]
        since = until = time.monotonic()
        yield "session open"
        if last == "call running":
            server.sendall(session_frame(_CALL, 2, {"f": self._chance.choice(self.endless), "a": []}))
            time.sleep(self._chance.random() * 0.1)
        else:
            _call(server, 2, "fault.pid")
            until = time.monotonic()
            _call(server, 3, "fault.pid")  # its reply shows that the session lived until then
        self.held.append(Held(board, since, until, "raw"))
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
            pass  # the peer has closed it
        sock.close()


def _granted(tracker: socket.socket) -> tuple[str, int, str]:
    """Wait for a lease, in TVM's reply or in ours."""
    while True:
        said = json.loads(exactly(tracker, struct.unpack("<i", exactly(tracker, 4))[0]))
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
    """Call a function without arguments; its result. Other frames before it are skipped."""
    server.sendall(session_frame(_CALL, number, {"f": name, "a": []}))
    while True:
        size, kind, _, _, _, call, body = struct.unpack("<IBBHIIQ", exactly(server, 24))
        head = json.loads(exactly(server, size))
        exactly(server, body)
        if kind == _ERROR:
            raise EOFError(f"refused: {head}")
        if kind == _RESULT and call == number:
            return head["r"]


def random_step(chance: random.Random) -> Callable[[], str]:
    """A function that chooses the last step of the next client: one of the nine steps, or "" for all steps."""
    return lambda: chance.choice((*STEPS, ""))
