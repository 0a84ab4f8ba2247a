"""Relays between two ends: our proxy, socat, HAProxy, and a direct connection.

The ends are threads of this process, the same for all relays: one sends from reused memory, one receives into reused
memory. Each relay is a process; its CPU time includes its children's.
"""

from __future__ import annotations

import os
import shutil
import socket
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

from benchmarks.figures import median
from benchmarks.peers import ours
from benchmarks.peers.memory import octets
from benchmarks.peers.raw import RawSocket
from benchmarks.peers.subject import Place, Subject, Trial, announce
from rpcsys.link.tcp import tune
from rpcsys.wire import handshake

PIECE = 1 << 20
CONNECT_S = 10.0
KEY = "bench"
PROXY = ("-m", "rpcsys.proxy", *ours.ANY_PORT)

Ends = tuple[socket.socket, socket.socket]


class Relay(Subject):
    """Joins the ends of streams; `pair` opens a new stream."""

    @contextmanager
    def relay(self, streams: int, size: int) -> Iterator[Trial]:
        """Transfer ``size`` bytes in total over ``streams`` parallel streams."""
        with ExitStack() as stack:
            ends = [self.pair() for _ in range(streams)]
            for sock in (sock for pair in ends for sock in pair):
                stack.enter_context(closing(sock))
            pool = stack.enter_context(ThreadPoolExecutor(2 * streams))
            yield Transfer(pool, ends, size // streams, self.cpu_seconds)

    @contextmanager
    def pairing(self) -> Iterator[Trial]:
        """Join two ends and close both."""

        def run() -> None:
            for sock in self.pair():
                sock.close()

        yield Trial(run)

    def pair(self) -> Ends:
        """The sending and the receiving end of a new stream."""
        raise NotImplementedError


class Transfer(Trial):
    """Transfers bytes over streams that stay open; the figures are medians of the runs."""

    def __init__(
        self, pool: ThreadPoolExecutor, ends: Sequence[Ends], size: int, cpu_seconds: Callable[[], float]
    ) -> None:
        super().__init__(self._all)
        self._pool = pool
        self._ends = ends
        self._size = size
        self._cpu_seconds = cpu_seconds

    def measure(self, budget_s: float) -> dict[str, float]:
        """Seconds of one run, and CPU seconds of the relay in it."""
        self.once()
        seconds, cpu = [], []
        for _ in range(3):
            before = self._cpu_seconds()
            seconds.append(self.once())
            cpu.append(self._cpu_seconds() - before)
        return {"seconds": median(seconds), "cpu_seconds": median(cpu)}

    def _all(self) -> None:
        tasks = [self._pool.submit(send, sender, self._size) for sender, _ in self._ends]
        tasks += [self._pool.submit(receive, receiver, self._size) for _, receiver in self._ends]
        for task in tasks:
            task.result()


def send(sock: socket.socket, size: int) -> None:
    piece = octets(PIECE)
    while size:
        sock.sendall(piece[: min(size, PIECE)])
        size -= min(size, PIECE)


def receive(sock: socket.socket, size: int) -> None:
    piece = octets(PIECE)
    while size:
        count = sock.recv_into(piece, min(size, PIECE))
        if not count:
            raise ConnectionError("the stream ended")
        size -= count


class Proxy(Relay):
    """Our proxy."""

    server_arguments = PROXY

    def pair(self) -> Ends:
        server = opened(self.port, handshake.SERVER)
        client = opened(self.port, handshake.CLIENT)
        answered(client)
        answered(server)
        return client, server


class ProxiedPing(RawSocket):
    """A raw socket's ping through our proxy."""

    def start(self) -> None:
        self.port = self.start_server(PROXY)
        self.start_server(("-m", "benchmarks.peers.relays", "echo", str(self.port)))

    @contextmanager
    def _connected(self) -> Iterator[socket.socket]:
        with opened(self.port, handshake.CLIENT) as sock:
            answered(sock)
            yield sock


class ProxiedSessions(ours.Rpcsys):
    """Our client, proxy and server: three processes. The proxy has its own core if there is a second one."""

    def start(self) -> None:
        self.port = self.start_server(PROXY, core=self.proxy_core())
        behind = ("--host", "127.0.0.1", "--port", str(self.port), "--through-proxy", "--silent")
        self.start_server(("-m", "rpcsys.server", *behind, *ours.DEVICE))

    def proxy_core(self) -> int:
        return other_core(self.place)


class ProxiedCalls(ProxiedSessions):
    """The same with the proxy on the servers' core."""

    def proxy_core(self) -> int:
        return self.place.server_core


def other_core(place: Place) -> int:
    """The core for what stands between a client and its server: another one than theirs, if there is one."""
    others = set(range(os.cpu_count() or 1)) - {place.server_core}
    return min(others, default=place.server_core)


def opened(port: int, role: str) -> socket.socket:
    """Connect to the proxy and send the greeting."""
    sock = socket.create_connection(("127.0.0.1", port))
    tune(sock)
    sock.sendall(handshake.encode_greeting(handshake.Greeting(role, KEY)))
    return sock


def answered(sock: socket.socket) -> None:
    """Wait for the reply to the greeting."""
    reader = handshake.AnswerReader()
    while reader.needed:
        data = sock.recv(reader.needed)
        if not data:
            raise ConnectionError("the proxy hung up")
        reader.receive(data)
    assert reader.result is not None
    assert reader.result.code == "success", reader.result


class Forwarder(Relay):
    """A program that forwards each connection to a listener of this process."""

    program = ""

    def __init__(self, place: Place) -> None:
        super().__init__(place)
        if shutil.which(self.program) is None:
            raise ModuleNotFoundError(name=self.program)
        self._listener = socket.create_server(("127.0.0.1", 0))

    def start(self) -> None:
        self.port = self.start_server(self.command(str(self._listener.getsockname()[1])))

    def command(self, target: str) -> tuple[str, ...]:
        """The arguments of ``python`` that become the program, which forwards to the port ``target``."""
        return ("-m", "benchmarks.peers.relays", self.program, target, str(self.place.folder))

    def stop(self) -> None:
        super().stop()
        self._listener.close()

    def pair(self) -> Ends:
        client = _connected_soon(self.port)
        server, _ = self._listener.accept()
        for sock in (client, server):
            tune(sock)
        return client, server


class Socat(Forwarder):
    program = "socat"


class HaProxy(Forwarder):
    program = "haproxy"


class Direct(Relay):
    """A direct connection."""

    def pair(self) -> Ends:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            client = socket.create_connection(listener.getsockname())
            return client, listener.accept()[0]


def _connected_soon(port: int) -> socket.socket:
    end = time.monotonic() + CONNECT_S
    while True:
        try:
            return socket.create_connection(("127.0.0.1", port))
        except ConnectionRefusedError:
            if time.monotonic() > end:
                raise
            time.sleep(0.02)


HAPROXY = """
global
    maxconn 1000
    nbthread 1
defaults
    mode tcp
    timeout connect 5s
    timeout client 1m
    timeout server 1m
listen relay
    bind 127.0.0.1:{port}
    server target 127.0.0.1:{target}
"""


def become(program: str, target: str, folder: str) -> None:
    """Announce a free port, and execute the program that listens there."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    announce(port)
    if program == "socat":
        os.execlp(
            "socat",
            "socat",
            *("-b", str(PIECE)),
            f"TCP-LISTEN:{port},bind=127.0.0.1,reuseaddr,fork,nodelay",
            f"TCP:127.0.0.1:{target},nodelay",
        )
    path = Path(folder) / "haproxy.cfg"
    path.write_text(HAPROXY.format(port=port, target=target))
    os.execlp("haproxy", "haproxy", "-q", "-f", str(path))


def echo(port: int) -> None:
    """Connect to the proxy as a server and reply to raw exchanges, one connection at a time."""
    from benchmarks.peers.raw import serve

    announce(port)
    while True:
        with opened(port, handshake.SERVER) as sock:
            answered(sock)
            serve(sock)


if __name__ == "__main__":
    if sys.argv[1] == "echo":
        echo(int(sys.argv[2]))
    become(*sys.argv[1:])
