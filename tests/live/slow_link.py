"""A relay in front of a server that limits the bytes per second each way."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Iterator

#: The size of one burst in bytes. The sockets' buffers must be small: their contents arrive at once.
BURST = 1 << 15
#: The limit, in seconds, for catching up after a sleep that took too long.
LATE_S = 0.05


@contextlib.contextmanager
def slow_link(server: tuple[str, int], rate: float) -> Iterator[tuple[str, int]]:
    """Start the relay; its address. ``rate`` in bytes per second."""
    listener = socket.create_server(("127.0.0.1", 0))
    ends: list[socket.socket] = [listener]

    def accept() -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = listener.accept()
                far = socket.create_connection(server)
                ends.extend((near, far))
                for one, other in ((near, far), (far, near)):
                    one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, BURST)
                    threading.Thread(target=forward, args=(one, other, rate), daemon=True).start()

    thread = threading.Thread(target=accept, daemon=True)
    thread.start()
    try:
        yield listener.getsockname()
    finally:
        for end in ends:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()
        thread.join()


def forward(one: socket.socket, other: socket.socket, rate: float) -> None:
    """Forward all bytes at ``rate``, then the end of the stream."""
    free_at = time.monotonic()
    with contextlib.suppress(OSError):
        while data := one.recv(BURST):
            free_at = max(free_at, time.monotonic() - LATE_S) + len(data) / rate
            time.sleep(max(0.0, free_at - time.monotonic()))
            other.sendall(data)
        other.shutdown(socket.SHUT_WR)
