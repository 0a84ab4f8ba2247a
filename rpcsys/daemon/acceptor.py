"""Accepts connections, and limits their number: each costs a descriptor.

The libraries' servers are not used because of their behaviour without descriptors: asyncio's logs a traceback for each
attempt, tornado's spins, and uvloop's closes waiting connections. This one pauses, and logs a warning now and then.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import resource
import socket
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from rpcsys.link.admission import network_of

log = logging.getLogger(__name__)
BURST = 64  # connections accepted in one turn of the loop
PAUSE_S = 0.2  # pause in accepting without descriptors or memory; the kernel queues new connections
PLENTY = 131_072  # descriptors for 100,000 boards, where the system sets no limit
ENOUGH = 16_384  # for a very large lab; a lower limit is logged at the start
LOG_EVERY_S = 10.0  # between two logs of the same warning

_EXHAUSTED = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


class Acceptor:
    """Calls ``take(sock, address)`` for each connection, non-blocking, until closed. Owns the listener."""

    def __init__(self, listener: socket.socket, take: Callable[[socket.socket, Any], object]) -> None:
        self.port: int = listener.getsockname()[1]
        self._listener = listener
        self._take = take
        self._loop = asyncio.get_running_loop()
        self._pause: asyncio.TimerHandle | None = None
        self._log_at = float("-inf")
        self._resume()

    def close(self) -> None:
        """Accept no more."""
        if self._pause is not None:
            self._pause.cancel()
        self._loop.remove_reader(self._listener.fileno())
        self._listener.close()

    def _accept(self) -> None:
        for _ in range(BURST):
            try:
                sock, address = self._listener.accept()
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno in _EXHAUSTED:
                    self._wait(error)
                    return
                continue  # that connection ended before it was accepted
            sock.setblocking(False)
            self._take(sock, address)

    def _wait(self, error: OSError) -> None:
        self._loop.remove_reader(self._listener.fileno())
        self._pause = self._loop.call_later(PAUSE_S, self._resume)
        if time.monotonic() >= self._log_at:
            self._log_at = time.monotonic() + LOG_EVERY_S
            log.warning("cannot accept connections: %s. Raise `ulimit -n`, or see what keeps so many", error.strerror)

    def _resume(self) -> None:
        self._pause = None
        self._loop.add_reader(self._listener.fileno(), self._accept)


@dataclass
class ConnectionLimit:
    """At most ``each`` connections from one address (in IPv6, its /64), and ``total`` in all (None: no limit)."""

    each: int
    total: int | None
    log: logging.Logger
    advice: str
    counts: Counter[str] = field(default_factory=Counter)
    _log_at: float = float("-inf")

    def admit(self, address: str, at: float) -> bool:
        """Count one more connection, if the limits allow it; whether they do. Logs refusals now and then."""
        network = network_of(address)
        count = self.counts[network]
        if count < self.each and (self.total is None or self.counts.total() < self.total):
            self.counts[network] += 1
            return True
        if at >= self._log_at:
            self._log_at = at + LOG_EVERY_S
            text, stranger = "%s has %d connections and gets no more: %s", {"stranger": address}
            self.log.warning(text, address, count, self.advice, extra=stranger)
        return False

    def leave(self, address: str) -> None:
        """Stop counting an admitted connection."""
        network = network_of(address)
        self.counts[network] -= 1
        if not self.counts[network]:
            del self.counts[network]


def raise_descriptor_limit() -> int:
    """Raise this process's limit on descriptors as far as possible; the new limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = max(soft, PLENTY) if hard == resource.RLIM_INFINITY else hard
    if soft != resource.RLIM_INFINITY and soft < wanted:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
            soft = wanted
        except (OSError, ValueError):  # macOS has a lower limit than it reports
            pass
    if soft != resource.RLIM_INFINITY and soft < ENOUGH:
        log.warning("room for %d connections only: a higher `ulimit -Hn` gives more", soft)
    return soft


def leave_no_core() -> None:
    """Have this process leave no core file: its memory has secrets."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))


def descriptor_limit() -> int | None:
    """This process's limit on descriptors; None for no limit."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return None if soft == resource.RLIM_INFINITY else soft
