"""Messages between the server's own processes, over AF_UNIX SOCK_SEQPACKET sockets.

A message is one JSON object and at most one descriptor beside it. To the zygote: ``{"spawn": child}`` with
the child's end of its tether, ``{"kill": child}``. From it: ``{"importing": what}`` before each import, then
``{"ready": true, "shared": why}`` or ``{"failed": why}``, and for each child ``{"dead": child, "status": …}`` with
what :class:`rpcsys.server.events.ChildDead` says. On a tether, to the child: its job
(:mod:`rpcsys.server.job`) with the client's descriptor, and ``{"until": time}`` (monotonic, or null) when its lease is
renewed; from it: ``{"importing": what}`` where it imports for
itself, ``{"ready": true, "pid": …}`` or ``{"failed": why}``, then ``{"opened": true}``, ``{"limit_s": seconds}`` if its client asks
for a limit, ``{"printed": number}`` with the descriptor of what it prints, and ``{"outcome": word}``,
again with ``"removed": […]`` if there is something to name.
"""

from __future__ import annotations

import array
import json
import os
import socket
from typing import Any

MAX_BYTES = 65536
"""Of a message. The longest is a job: a greeting and a few paths."""

MAX_NAMES = 32
"""Names of processes that had to be killed, in one report."""


def pair() -> tuple[socket.socket, socket.socket]:
    """Two connected ends; each read gives one message."""
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


def send(sock: socket.socket, data: bytes, descriptor: int | None = None) -> None:
    """Send a message, with a copy of ``descriptor`` beside it. Raises OSError."""
    beside = []
    if descriptor is not None:
        beside.append((socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [descriptor])))
    sock.sendmsg([data], beside, socket.MSG_NOSIGNAL)


def tell(sock: socket.socket, descriptor: int | None = None, **fields: Any) -> None:
    """Send ``fields`` as a JSON object. Raises OSError."""
    send(sock, json.dumps(fields).encode(), descriptor)


def receive(sock: socket.socket) -> tuple[bytes, int | None]:
    """One message and the descriptor beside it; ``b""`` when the other end is gone. Raises OSError."""
    size = array.array("i").itemsize
    data, beside, _, _ = sock.recvmsg(MAX_BYTES, socket.CMSG_SPACE(size), socket.MSG_CMSG_CLOEXEC)
    descriptors = array.array("i")
    for level, kind, payload in beside:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            descriptors.frombytes(payload[: len(payload) - len(payload) % size])
    for extra in descriptors[1:]:
        os.close(extra)
    return data, descriptors[0] if descriptors else None


def last(sock: socket.socket) -> dict[str, Any] | None:
    """The last of the messages that wait, None if none does. Does not block, raises nothing."""
    found = None
    while True:
        try:
            data = sock.recv(MAX_BYTES, socket.MSG_DONTWAIT)
        except OSError:
            return found
        if not data:
            return found
        found = json.loads(data)
