"""TVM's tracker and ours, with requests of TVM's unmodified client and of many raw clients at once.

The raw clients and servers write like TVM's (``tvm.rpc.base.sendjson``): a frame's length in one write and its text in
another, with Nagle's algorithm on. The second write waits until the tracker has acknowledged the first.
"""

from __future__ import annotations

import itertools
import json
import select
import socket
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from typing import Any
from unittest import mock

from benchmarks.figures import percentile
from benchmarks.peers import ours
from benchmarks.peers.subject import WARM_SHARE, Subject, Trial, announce, serve_until_told, take_children_along
from rpcsys.secure_lab import KEEPER

MAGIC = struct.pack("<i", 0x2F271)
PUT, REQUEST = 3, 4
KEY = "bench"
DESK, BOARD = KEEPER, "board"  # who has a connection, in a lab


class TvmTracker(Subject):
    server_arguments = ("-m", "benchmarks.peers.trackers")

    @contextmanager
    def summary(self) -> Iterator[Trial]:
        """TVM's client requests the summary, repeatedly."""
        yield Trial(self._tvm_client().summary)

    @contextmanager
    def request(self) -> Iterator[Trial]:
        """TVM's client requests a free device; the session after it is left out."""
        client = self._tvm_client()
        with closing(Connection(self.port)) as server, mock.patch("tvm.rpc.client.connect"):
            server.offer()
            yield Trial(lambda: client.request(KEY), after=server.offer)

    @contextmanager
    def allocate(self, clients: int, least_s: float = 0.0) -> Iterator[Trial]:
        """``clients`` raw clients at once, each with a new request as soon as it has a lease, and as many servers.

        ``least_s``: the least seconds of a round, for a tracker that writes its logs now and then.
        """
        with ExitStack() as stack:
            desks, boards = (
                [stack.enter_context(closing(self.connection(who))) for _ in range(clients)] for who in (DESK, BOARD)
            )
            yield Load(desks, boards, self.cpu_seconds, least_s)

    def connection(self, member: str) -> Connection:
        """A connection of `DESK` or `BOARD`."""
        return Connection(self.port)

    def _tvm_client(self) -> Any:
        from tvm import rpc

        return rpc.connect_tracker("127.0.0.1", self.port)


class OurTracker(TvmTracker):
    server_arguments = ours.TRACKER


class OurTrackerWithAll(OurTracker):
    """The tracker as a lab runs it: with state directory, metrics and a log line per lease."""

    def start(self) -> None:
        state = str(self.place.folder / "state")
        ports = ("--port", "0", "--http-port", str(free_port()))
        command = ("-m", "rpcsys.tracker", "--host", "127.0.0.1", *ports, "--state-dir", state)
        self.port = self.start_server(command)


def free_port() -> int:
    """A port that was free a moment ago."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


#: Extra seconds for the first lease of a tracker that has no time on a busy machine.
FIRST_S = 30.0


class Connection:
    """A raw connection to a tracker."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port))
        self._buffer = b""
        self._numbers = itertools.count()
        self._greet()

    def close(self) -> None:
        self.socket.close()

    def offer(self) -> None:
        """Offer a new match key and wait until the tracker has it."""
        self.send_offer()
        self.await_reply()

    def send_offer(self) -> None:
        """Offer a new match key; it contains the connection's number, by which a load finds the server."""
        matchkey = f"{KEY}:{self.socket.fileno()}-{next(self._numbers)}"
        self.send([PUT, KEY, [1, matchkey], None])

    def send(self, message: Any) -> None:
        """Send a message in two writes, as TVM does."""
        whole = frame(message)
        self._write(whole[:4])
        self._write(whole[4:])

    def receive(self) -> list[Any]:
        """Read once and decode the whole frames; blocks if there is nothing to read."""
        messages, self._buffer = frames(self._buffer + self._read())
        return messages

    def await_reply(self) -> Any:
        """The next message."""
        while True:
            for message in self.receive():
                return message

    def _greet(self) -> None:
        self._write(MAGIC)
        while len(self._buffer) < len(MAGIC):
            self._buffer += self._read()
        if self._buffer != MAGIC:
            raise ConnectionError("the peer is not a tracker")
        self._buffer = b""

    def _write(self, data: bytes) -> None:
        self.socket.sendall(data)

    def _read(self) -> bytes:
        data = self.socket.recv(1 << 16)
        if not data:
            raise ConnectionError("the tracker ended the connection")
        return data


class WholeFrames(Connection):
    """One that sends each message in one write, as our own links do."""

    def send(self, message: Any) -> None:
        self._write(frame(message))


class Load(Trial):
    """Clients that request without pause, and servers that renew each leased offer."""

    def __init__(
        self, clients: list[Connection], servers: list[Connection], cpu_seconds: Callable[[], float], least_s: float
    ) -> None:
        self._clients = {client.socket.fileno(): client for client in clients}
        self._servers = {server.socket.fileno(): server for server in servers}
        self._cpu_seconds = cpu_seconds
        self._least_s = least_s
        self._asked: dict[int, float] = {}

    def measure(self, budget_s: float) -> dict[str, float]:
        """Allocations per second, the 99th percentile of the clients' waits, and the tracker's CPU seconds for each."""
        with select.epoll() as poller:
            for number in (*self._clients, *self._servers):
                poller.register(number, select.EPOLLIN)
            for server in self._servers.values():
                server.send_offer()
            for number in self._clients:
                self._ask(number)
            budget_s = max(budget_s, self._least_s)
            self._run(poller, budget_s * WARM_SHARE)
            begin, cpu = time.perf_counter(), self._cpu_seconds()
            waits = self._run(poller, budget_s)
            spent, cpu = time.perf_counter() - begin, self._cpu_seconds() - cpu
            return {
                "per_second": len(waits) / spent,
                "p99_seconds": percentile(waits, 99),
                "cpu_seconds": cpu / len(waits),
            }

    def _run(self, poller: select.epoll, seconds: float) -> list[float]:
        waits: list[float] = []
        end = time.perf_counter() + seconds
        while (now := time.perf_counter()) < end or (not waits and now < end + FIRST_S):
            for number, _ in poller.poll(1.0):
                if number in self._servers:
                    self._servers[number].receive()
                else:
                    self._served(number, waits)
        return waits

    def _served(self, number: int, waits: list[float]) -> None:
        for _, (_, _, matchkey) in self._clients[number].receive():
            waits.append(time.perf_counter() - self._asked[number])
            self._servers[int(matchkey[len(KEY) + 1 :].partition("-")[0])].send_offer()
            self._ask(number)

    def _ask(self, number: int) -> None:
        self._asked[number] = time.perf_counter()
        self._clients[number].send([REQUEST, KEY, "", 1])


def frame(message: Any) -> bytes:
    """A tracker frame: the length, then the JSON."""
    body = json.dumps(message).encode()
    return struct.pack("<i", len(body)) + body


def frames(data: bytes) -> tuple[list[Any], bytes]:
    """The decoded whole frames in the data, and the remaining bytes."""
    messages, start = [], 0
    while len(data) - start >= 4:
        end = start + 4 + int.from_bytes(data[start : start + 4], "little")
        if end > len(data):
            break
        messages.append(json.loads(data[start + 4 : end]))
        start = end
    return messages, data[start:]


def main() -> None:
    from tvm.rpc.tracker import Tracker

    take_children_along()
    tracker = Tracker("127.0.0.1", port=9300, port_end=9900, silent=True)
    announce(tracker.port)
    serve_until_told()


if __name__ == "__main__":
    main()
