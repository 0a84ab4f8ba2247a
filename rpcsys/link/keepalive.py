"""Telling a peer that reads nothing from one that is dead.

To Linux both are the same: a stream whose peer's closed window lets nothing be sent is broken when TCP_USER_TIMEOUT is over,
however faithfully the peer answers each probe (since Linux 5.11; measured). But a stopped program and a busy board are no
dead peers. So who answers is given more time, again and again; who does not is given up within 40 s, or within 15 s when
its window was open or had just closed.

Nothing is remembered but what the kernel has, so any process that has the stream may look. What is given follows from when
data was last sent. The kernel may count from longer ago, where the window has opened meanwhile for less than the next
piece (measured: 20 kB read every 7 s); so it is not taken back before all has been sent, or the peer falls silent.
"""

from __future__ import annotations

import socket
import struct

#: How often to call `keep_alive`. What is granted outlasts two calls that were missed.
KEEPALIVE_S = 4.0
_KEEPALIVE_MS = int(KEEPALIVE_S * 1000)
#: The TCP_USER_TIMEOUT of all streams: what a peer has without anybody looking.
USER_TIMEOUT_MS = 14_000
#: What a call grants. As the timeout comes near, the kernel asks more often: never less than once in this time.
EXTENSION_MS = 12_000
#: Questions in a row without an answer after which nothing more is granted: one may get lost.
UNANSWERED = 2

#: struct tcp_info of linux/tcp.h: retransmissions and probes without an answer, packets not acknowledged, milliseconds since
#: data was sent, bytes not sent (since Linux 4.6).
_INFO = struct.Struct("2xBB20xI16xI96xI")
_INFO_BYTES = _INFO.size
_MOST_MS = (1 << 31) - 1


def keep_alive(sock: socket.socket) -> None:
    """See that the kernel does not take a peer for dead that only takes nothing; to be called every `KEEPALIVE_S`.

    Costs two system calls. What is no TCP stream, or none any more, and what a platform lacks, is left as it is.
    """
    try:
        info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _INFO_BYTES)
        allowed_ms = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT)
        wanted_ms = _wanted_ms(info, allowed_ms) if len(info) == _INFO_BYTES else allowed_ms
        if wanted_ms != allowed_ms:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, wanted_ms)
    except (AttributeError, OSError):
        pass


def _wanted_ms(info: bytes, allowed_ms: int) -> int:
    """What a stream in this state is to be allowed that was allowed ``allowed_ms``."""
    retransmissions, probes, unacknowledged, sent_ms, unsent = _INFO.unpack(info)
    if not unsent or max(retransmissions, probes) >= UNANSWERED:
        return USER_TIMEOUT_MS
    if unacknowledged:
        return allowed_ms
    wanted_ms: int = max(USER_TIMEOUT_MS, sent_ms + EXTENSION_MS)
    if allowed_ms > USER_TIMEOUT_MS:
        wanted_ms = max(wanted_ms, allowed_ms + _KEEPALIVE_MS)
    return min(wanted_ms, _MOST_MS)
