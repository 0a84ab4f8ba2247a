"""Scripted replicas of a tracker, over real sockets: each leads, stands by, hangs or is gone, as the test says."""

from __future__ import annotations

import contextlib
import json
import socket
import ssl
import struct
import threading
from collections.abc import Callable, Iterator
from typing import Any

from rpcsys.wire.replicas import REPLICAS
from tests.scripted_peers import MAGIC, WELCOME, Replies, exactly, framed


class Connection:
    """An accepted connection. ``begins``: it is to begin (anew) with the magic; ``looks_out``: a standby answered."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.begins = True
        self.looks_out = False
        self.sending = threading.Lock()

    def send(self, *values: Any) -> None:
        with contextlib.suppress(OSError), self.sending:
            self.sock.sendall(b"".join(one if isinstance(one, bytes) else framed(one) for one in values))

    def cut(self) -> None:
        with contextlib.suppress(OSError):
            self.sock.shutdown(socket.SHUT_RDWR)


class FakeReplica:
    """One of ``group``. ``hellos`` and ``received``: what it was sent; ``relayed``: what proxies say of connections.

    ``context``: of TLS, which it then speaks alone.
    """

    def __init__(self, group: FakeReplicas, context: ssl.SSLContext | None) -> None:
        self.group, self.context = group, context
        self.hellos: list[Any] = []
        self.received: list[Any] = []
        self.relayed: list[Any] = []
        self.connections: list[Connection] = []
        self.running = threading.Event()
        self.running.set()
        self.address: tuple[str, int] = ("127.0.0.1", 0)
        self.listen()

    def listen(self) -> None:
        """Listen, at first or again: at the same port."""
        self.listener = socket.create_server(self.address)
        self.address = self.listener.getsockname()
        threading.Thread(target=self._accept, args=(self.listener,), daemon=True).start()

    @property
    def leads(self) -> bool:
        return self.group.leader is self

    @property
    def lookouts(self) -> int:
        """How many lookouts are connected."""
        return sum(one.looks_out for one in self.connections)

    def pause(self) -> None:
        """Hang: the kernel accepts connections, and nothing is read or answered."""
        self.running.clear()

    def cut(self) -> None:
        """End all connections."""
        for one in list(self.connections):
            one.cut()

    def die(self) -> None:
        """Be gone: connections are reset, new ones refused."""
        with contextlib.suppress(OSError):
            self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()
        self.running.set()
        self.cut()

    def say(self, leader: Any, term: Any, **more: Any) -> None:
        """Send news to the lookouts."""
        for one in list(self.connections):
            if one.looks_out:
                if more.get("here"):
                    one.looks_out, one.begins = False, True
                one.send({"op": "leader", "leader": leader, "term": term, **more})

    def _accept(self, listener: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                sock, _ = listener.accept()
                threading.Thread(target=self._serve, args=(sock,), daemon=True).start()

    def _serve(self, sock: socket.socket) -> None:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        one = Connection(sock)
        self.connections.append(one)
        try:
            self.running.wait()
            if self.context is not None:
                one.sock = self.context.wrap_socket(sock, server_side=True)
            while True:
                self._take(one, exactly(one.sock, 4))
        except (OSError, EOFError):
            pass
        finally:
            self.connections.remove(one)
            one.cut()
            one.sock.close()

    def _take(self, one: Connection, head: bytes) -> None:
        if one.begins:
            if head != MAGIC:
                raise EOFError("no magic")
            one.begins = False
            self.running.wait()
            one.send(MAGIC)
            return
        asked: Any = json.loads(exactly(one.sock, struct.unpack("<i", head)[0]))
        self.running.wait()
        if isinstance(asked, dict) and asked.get("op") == "via":
            self.relayed.append(asked)
            return
        if isinstance(asked, list) and len(asked) > 1 and asked[0] == 1:
            self.hellos.append(asked[1])
            with self.group.lock:  # no news are sent before it
                one.send(self._welcome(one, asked[1]))
            return
        self.received.append(asked)
        one.send(*([0] if isinstance(asked, list) else self.group.replies(asked)))

    def _welcome(self, one: Connection, hello: Any) -> Any:
        term = self.group.term
        if REPLICAS not in hello["capabilities"]:
            return WELCOME
        if self.leads:
            return {**WELCOME, "role": "leader", "term": term}
        one.looks_out = True
        return {**WELCOME, "role": "standby", "leader": self.group.where, "term": term, **self.group.more}


class FakeReplicas:
    """So many replicas; ``leader`` is one of them, or None. ``replies``: the leader's answers to our questions."""

    def __init__(self, count: int = 3, context: ssl.SSLContext | None = None) -> None:
        self.more: dict[str, Any] = {}  # of what a standby says
        self.lock = threading.Lock()
        self.term = 0
        self.leader: FakeReplica | None = None
        self.replies: Replies = lambda asked: [{"id": asked["id"], "ok": True}]
        self.each = [FakeReplica(self, context) for _ in range(count)]

    @property
    def text(self) -> str:
        """The addresses, as in ``--tracker``."""
        return ",".join("{}:{}".format(*one.address) for one in self.each)

    @property
    def where(self) -> Any:
        """The leader's address, None without one."""
        return None if self.leader is None else list(self.leader.address)

    def lead(self, number: int | None) -> None:
        """Have another one lead; None: nobody. A leader that does not hang closes its connections, as a deposed one."""
        with self.lock:
            deposed = self.leader
            self.leader = None if number is None else self.each[number]
            self.term += number is not None
            if deposed is not None and deposed.running.is_set():
                deposed.cut()
            for one in self.each:
                if one.running.is_set():
                    one.say(self.where, self.term, **({"here": True} if one.leads else {}))

    def close(self) -> None:
        for one in self.each:
            one.die()


@contextlib.contextmanager
def replicas(count: int = 3, leader: int | None = 0, context: ssl.SSLContext | None = None) -> Iterator[FakeReplicas]:
    """So many replicas, of which one leads."""
    made = FakeReplicas(count, context)
    try:
        made.lead(leader)
        yield made
    finally:
        made.close()


def eventually(what: Callable[[], Any], seconds: float = 20.0) -> Any:
    """The first true value of ``what()``."""
    wait = threading.Event()
    for _ in range(int(seconds / 0.01)):
        found = what()
        if found:
            return found
        wait.wait(0.01)
    raise AssertionError(f"not within {seconds} s")
