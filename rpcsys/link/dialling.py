"""Looks a host up and connects to it by TCP without blocking, for loops on descriptors."""

from __future__ import annotations

import os
import selectors
import socket
import threading
from typing import Any, List, Optional, Tuple, Union

from rpcsys.link.tcp import tune, tune_connected


class Lookup:
    """Finds a host's addresses: numbers at once, names in a thread, as a resolver may take a minute."""

    def __init__(self, host: str, port: int) -> None:
        self.found: Union[List[Tuple[Any, ...]], OSError, None] = None  # None while the lookup goes on
        self.done, self._finish = socket.socketpair()  # readable at the end of the lookup
        try:
            self._resolve(host, port, socket.AI_NUMERICHOST)
        except (OSError, UnicodeError):
            threading.Thread(target=self._run, args=(host, port), daemon=True).start()

    def _resolve(self, host: str, port: int, flags: int) -> None:
        self.found = list(socket.getaddrinfo(host, port, 0, socket.SOCK_STREAM, 0, flags))
        self._finish.close()

    def _run(self, host: str, port: int) -> None:
        try:
            self._resolve(host, port, 0)
        except (OSError, UnicodeError) as error:
            self.found = error if isinstance(error, OSError) else OSError(str(error))
            self._finish.close()


class Dialling:
    """Looks a host up and tries its addresses in turn, until one accepts the connection.

    Wait for `awaited`, call `advance`, and read `awaited` again, as the descriptor may have changed. Call `close` to
    give up.
    """

    def __init__(self, host: str, port: int) -> None:
        self._lookup: Optional[Lookup] = Lookup(host, port)
        self._candidates: List[Tuple[Any, ...]] = []
        self._sock: Optional[socket.socket] = None

    @property
    def awaited(self) -> Tuple[int, int]:
        """A descriptor, and the events of `selectors` to wait for."""
        if self._lookup is not None:
            return self._lookup.done.fileno(), selectors.EVENT_READ
        assert self._sock is not None, "it is connected, or has failed"
        return self._sock.fileno(), selectors.EVENT_WRITE

    def advance(self) -> Optional[socket.socket]:
        """Continue without blocking. Returns the connected, non-blocking socket for the caller to own; None before.

        Raises OSError: the host is unknown, or none of its addresses accepts a connection.
        """
        if self._lookup is not None:
            self._take_addresses(self._lookup.found)
            return None
        assert self._sock is not None, "it is connected, or has failed"
        code = self._sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code:
            self._try_next(OSError(code, os.strerror(code)))
            return None
        try:
            self._sock.getpeername()
        except OSError:  # not connected yet
            return None
        sock, self._sock = self._sock, None
        tune_connected(sock)
        return sock

    def close(self) -> None:
        """Give up. A second call does nothing."""
        if self._lookup is not None:
            self._lookup.done.close()
            self._lookup = None
        if self._sock is not None:
            self._sock.close()
            self._sock = None

    def _take_addresses(self, found: Union[List[Tuple[Any, ...]], OSError, None]) -> None:
        if found is None:
            return
        self.close()
        if isinstance(found, OSError):
            raise found
        self._candidates = found
        self._try_next(OSError("no address"))

    def _try_next(self, problem: OSError) -> None:
        self.close()
        while self._candidates:
            try:
                self._sock = _connecting(*self._candidates.pop(0))
                return
            except OSError as error:
                problem = error
        raise problem


def _connecting(family: int, kind: int, protocol: int, _: str, address: Any) -> socket.socket:
    """A non-blocking socket that connects to an entry of ``getaddrinfo``. Raises OSError."""
    sock = socket.socket(family, kind, protocol)
    try:
        sock.setblocking(False)
        tune(sock)
        sock.connect(address)
    except BlockingIOError:
        pass
    except OSError:
        sock.close()
        raise
    return sock
