"""Somebody else at an address: shakes hands with a key of its own, and keeps what it is told inside TLS."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator

from rpcsys.link import identity, tls
from tests.live.probe import SESSION_MAGIC, TRACKER_MAGIC
from tests.scripted_peers import exactly

Address = tuple[str, int]


class Impostor:
    """Where it listens; ``heard``: what was said inside TLS; ``said``: what was said in the clear before, each time."""

    def __init__(self, listener: socket.socket) -> None:
        self.address: Address = listener.getsockname()[:2]
        self.heard, self.said, self.handshakes = bytearray(), list[bytes](), 0
        self._listener, self._context = listener, tls.server_context(identity.new())

    @property
    def where(self) -> str:
        return "{}:{}".format(*self.address)

    def serve(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                threading.Thread(target=self._meet, args=(self._listener.accept()[0],), daemon=True).start()

    def _meet(self, sock: socket.socket) -> None:
        with contextlib.suppress(OSError, EOFError):
            sock.settimeout(20)
            if sock.recv(1, socket.MSG_PEEK) != b"\x16":
                self._answer_in_clear(sock)
            sealed = self._context.wrap_socket(sock, server_side=True)
            self.handshakes += 1
            while data := sealed.recv(1 << 16):
                self.heard += data

    def _answer_in_clear(self, sock: socket.socket) -> None:
        """Be a server, or a proxy that relays to a tracker."""
        magic = exactly(sock, 4)
        if int.from_bytes(magic, "little") == TRACKER_MAGIC:
            sock.sendall(magic)
            return
        length = exactly(sock, 4)
        said = exactly(sock, int.from_bytes(length, "little"))
        self.said.append(said)
        text = b"server:rpi4 -session=rpcsys/1" if b"-session" in said else b"server:rpi4"
        sock.sendall(SESSION_MAGIC.to_bytes(4, "little") + len(text).to_bytes(4, "little") + text)


@contextlib.contextmanager
def impostor() -> Iterator[Impostor]:
    with socket.create_server(("127.0.0.1", 0), backlog=64) as listener:
        one = Impostor(listener)
        threading.Thread(target=one.serve, daemon=True).start()
        yield one
        listener.shutdown(socket.SHUT_RDWR)
