"""Settings of TCP sockets, what keeps a connection to a peer that takes nothing, and how one is closed."""

from __future__ import annotations

import socket
import struct
from typing import Optional, Tuple, Union

_UNREAD_PIECES = 16  # pieces of 64 KiB that are read before a close
_UNSENT = 64 << 10  # bytes that may wait behind the window of a connection within the machine

#: How often to call `keep_alive`. What is granted outlasts two calls that were missed.
KEEPALIVE_S = 4.0
#: The TCP_USER_TIMEOUT of all streams: what a peer has without anybody looking.
USER_TIMEOUT_MS = 14_000
#: What a call grants. As the timeout comes near, the kernel asks more often: never less than once in this time.
EXTENSION_MS = 12_000
#: Questions in a row without an answer after which nothing more is granted: one may get lost.
UNANSWERED = 2
#: struct tcp_info of linux/tcp.h: retransmissions and probes without an answer, packets not acknowledged,
#: milliseconds since data was sent, bytes not sent (since Linux 4.6).
_INFO = struct.Struct("2xBB20xI16xI96xI")
_MOST_MS = (1 << 31) - 1

_TUNED = (
    (socket.SOL_SOCKET, "SO_KEEPALIVE", 1),
    (socket.IPPROTO_TCP, "TCP_NODELAY", 1),
    (socket.IPPROTO_TCP, "TCP_KEEPIDLE", 5),
    (socket.IPPROTO_TCP, "TCP_KEEPINTVL", 3),
    (socket.IPPROTO_TCP, "TCP_KEEPCNT", 3),
    (socket.IPPROTO_TCP, "TCP_USER_TIMEOUT", USER_TIMEOUT_MS),
)


def tune(sock: socket.socket, *, bulk: bool = True) -> None:
    """Send small messages at once, and notice within 15 s that a peer has vanished; ``bulk``: be ready for arrays, too.

    A peer that is gone without a word (a pulled cable) fails the third keep-alive probe after 5 + 3 * 3 s;
    TCP_USER_TIMEOUT does the same while something unacknowledged is under way (see `keep_alive`). What a platform or a
    socket family lacks is left out. Who tunes a socket before it is connected calls `tune_connected` afterwards.
    """
    _set(sock, *_TUNED)
    tune_connected(sock, bulk=bulk)


def tune_connected(sock: socket.socket, *, bulk: bool = True) -> None:
    """What a connection gets whose two ends are on one machine, where nothing is congested; any other is left as it is.

    - Where the system's choice is BBR, which paces what is sent, half of the connections carry arrays of 1 MB at half
      the rate for life (measured: 118 or 217 us each). Reno, which every kernel has and allows, does not.
    - What waits behind the window is sent by whichever processor takes in the acknowledgement, beside what the sender
      sends on another: segments overtake each other, and Reno halves its window (35 times a second through a proxy).
      A sender that waits instead, in its call, keeps the order (docs/decisions/0011-order-within-a-machine.md).
    """
    try:
        if sock.family == socket.AF_UNIX or sock.getsockname()[0] != sock.getpeername()[0]:
            return
    except OSError:  # not connected yet, or without addresses
        return
    _set(sock, (socket.IPPROTO_TCP, "TCP_CONGESTION", b"reno"))
    if bulk:
        _set(sock, (socket.IPPROTO_TCP, "TCP_NOTSENT_LOWAT", _UNSENT))


def _set(sock: socket.socket, *settings: Tuple[int, str, Union[int, bytes]]) -> None:
    """Set what this system and this socket have."""
    for level, name, value in settings:
        try:
            sock.setsockopt(level, getattr(socket, name), value)
        except (AttributeError, OSError):
            continue


def keep_alive(sock: socket.socket) -> None:
    """Tell a peer that takes nothing from one that is dead; to be called every `KEEPALIVE_S`. Costs two system calls.

    To Linux both are the same: while a peer's closed window lets nothing be sent, TCP_USER_TIMEOUT breaks the stream,
    however faithfully the peer answers each probe (since Linux 5.11; measured). So who answers gets more time, again
    and again; who does not is given up within 40 s, or within 15 s when its window was open or had just closed.

    All is read from the kernel, so any process that has the stream may call this. What is no TCP stream, or none any
    more, and what a platform lacks, is left as it is.
    """
    try:
        info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _INFO.size)
        allowed_ms = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT)
        wanted_ms = _wanted_ms(info, allowed_ms) if len(info) == _INFO.size else allowed_ms
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
        # The kernel may count from longer ago, where the window opened meanwhile for less than the next piece
        # (measured: 20 kB read every 7 s): what is granted is not taken back before all is sent, or the peer is silent.
        wanted_ms = max(wanted_ms, allowed_ms + int(KEEPALIVE_S * 1000))
    return min(wanted_ms, _MOST_MS)


_TCP_QUICKACK: Optional[int] = getattr(socket, "TCP_QUICKACK", None)
#: An even value acknowledges what is here and no more (Linux, ``__tcp_sock_set_quickack``): after 1, reading the
#: rest of a frame would send an acknowledgement of its own, where the reply that follows carries one.
_ONCE = 2


def acknowledge_at_once(sock: socket.socket) -> None:
    """Do not delay the next acknowledgement; called after each read that leaves half a message: the kernel forgets it.

    TVM's ends write a frame in two pieces with Nagle's algorithm on: the second waits for this, 40 ms if it is delayed.
    """
    if _TCP_QUICKACK is not None:
        try:
            sock.setsockopt(socket.IPPROTO_TCP, _TCP_QUICKACK, _ONCE)
        except OSError:
            pass  # the read that comes next will say what is wrong with the socket


def drain_and_close(sock: socket.socket, last_words: bytes = b"") -> None:
    """Send ``last_words`` if the kernel takes them at once, end the stream for all who have it, and close it.

    What the peer has sent is read first: unread, it would turn the close into a reset, which can overtake what is sent.
    """
    try:
        if last_words:
            sock.send(last_words, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
        sock.shutdown(socket.SHUT_RDWR)
        for _ in range(_UNREAD_PIECES):
            if not sock.recv(1 << 16, socket.MSG_DONTWAIT):
                break
    except OSError:
        pass
    sock.close()
