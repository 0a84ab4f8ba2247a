"""Faults for daemons: floods, garbage, false messages, partial handshakes, window violations, stopped processes, full
disks.

Each function injects one fault for about a second and cleans up. Its connections have loopback addresses of their own:
a daemon's limits per address do not affect other clients.
"""

from __future__ import annotations

import contextlib
import random
import signal
import socket
import struct
import time
from collections.abc import Iterator
from pathlib import Path

import psutil

from tests.live.abandoning_client import AbandoningClient, session_frame
from tests.live.daemons import Daemon
from tests.live.probe import PUT, SESSION_MAGIC, TRACKER_MAGIC, opening
from tests.live.simulated_peers import frame
from tests.live.test_random_messages import Words

Address = tuple[str, int]
TIMEOUT_S = 10.0
_CALL = 2
_MAGICS = (struct.pack("<i", TRACKER_MAGIC), struct.pack("<i", SESSION_MAGIC), b"GET / HTTP/1.1\r\n", b"\x16\x03")
_BROKEN_BYTES = 8 << 20


@contextlib.contextmanager
def peers(chance: random.Random, address: Address, count: int) -> Iterator[list[socket.socket]]:
    """Up to ``count`` connections from one random loopback address: those that the daemon accepts."""
    source = f"127.{chance.randrange(1, 250)}.{chance.randrange(250)}.{chance.randrange(1, 250)}"
    made = []
    try:
        for _ in range(count):
            with contextlib.suppress(OSError):
                made.append(socket.create_connection(address, TIMEOUT_S, (source, 0)))
        yield made
    finally:
        for peer in made:
            peer.close()


def send(peer: socket.socket, data: bytes) -> None:
    """Send ``data``; ignore errors."""
    with contextlib.suppress(OSError):
        peer.sendall(data)


def flood(chance: random.Random, address: Address) -> None:
    """Many connections at once that send nothing, or a part of a magic number."""
    with peers(chance, address, chance.randrange(20, 200)) as made:
        for peer in made:
            send(peer, chance.choice(_MAGICS)[: chance.randrange(5)])
        time.sleep(chance.random())


def garbage(chance: random.Random, address: Address) -> None:
    """Random bytes after a correct magic number."""
    with peers(chance, address, 8) as made:
        for peer in made:
            send(peer, chance.choice(_MAGICS) + chance.randbytes(chance.randrange(100_000)))
        time.sleep(chance.random())


def half_open(chance: random.Random, address: Address) -> None:
    """Handshakes that are sent byte by byte and stop in the middle."""
    words = opening(f"board:{chance.randrange(10**9)}", "-session=rpcsys/1")
    with peers(chance, address, 8) as made:
        for end in range(1, chance.randrange(2, len(words))):
            for peer in made:
                send(peer, words[end - 1 : end])
            time.sleep(0.01)


def false_client(chance: random.Random, tracker: Address) -> None:
    """Hundreds of messages of every kind with random content, except those that end or drain others' leases."""
    words = Words(chance.randrange(10**9))
    with peers(chance, tracker, 2) as made:
        for peer in made:
            send(peer, struct.pack("<i", TRACKER_MAGIC) + frame([1, {"op": "hello", "version": "0"}]))
            for _ in range(200):
                message = words.message()
                if not isinstance(message, dict) or message["op"] not in ("end", "drain"):
                    send(peer, frame(message))


def false_server(chance: random.Random, tracker: Address, key: str) -> None:
    """A server with false addresses, false leases, and replies without a request."""
    register = {"op": "register", "id": 1, "key": key, "name": f"false-{chance.randrange(4)}", "port": 1}
    running = [{"lease": "none", "epoch": chance.choice((1, 2**53, 2**62)), "since_s": -1e300}]
    with peers(chance, tracker, 1) as made:
        for peer in made:
            send(peer, struct.pack("<i", TRACKER_MAGIC) + frame([1, {"op": "hello", "version": "9" * 30}]))
            send(peer, frame({**register, "slots": 256, "running": running}))
            for number in range(64):
                send(peer, frame([PUT, key, [chance.randrange(1, 65536), f"{key}:{number}"], "127.0.0.1"]))
                said = {"lease": "none", "epoch": number, "outcome": "lost", "cleaned": {"x": ["y" * 1000] * 50}}
                send(peer, frame({"op": "lease_ended", "id": number + 2, **said}))
                send(peer, frame({"id": number, "ok": True, "leases": [{}]}))
            time.sleep(chance.random())


class WindowBreaker(AbandoningClient):
    """A client that opens a session, sends far more than the window allows, and reads nothing."""

    endless = ("fault.nap", "fault.spin")

    def exceed(self) -> None:
        for step in self._steps("call running"):
            if step == "call running":
                with contextlib.suppress(OSError):
                    data = session_frame(_CALL, 9, {"f": "testing.echo", "a": ["x" * 60_000]})
                    for _ in range(_BROKEN_BYTES // len(data)):
                        self._sockets[-1].sendall(data)
                break
        for sock in self._sockets:
            sock.close()
        self._sockets.clear()


def break_window(chance: random.Random, tracker: Address, key: str) -> None:
    """Run one `WindowBreaker`."""
    breaker = WindowBreaker(tracker, key, chance.randrange(10**9))
    with contextlib.suppress(OSError, EOFError):
        breaker.exceed()


def stop_for_a_while(chance: random.Random, daemon: Daemon) -> None:
    """SIGSTOP to a daemon or one of its descendants, and SIGCONT within two seconds."""
    with contextlib.suppress(psutil.Error, IndexError):
        process = psutil.Process(chance.choice(daemon.tree()))
        process.send_signal(signal.SIGSTOP)
        try:
            time.sleep(chance.uniform(0.05, 2.0))
        finally:
            process.send_signal(signal.SIGCONT)


def fill(chance: random.Random, folder: Path) -> None:
    """Fill a disk for up to two seconds."""
    path = folder / "filling"
    try:
        with contextlib.suppress(OSError), path.open("wb", buffering=0) as file:
            while file.write(bytes(1 << 16)):
                pass
        time.sleep(chance.uniform(0.1, 2.0))
    finally:
        path.unlink(missing_ok=True)
