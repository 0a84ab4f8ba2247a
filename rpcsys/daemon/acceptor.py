"""Accepting connections, come what may.

The loops' own servers do not serve here: out of descriptors, asyncio's logs a traceback for each try, tornado's
spins, and uvloop's hangs up on whoever waits. This one rests, and says so now and then.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
import time
from collections.abc import Callable
from typing import Any

log = logging.getLogger(__name__)

BURST = 64
"""Connections accepted in one turn; the loop then has a look at the ones it has."""

REST_S = 0.2
"""How long not to accept when the machine is out of descriptors or memory; the kernel's queue holds who comes."""

_TELL_EVERY_S = 10.0
_EXHAUSTED = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


class Acceptor:
    """Calls ``take(sock, address)`` for each connection, non-blocking, until closed. Owns the listener."""

    def __init__(self, listener: socket.socket, take: Callable[[socket.socket, Any], object]) -> None:
        self._listener = listener
        self._take = take
        self._loop = asyncio.get_running_loop()
        self._resting: asyncio.TimerHandle | None = None
        self._told_at = float("-inf")
        self._loop.add_reader(listener.fileno(), self._accept)

    @property
    def port(self) -> int:
        """The port listened on."""
        number: int = self._listener.getsockname()[1]
        return number

    def close(self) -> None:
        """Accept no more."""
        if self._resting is not None:
            self._resting.cancel()
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
                    self._rest(error)
                    return
                continue  # that one connection was gone before it was accepted
            sock.setblocking(False)
            self._take(sock, address)

    def _rest(self, error: OSError) -> None:
        self._loop.remove_reader(self._listener.fileno())
        self._resting = self._loop.call_later(REST_S, self._resume)
        if time.monotonic() - self._told_at > _TELL_EVERY_S:
            self._told_at = time.monotonic()
            log.warning("cannot accept connections: %s. Raise `ulimit -n`, or see who keeps so many", error.strerror)

    def _resume(self) -> None:
        self._resting = None
        self._loop.add_reader(self._listener.fileno(), self._accept)
