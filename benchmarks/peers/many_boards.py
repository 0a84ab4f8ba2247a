"""Thousands of boards, or of waiting clients, of one lab in one process, which follow the tracker that leads.

``python -m benchmarks.peers.many_boards boards|clients COUNT PORT,PORT`` prints a line of JSON a second after all
are at their place, each time: ``{"at": …, "begun": …, "positions": […]}``. ``at`` and ``begun``: when
the last and the first one got there, seconds of the monotonic clock. ``positions``: of each client in the queue.
"""

from __future__ import annotations

import heapq
import json
import select
import socket
import sys
import time
from collections.abc import Sequence
from typing import Any

from benchmarks.peers.trackers import KEY, MAGIC, PUT, frame, frames
from rpcsys.wire import control, replicas

PING = 1
ASKED = control.Keepalive(control.QUESTION).to_json()
ALIVE = frame(control.Answer(control.QUESTION, True).to_json())
AGAIN_S = 0.2  # until a tracker is tried again
READ = 1 << 16
WANTED = "wanted"  # a key without a device: its clients wait
ANSWER_S = 10.0
QUIET_S = 3.0  # without news, before what is known is reported
HOSTS = 100
IP_BIND_ADDRESS_NO_PORT = 24  # linux/in.h
BATCH = 128  # connections that are made between two polls


class Peer:
    """A board or a client: its connection to the tracker that leads, and a lookout where there are several trackers."""

    def __init__(self, number: int, name: str) -> None:
        self.number, self.name = number, name
        self.main: Connection | None = None
        self.lookout: Connection | None = None
        self.settled = False

    @property
    def capabilities(self) -> list[str]:
        """What its hello says."""
        return [replicas.REPLICAS, control.KEEPALIVE]

    def opening(self) -> Sequence[Any]:
        """What it says once it is welcome."""
        registration = {"op": "register", "id": 1, "key": KEY, "name": self.name, "port": 9090}
        return registration, [PUT, KEY, [9090, f"{KEY}:{self.name}-{time.monotonic_ns()}"], None]

    def settles(self, message: Any) -> bool:
        """Whether a message of the tracker's says that it is at its place."""
        return bool(message == 0)


class Client(Peer):
    """One that waits."""

    def __init__(self, number: int, name: str) -> None:
        super().__init__(number, name)
        self.ticket: str | None = None

    @property
    def capabilities(self) -> list[str]:
        return [replicas.REPLICAS]

    def opening(self) -> Sequence[Any]:
        return ({"op": "request", "id": 1, "key": WANTED, "wait_for_key": True, "ticket": self.ticket},)

    def settles(self, message: Any) -> bool:
        if type(message) is not dict or message.get("event") != "queued":
            return False
        self.ticket = message["ticket"]
        return True

    def position(self) -> int:
        """Its position in the queue, which the tracker tells by itself only where it has changed by a tenth."""
        assert self.main is not None
        position: int = self.main.ask({"op": "why", "id": 2, "request": 1})["why"]["position"]
        return position


class Connection:
    """A connection to one tracker."""

    def __init__(self, peer: Peer, port: int) -> None:
        self.peer, self.port = peer, port
        self.socket = socket.socket()
        self.socket.setsockopt(socket.IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, 1)
        # One address has too few ports for all: the kernel looks for a free one for milliseconds.
        self.socket.bind((f"127.0.1.{1 + peer.number % HOSTS}", 0))
        try:
            self.socket.connect(("127.0.0.1", port))
        except OSError:
            self.socket.close()
            raise
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket.setblocking(False)
        self.begin()

    def begin(self) -> None:
        """Say the magic and the hello; also when the tracker leads from now on."""
        self.welcome: dict[str, Any] | None = None
        self._magic, self._buffer = True, b""
        hello = {"op": "hello", "version": "0", "user": self.peer.name, "capabilities": self.peer.capabilities}
        self.socket.sendall(MAGIC + frame([PING, hello]))

    def receive(self) -> list[Any]:
        """Its messages. Raises OSError: the tracker has ended it."""
        try:
            data = self.socket.recv(READ)
        except BlockingIOError:
            return []
        if not data:
            raise ConnectionError("the tracker ended the connection")
        self._buffer += data
        if self._magic:
            if len(self._buffer) < len(MAGIC):
                return []
            self._magic, self._buffer = False, self._buffer[len(MAGIC) :]
        messages, self._buffer = frames(self._buffer)
        return messages

    def ask(self, question: dict[str, Any]) -> dict[str, Any]:
        """The answer to a question; what comes before it is not looked at. Raises OSError: there is none."""
        self.socket.settimeout(ANSWER_S)
        self.socket.sendall(frame(question))
        while True:
            for message in self.receive():
                if type(message) is dict and message.get("id") == question["id"]:
                    self.socket.setblocking(False)
                    return message


