"""A relay that keeps all bytes that pass, and may change them on the way."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
from typing import Protocol

Address = tuple[str, int]


class Change(Protocol):
    """What becomes of received bytes, of which ``before`` have passed in this direction of the connection.

    ``up``: from the client to the server. `Cut` ends the connection.
    """

    def __call__(self, data: bytes, *, up: bool, before: int) -> bytes: ...


class Cut(Exception):
    """The connection ends, in both directions, behind ``data``."""

    def __init__(self, data: bytes) -> None:
        super().__init__()
        self.data = data


def cut_at(place: int, *, in_up: bool) -> Change:
    """End each connection behind its first ``place`` bytes in a direction."""

    def change(data: bytes, *, up: bool, before: int) -> bytes:
        if up is in_up and before + len(data) > place:
            raise Cut(data[: place - before])
        return data

    return change


def nothing(data: bytes, *, up: bool, before: int) -> bytes:
    return data


class Passed:
    """The bytes of one connection."""

    def __init__(self) -> None:
        self.up, self.down = bytearray(), bytearray()


class Recorded:
    """The address to connect to, the ``server`` behind it, which may be set later, and all connections so far.

    ``change``: applied to what passes from now on; the record has what was received.
    """

    def __init__(self, address: Address, server: Address | None) -> None:
        self.address, self.server = address, server
        self.connections: list[Passed] = []
        self.change: Change = nothing

    @property
    def where(self) -> str:
        return "{}:{}".format(*self.address)

    @property
    def said(self) -> bytes:
        """The bytes of all connections, in both directions."""
        return b"\n".join(bytes(way) for each in self.connections for way in (each.up, each.down))


@contextlib.contextmanager
def recording(server: Address | None = None) -> Iterator[Recorded]:
    """A relay to ``server``."""
    with socket.create_server(("127.0.0.1", 0), backlog=256) as listener:
        recorded = Recorded(listener.getsockname()[:2], server)
        threading.Thread(target=_accept, args=(listener, recorded), daemon=True).start()
        yield recorded
        listener.shutdown(socket.SHUT_RDWR)


def _accept(listener: socket.socket, recorded: Recorded) -> None:
    with contextlib.suppress(OSError):
        while True:
            near = listener.accept()[0]
            try:
                far = socket.create_connection(recorded.server or ("", 0))
            except OSError:  # the server is not there now
                near.close()
                continue
            passed = Passed()
            recorded.connections.append(passed)
            for ends, up in (((near, far), True), ((far, near), False)):
                threading.Thread(target=_move, args=(*ends, recorded, passed, up), daemon=True).start()


def _move(source: socket.socket, target: socket.socket, recorded: Recorded, passed: Passed, up: bool) -> None:
    """Move bytes until one end closes, or is reset: then the other end is told at once."""
    kept = passed.up if up else passed.down
    try:
        while data := source.recv(1 << 16):
            before = len(kept)
            kept += data
            target.sendall(recorded.change(data, up=up, before=before))
        target.shutdown(socket.SHUT_WR)
    except (Cut, OSError) as end:
        for each in (target, source):
            with contextlib.suppress(OSError):
                if each is target and isinstance(end, Cut):
                    each.sendall(end.data)
                each.shutdown(socket.SHUT_RDWR)
