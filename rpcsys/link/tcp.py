"""Settings of a TCP socket that carries small messages, and how it is closed."""

from __future__ import annotations

import socket
from typing import Iterable, Optional, Tuple, Union

from rpcsys.link.keepalive import USER_TIMEOUT_MS

_UNREAD_PIECES = 16  # pieces of 64 KiB that are read before a close
_UNSENT = 64 << 10  # bytes that may wait behind the window of a connection within the machine


def tune(sock: socket.socket, *, bulk: bool = True) -> None:
    """Send small messages at once, and notice within 15 s that a peer has vanished; ``bulk``: be ready for arrays, too.

    A peer that is gone without a word (a pulled cable) fails the third keep-alive probe after 5 + 3 * 3 s;
    TCP_USER_TIMEOUT does the same while something unacknowledged is under way (see `rpcsys.link.keepalive`). What a
    platform or a socket family lacks is left out. Who tunes a socket before it is connected calls `tune_connected`
    afterwards.
    """
    _set(
        sock,
        (
            (socket.SOL_SOCKET, "SO_KEEPALIVE", 1),
            (socket.IPPROTO_TCP, "TCP_NODELAY", 1),
            (socket.IPPROTO_TCP, "TCP_KEEPIDLE", 5),
            (socket.IPPROTO_TCP, "TCP_KEEPINTVL", 3),
            (socket.IPPROTO_TCP, "TCP_KEEPCNT", 3),
            (socket.IPPROTO_TCP, "TCP_USER_TIMEOUT", USER_TIMEOUT_MS),
        ),
    )
    tune_connected(sock, bulk=bulk)


def tune_connected(sock: socket.socket, *, bulk: bool = True) -> None:
    """What a connection gets whose two ends are on one machine, where nothing is congested; any other is left as it is.

    - Where the system's choice is BBR, which paces what is sent, half of the connections carry arrays of 1 MB at half
      the rate for life (measured: 118 or 217 us each). Reno, which every kernel has and allows, does not.
    - What waits behind the window is sent by whichever processor takes in the acknowledgement, beside what the sender
      itself sends on another: segments overtake each other, and Reno halves its window each time (35 times a second through a proxy).
      A sender that waits instead, in its call, keeps the order (docs/decisions/0011-order-within-a-machine.md).
    """
    if _within_machine(sock):
        _set(sock, ((socket.IPPROTO_TCP, "TCP_CONGESTION", b"reno"),))
        if bulk:
            _set(sock, ((socket.IPPROTO_TCP, "TCP_NOTSENT_LOWAT", _UNSENT),))


def _set(sock: socket.socket, settings: Iterable[Tuple[int, str, Union[int, bytes]]]) -> None:
    """Set what this system and this socket have."""
    for level, name, value in settings:
        try:
            sock.setsockopt(level, getattr(socket, name), value)
        except (AttributeError, OSError):
            continue


def _within_machine(sock: socket.socket) -> bool:
    """Whether both ends of a connection have one address; False of what is not connected yet, or has no addresses."""
    try:
        return sock.family != socket.AF_UNIX and bool(sock.getsockname()[0] == sock.getpeername()[0])
    except OSError:
        return False


_TCP_QUICKACK: Optional[int] = getattr(socket, "TCP_QUICKACK", None)
#: An even value acknowledges what is here and no more (Linux, ``__tcp_sock_set_quickack``): after 1, reading the
#: rest of a frame would send an acknowledgement of its own, where the reply that follows carries one.
_ONCE = 2


def acknowledge_at_once(sock: socket.socket) -> None:
    """Do not delay the next acknowledgement; to be called after each read that leaves half a message: the kernel forgets it.

    TVM's ends write a frame in two pieces with Nagle's algorithm on: the second waits for this, 40 ms if it is delayed.
    """
    if _TCP_QUICKACK is not None:
        try:
            sock.setsockopt(socket.IPPROTO_TCP, _TCP_QUICKACK, _ONCE)
        except OSError:
            pass  # the read that comes next will say what is wrong with the socket


def drain_and_close(sock: socket.socket, last_words: bytes = b"") -> None:
    """Send ``last_words`` if the kernel takes them at once, end the stream for all who have it, and close it.

    What the peer has sent is read first: unread, it would turn the close into a reset, which can overtake what was sent last.
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
