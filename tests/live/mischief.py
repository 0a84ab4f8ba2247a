"""What bad peers do to daemons: floods, garbage, lies, half openings, broken windows, stopped processes, full disks.

Each function does one thing once, for a second or so, and cleans up after itself. They come from loopback addresses of
their own, so that what daemons bound by address is not taken from others.
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

from tests.live.daemons import Daemon
from tests.live.leaver import Leaver, session_frame
from tests.live.probe import PUT, SESSION_MAGIC, TRACKER_MAGIC, opening
from tests.live.swarm import frame
from tests.live.test_random_messages import Words

Address = tuple[str, int]
TIMEOUT_S = 10.0
_CALL = 2
_MAGICS = (struct.pack("<i", TRACKER_MAGIC), struct.pack("<i", SESSION_MAGIC), b"GET / HTTP/1.1\r\n", b"\x16\x03")
_BROKEN_BYTES = 8 << 20


@contextlib.contextmanager
def peers(chance: random.Random, address: Address, count: int) -> Iterator[list[socket.socket]]:
    """So many connections of one stranger; as many of them as are taken."""
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


def say(peer: socket.socket, data: bytes) -> None:
    """Send all that is taken in time."""
    with contextlib.suppress(OSError):
        peer.sendall(data)


def flood(chance: random.Random, address: Address) -> None:
    """Many connections at once that say nothing, or the first bytes of something."""
    with peers(chance, address, chance.randrange(20, 200)) as made:
        for peer in made:
            say(peer, chance.choice(_MAGICS)[: chance.randrange(5)])
        time.sleep(chance.random())


def garbage(chance: random.Random, address: Address) -> None:
    """Any bytes behind a right beginning."""
    with peers(chance, address, 8) as made:
        for peer in made:
            say(peer, chance.choice(_MAGICS) + chance.randbytes(chance.randrange(100_000)))
        time.sleep(chance.random())


def half_open(chance: random.Random, address: Address) -> None:
    """Openings of which a part comes, byte by byte, and no more."""
    words = opening(f"board:{chance.randrange(10**9)}", "-session=rpcsys/1")
    with peers(chance, address, 8) as made:
        for end in range(1, chance.randrange(2, len(words))):
            for peer in made:
                say(peer, words[end - 1 : end])
            time.sleep(0.01)


def lying_client(chance: random.Random, tracker: Address) -> None:
    """Hundreds of messages of every kind with any content, but for those that anybody may say of everybody's leases."""
    words = Words(chance.randrange(10**9))
    with peers(chance, tracker, 2) as made:
        for peer in made:
            say(peer, struct.pack("<i", TRACKER_MAGIC) + frame([1, {"op": "hello", "version": "0"}]))
            for _ in range(200):
                message = words.message()
                if not isinstance(message, dict) or message["op"] not in ("end", "drain"):
                    say(peer, frame(message))


def lying_server(chance: random.Random, tracker: Address, key: str) -> None:
    """A server with places that are none, leases that are none, and answers to questions nobody asked."""
    register = {"op": "register", "id": 1, "key": key, "name": f"liar-{chance.randrange(4)}", "port": 1}
    running = [{"lease": "none", "epoch": chance.choice((1, 2**53, 2**62)), "since_s": -1e300}]
    with peers(chance, tracker, 1) as made:
        for peer in made:
            say(peer, struct.pack("<i", TRACKER_MAGIC) + frame([1, {"op": "hello", "version": "9" * 30}]))
            say(peer, frame({**register, "slots": 256, "running": running}))
            for number in range(64):
                say(peer, frame([PUT, key, [chance.randrange(1, 65536), f"{key}:{number}"], "127.0.0.1"]))
                said = {"lease": "none", "epoch": number, "outcome": "lost", "cleaned": {"x": ["y" * 1000] * 50}}
                say(peer, frame({"op": "lease_ended", "id": number + 2, **said}))
                say(peer, frame({"id": number, "ok": True, "leases": [{}]}))
            time.sleep(chance.random())


class WindowBreaker(Leaver):
    """A client that opens a session and sends far more than it was told it may, and reads nothing."""

    endless = ("hostile.nap", "hostile.spin")

    def broken(self) -> None:
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
    """See `WindowBreaker`."""
    breaker = WindowBreaker(tracker, key, chance.randrange(10**9))
    with contextlib.suppress(OSError, EOFError):
        breaker.broken()


def stop_for_a_while(chance: random.Random, daemon: Daemon) -> None:
    """Stop a daemon's process, or one below it, and let it go on."""
    with contextlib.suppress(psutil.Error, IndexError):
        process = psutil.Process(chance.choice(daemon.tree()))
        process.send_signal(signal.SIGSTOP)
        try:
            time.sleep(chance.uniform(0.05, 2.0))
        finally:
            process.send_signal(signal.SIGCONT)


def fill(chance: random.Random, folder: Path) -> None:
    """Take all that is left of a disk, for a while."""
    path = folder / "filling"
    try:
        with contextlib.suppress(OSError), path.open("wb", buffering=0) as file:
            while file.write(bytes(1 << 16)):
                pass
        time.sleep(chance.uniform(0.1, 2.0))
    finally:
        path.unlink(missing_ok=True)
