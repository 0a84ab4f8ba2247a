"""Settings of TCP sockets, the timeout of peers that read nothing, and an orderly close."""

from __future__ import annotations

import socket
import struct
from typing import Optional, Tuple, Union

_UNREAD_PIECES = 16  # pieces of 64 KiB that are read before a close
_UNSENT = 64 << 10  # unsent bytes in the kernel on a connection within one machine

#: How often to call `keep_alive`. An extension outlasts two missed calls.
KEEPALIVE_S = 4.0
#: The TCP_USER_TIMEOUT of all streams without an extension.
USER_TIMEOUT_MS = 14_000
#: The extension of one call. Near the timeout the kernel sends more probes: at least one in this time.
EXTENSION_MS = 12_000
#: Probes in a row without an answer after which there is no extension; a single one may be lost.
UNANSWERED = 2
#: struct tcp_info of linux/tcp.h: retransmissions and probes without an answer, packets without an acknowledgement,
#: milliseconds since data was sent, unsent bytes (since Linux 4.6).
_INFO = struct.Struct("2xBB20xI16xI96xI")
#: Likewise: unsent bytes, and the segments with data that were sent (both since Linux 4.6).
_SENDING = struct.Struct("144xI8xI")
_MOST_MS = (1 << 31) - 1
#: Flag of a send: no SIGPIPE. PyPy lacks it, and ignores the signal as every Python does.
NO_SIGNAL = int(getattr(socket, "MSG_NOSIGNAL", 0))

_TUNED = (
    (socket.SOL_SOCKET, "SO_KEEPALIVE", 1),
    (socket.IPPROTO_TCP, "TCP_NODELAY", 1),
    (socket.IPPROTO_TCP, "TCP_KEEPIDLE", 5),
    (socket.IPPROTO_TCP, "TCP_KEEPINTVL", 3),
    (socket.IPPROTO_TCP, "TCP_KEEPCNT", 3),
    (socket.IPPROTO_TCP, "TCP_USER_TIMEOUT", USER_TIMEOUT_MS),
)


def tune(sock: socket.socket, *, bulk: bool = True) -> None:
    """Send small messages at once, and detect a dead peer within 15 s; ``bulk``: tune for arrays, too.

    A peer that is cut off (a pulled cable) fails the third keep-alive probe after 5 + 3 * 3 s; TCP_USER_TIMEOUT does
    the same while data is unacknowledged (see `keep_alive`). Options that the platform or the socket family lacks are
    left out. If the socket is not connected yet, call `tune_connected` later.
    """
    _set(sock, *_TUNED)
    tune_connected(sock, bulk=bulk)


def tune_connected(sock: socket.socket, *, bulk: bool = True) -> None:
    """Tune a connection within one machine, where nothing is congested; others stay as they are.

    - BBR, the default of some systems, paces: half of the connections carry arrays of 1 MB at half the rate for their
      whole life (measured: 118 or 217 us each). Reno, which every kernel has and allows, does not pace.
    - Data behind the window is sent by the processor that handles the acknowledgement, while the sender sends on
      another one: segments overtake each other, and Reno halves its window (35 times a second through a proxy). With a
      small limit the sender waits in its call and keeps the order (docs/decisions/0011-order-within-a-machine.md).
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
    """Set the options that this system and this socket have."""
    for level, name, value in settings:
        try:
            sock.setsockopt(level, getattr(socket, name), value)
        except (AttributeError, OSError):
            continue


def keep_alive(sock: socket.socket) -> None:
    """Extend the timeout of a live peer that reads nothing. Call it every `KEEPALIVE_S`; it costs two system calls.

    While a peer's window is closed, TCP_USER_TIMEOUT breaks the stream even if the peer answers every probe (since
    Linux 5.11; measured). So a peer that answers gets one extension after the other. A peer that does not is given up
    within 40 s, or within 15 s if its window was open or had just closed.

    All values are read from the kernel, so any process with the stream may call this. It does nothing on other sockets,
    on closed ones, and on platforms without these options.
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
    """The next TCP_USER_TIMEOUT of a stream in this state, after ``allowed_ms``."""
    retransmissions, probes, unacknowledged, sent_ms, unsent = _INFO.unpack(info)
    if not unsent or max(retransmissions, probes) >= UNANSWERED:
        return USER_TIMEOUT_MS
    if unacknowledged:
        return allowed_ms
    wanted_ms: int = max(USER_TIMEOUT_MS, sent_ms + EXTENSION_MS)
    if allowed_ms > USER_TIMEOUT_MS:
        # The kernel may count from an earlier time, if the window has opened for less than the next segment (measured:
        # 20 kB read every 7 s). So an extension stays until all data is sent, or the peer stops answering.
        wanted_ms = max(wanted_ms, allowed_ms + int(KEEPALIVE_S * 1000))
    return min(wanted_ms, _MOST_MS)


def has_sent(sock: socket.socket) -> bool:
    """Whether any process has written to this connection. True where the kernel does not tell, as on other sockets."""
    try:
        info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _SENDING.size)
    except (AttributeError, OSError):
        return True
    return len(info) < _SENDING.size or any(_SENDING.unpack(info))


_TCP_QUICKACK: Optional[int] = getattr(socket, "TCP_QUICKACK", None)
#: An even value acknowledges once (Linux, ``__tcp_sock_set_quickack``). After 1, the rest of the frame would get an
#: acknowledgement of its own, too, although the reply carries one.
_ONCE = 2


def acknowledge_at_once(sock: socket.socket) -> None:
    """Acknowledge without delay. Call it after each read that ends within a message, as the kernel resets the option.

    TVM's peers write a frame in two pieces with Nagle's algorithm on: the second waits for the acknowledgement of the
    first, which would otherwise be delayed by 40 ms.
    """
    if _TCP_QUICKACK is not None:
        try:
            sock.setsockopt(socket.IPPROTO_TCP, _TCP_QUICKACK, _ONCE)
        except OSError:
            pass  # the next read reports the error


def drain_and_close(sock: socket.socket, last_words: bytes = b"") -> None:
    """Send ``last_words`` if the kernel takes them at once, shut the stream down for all processes, and close it.

    Unread data would turn the close into a reset, which can overtake the last bytes. So it is read first.
    """
    try:
        if last_words:
            sock.send(last_words, socket.MSG_DONTWAIT | NO_SIGNAL)
        sock.shutdown(socket.SHUT_RDWR)
        for _ in range(_UNREAD_PIECES):
            if not sock.recv(1 << 16, socket.MSG_DONTWAIT):
                break
    except OSError:
        pass
    sock.close()
