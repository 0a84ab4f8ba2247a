"""Telling a peer that reads nothing from one that is dead.

To Linux both are the same: a stream with something to send, that its peer's closed window lets nobody send, is broken when
TCP_USER_TIMEOUT is over, however faithfully the peer answers each probe (since Linux 5.11; measured). But a person may look at
a stopped program for an hour, and a board compute. So who answers is given more time, again and again; who does not is given
up with what was left: within 40 s, or within 14 s when its window was open.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterable

LOOK_S = 4.0
"""How often to look: often enough to see a closed window well before `PATIENCE_MS` are over."""

PATIENCE_MS = 14_000
"""The TCP_USER_TIMEOUT of all streams, see :func:`rpcsys.link.tune`, and what an answer is worth."""

ANSWERED_MS = 20_000
"""A peer that said nothing for so long is given no more. The kernel asks at least every `PATIENCE_MS`."""

# struct tcp_info of linux/tcp.h: bytes not acknowledged, time since the last answer, bytes not sent.
_INFO = struct.Struct("24xI28xI84xI")
_INFO_BYTES = _INFO.size


class Patience:
    """Remembers since when which windows are closed."""

    def __init__(self) -> None:
        self._closed: dict[socket.socket, float] = {}

    def look(self, streams: Iterable[socket.socket], now: float) -> None:
        """Look at all TCP streams; ``now`` in seconds."""
        before, self._closed = self._closed, {}
        for sock in streams:
            answered_ms = _stuck(sock)
            if answered_ms is None:
                if sock in before:
                    _allow(sock, PATIENCE_MS)
                continue
            since = self._closed[sock] = before.get(sock, now)
            if answered_ms < ANSWERED_MS:
                _allow(sock, int(1000 * (now - since + LOOK_S)) + PATIENCE_MS)


def _stuck(sock: socket.socket) -> int | None:
    """How long ago, in ms, a peer spoke whose window is closed; None if the stream can send, or has nothing to."""
    try:
        info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _INFO_BYTES)
    except OSError:
        return None  # the inner end of a WebSocket, or a stream that ends just now
    if len(info) < _INFO_BYTES:
        return None
    unacknowledged, answered_ms, unsent = _INFO.unpack(info)
    return answered_ms if unsent and not unacknowledged else None


def _allow(sock: socket.socket, milliseconds: int) -> None:
    try:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, milliseconds)
    except OSError:
        pass  # as above
