"""A line that carries so many bytes a second each way: a relay before a server."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Iterator

#: As many bytes as are sent in a burst; what waits in sockets must be little, or it would be there at once.
BURST = 1 << 15
#: Seconds that a sleep which took too long may be made good for.
LATE_S = 0.05


@contextlib.contextmanager
def slow_line(server: tuple[str, int], rate: float) -> Iterator[tuple[str, int]]:
    """The address of the line's near end; ``rate`` in bytes a second."""
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
                    threading.Thread(target=carry, args=(one, other, rate), daemon=True).start()

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


def carry(one: socket.socket, other: socket.socket, rate: float) -> None:
    """All that comes, no faster than that; then its end."""
    free_at = time.monotonic()
    with contextlib.suppress(OSError):
        while data := one.recv(BURST):
            free_at = max(free_at, time.monotonic() - LATE_S) + len(data) / rate
            time.sleep(max(0.0, free_at - time.monotonic()))
            other.sendall(data)
        other.shutdown(socket.SHUT_WR)
