"""A TCP connection on its way, for loops on descriptors: nothing of it blocks."""

from __future__ import annotations

import os
import selectors
import socket
from typing import Any, List, Optional, Tuple

from rpcsys.link.address import Lookup
from rpcsys.link.tcp import connecting, tune_connected


class Dialling:
    """A host is looked up and its addresses are tried in turn, until one takes the connection.

    Wait for `awaited`, call `advance`, and look again at what is awaited: it may be another descriptor now. Who gives
    up calls `close`.
    """

    def __init__(self, host: str, port: int) -> None:
        self._lookup: Optional[Lookup] = Lookup(host, port)
        self._candidates: List[Tuple[Any, ...]] = []
        self._sock: Optional[socket.socket] = None

    @property
    def awaited(self) -> Tuple[int, int]:
        """A descriptor, and what to wait for on it, as `selectors` names it."""
        if self._lookup is not None:
            return self._lookup.done.fileno(), selectors.EVENT_READ
        assert self._sock is not None, "it is connected, or has failed"
        return self._sock.fileno(), selectors.EVENT_WRITE

    def advance(self) -> Optional[socket.socket]:
        """Do what can be done by now. The connected socket, non-blocking, the caller's from then on; None before.

        Raises
        ------
        OSError: the host is unknown, or none of its addresses takes a connection.
        """
        if self._lookup is not None:
            self._take_addresses(self._lookup)
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
        """Give up. May be repeated."""
        if self._lookup is not None:
            self._lookup.done.close()
            self._lookup = None
        if self._sock is not None:
            self._sock.close()
            self._sock = None

    def _take_addresses(self, lookup: Lookup) -> None:
        if lookup.problem is None and lookup.addresses is None:
            return
        lookup.done.close()
        self._lookup = None
        if lookup.problem is not None:
            raise lookup.problem
        self._candidates = lookup.addresses or []
        self._try_next(None)

    def _try_next(self, problem: Optional[OSError]) -> None:
        if self._sock is not None:
            self._sock.close()
            self._sock = None
        while self._candidates:
            try:
                self._sock = connecting(*self._candidates.pop(0))
                return
            except OSError as error:
                problem = error
        raise problem or OSError("no address")