class Peers:
    """All of a process."""

    def __init__(self, peers: Sequence[Peer], ports: Sequence[int]) -> None:
        self.peers, self.ports = peers, ports
        self.leader = ports[0]
        self._connections: dict[int, Connection] = {}
        self._poller = select.epoll()
        #: When a peer needs a connection, and its number.
        self._due = [(0.0, number) for number, _ in enumerate(peers)]
        self._settled = 0
        self._begun = self._at = self._heard = 0.0
        self._reported = False

    def run(self) -> None:
        """Go on until this process is ended."""
        while True:
            for _ in range(BATCH):
                if not self._due or self._due[0][0] > time.monotonic():
                    break
                self._connect(self.peers[heapq.heappop(self._due)[1]])
            pause = max(0.0, self._due[0][0] - time.monotonic()) if self._due else QUIET_S
            ready = self._poller.poll(min(pause, QUIET_S))
            for number, _ in ready:
                if number in self._connections:
                    self._hear(self._connections[number])
            if not self._reported and self._settled == len(self.peers) and time.monotonic() > self._heard + QUIET_S:
                self._report()

    def _report(self) -> None:
        self._reported = True
        positions = [each.position() for each in self.peers if isinstance(each, Client)]
        print(json.dumps({"at": self._at, "begun": self._begun, "positions": positions}), flush=True)

    def _try(self, peer: Peer, pause_s: float) -> None:
        """See to a peer's connections later."""
        heapq.heappush(self._due, (time.monotonic() + pause_s, peer.number))

    def _connect(self, peer: Peer) -> None:
        """Make what a peer lacks."""
        if (peer.main is None and peer.lookout is None) or (peer.main is None and peer.lookout.port != self.leader):
            self._open(peer, self.leader, "main")
        elif peer.lookout is None and len(self.ports) > 1:
            self._open(peer, next(port for port in self.ports if port != self.leader), "lookout")

    def _open(self, peer: Peer, port: int, what: str) -> None:
        try:
            made = Connection(peer, port)
        except OSError:
            self._try(peer, AGAIN_S)
            return
        setattr(peer, what, made)
        self._connections[made.socket.fileno()] = made
        self._poller.register(made.socket, select.EPOLLIN)

    def _close(self, connection: Connection) -> None:
        peer = connection.peer
        del self._connections[connection.socket.fileno()]
        self._poller.unregister(connection.socket)
        connection.socket.close()
        if connection is peer.main:
            peer.main = None
            self._unsettle(peer)
        if connection is peer.lookout:
            peer.lookout = None

    def _unsettle(self, peer: Peer) -> None:
        self._settled -= peer.settled
        peer.settled = False

    def _hear(self, connection: Connection) -> None:
        try:
            for message in connection.receive():
                self._take(connection, message)
        except OSError:
            if self._connections.get(connection.socket.fileno()) is connection:
                self._close(connection)
                self._try(connection.peer, AGAIN_S)

    def _take(self, connection: Connection, message: Any) -> None:
        peer = connection.peer
        if connection.welcome is None:
            connection.welcome = message
            if message.get("role") == replicas.STANDBY:
                self._stands_by(connection)
            else:
                self._leads(connection)
        elif connection is peer.lookout:
            self._take_news(connection, message)
        elif message == ASKED:
            connection.socket.sendall(ALIVE)
        elif peer.settles(message):
            self._heard = time.monotonic()
            if not peer.settled:
                self._settles(peer)

    def _stands_by(self, connection: Connection) -> None:
        peer = connection.peer
        if connection is peer.main:
            peer.main, peer.lookout = None, connection
            self._try(peer, AGAIN_S)

    def _leads(self, connection: Connection) -> None:
        peer = connection.peer
        self.leader = connection.port
        if connection is peer.lookout:  # no other one is looked for: the tracker that led is away
            peer.main, peer.lookout = connection, None
        else:
            self._try(peer, 0.0)
        connection.socket.sendall(b"".join(map(frame, peer.opening())))

    def _take_news(self, lookout: Connection, news: dict[str, Any]) -> None:
        peer = lookout.peer
        if news["leader"] is None and not news["here"]:
            return
        if peer.main is not None:
            self._close(peer.main)
        if news["here"]:
            lookout.begin()
        elif news["leader"] is not None:
            self.leader = news["leader"][1]
            self._try(peer, 0.0)

    def _settles(self, peer: Peer) -> None:
        self._at = time.monotonic()
        if not self._settled:
            self._begun = self._at
        peer.settled = True
        self._settled += 1
        self._reported = False


def main() -> None:
    kind, count, ports = sys.argv[1:]
    made = {"boards": Peer, "clients": Client}[kind]
    first = time.monotonic_ns()
    peers = [made(number, f"{kind}-{first}-{number}") for number in range(int(count))]
    Peers(peers, [int(port) for port in ports.split(",")]).run()


if __name__ == "__main__":
    main()
