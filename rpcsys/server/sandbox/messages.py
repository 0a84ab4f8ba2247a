"""Messages between the server's own processes, and at most one descriptor with each, over SOCK_SEQPACKET.

A message is a JSON object; a job, which the supervisor sends, is in Python's own form (`marshal`). Children run user
code: their messages are checked against a table of fields (`parse`), and counted (`Allowance`).
"""

from __future__ import annotations

import array
import contextlib
import json
import marshal
import math
import os
import socket
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Dict, Mapping

from rpcsys.errors import ProtocolError, printable
from rpcsys.link.tcp import NO_SIGNAL
from rpcsys.wire.checks import Check, flag, integer, items, seconds, sentence, text

MAX_BYTES = 65536  # of a message; the longest is a job: a handshake's answer and a few paths
MAX_NAMES = 32  # names of killed processes, or of removed files, in one report
MAX_LINE, MAX_NAME = 1000, 200  # characters of a sentence, and of a name; longer ones are cut
ALLOWED = 256  # messages of a session's process in all: it sends five, and one for each import without a fork
ALLOWED_S = 10.0
#: Messages of a host in that time: it may return 1,000 clients at once. The supervisor can take ten times as many.
ALLOWED_OF_SERVICE = 8192


class ChildKind(str, Enum):
    """What a child is made for."""

    SESSION = "session"
    TVM = "tvm"  # for a session of TVM's protocol, where only these children have TVM
    HOST = "host"
    DEPLOYER = "deployer"
    FRONT = "front"
    CANARY = "canary"

    @property
    def of_session(self) -> bool:
        return self in (ChildKind.SESSION, ChildKind.TVM)

    @property
    def limited(self) -> bool:
        """Whether it has the limits of a session."""
        return self.of_session or self is ChildKind.CANARY


#: Kinds of jobs.
RPCSYS, TVM, TVM_END = "rpcsys/1", "tvm", "tvm-end"
HOST, DEPLOYER, FRONT, CANARY = "host", "deployer", "front", "canary"


@dataclass(frozen=True)
class Job:
    """What the supervisor sends a waiting child, beside a client's connection.

    ``kind``: a session of ``rpcsys/1`` or ``tvm``; ``tvm-end``, which sends a TVM client ``words``, the reason for
    the end of its session; a model ``host`` and a ``front``, which have no client yet; ``deployer``; ``canary``,
    which never has one. ``reply``: the handshake's answer, sent first. ``limit_s``: seconds that the session may
    last, ``longest_s``: that any of its key may, None for no limit. ``options``: settings of the server. ``seed``
    (hexadecimal), ``matchkey``: the private key of an encrypted session, and the pinned match key that its client
    must say. ``user``: as `rpcsys.server.sandbox.session_user.User`, None for the server's.
    """

    kind: str
    reply: bytes
    workdir: str
    key: str
    peer: str
    limit_s: float | None = None
    lease: str | None = None
    options: dict[str, Any] = field(default_factory=dict)
    words: str = ""
    longest_s: float | None = None
    matchkey: str = ""
    seed: str = ""
    user: tuple[Any, ...] | None = None

    def to_bytes(self) -> bytes:
        """Encode the job as one message to a child. JSON's decoder would write to 35 pages of each child."""
        return marshal.dumps({**vars(self), "user": self.user and tuple(self.user)})

    @classmethod
    def from_bytes(cls, data: bytes) -> Job:
        """The inverse of :meth:`to_bytes`."""
        return cls(**marshal.loads(data))


# The tables. To a zygote: {"spawn": child, "kind": kind} with the child's end of its socket, and {"kill": child}.
# To a child: its job; {"until": time} (monotonic, or null) when its lease's limit changes; to that of a hold,
# {"attach": peer, "reply": the handshake's answer} with a client's connection.


def _text_of(most: int) -> Check:
    return lambda value, name: printable(sentence(value, name)[:most])


_line, _name = _text_of(MAX_LINE), _text_of(MAX_NAME)


def _names(value: Any, name: str) -> tuple[str, ...]:
    names: tuple[str, ...] = items(_name)(value, name)
    return names[:MAX_NAMES]


def _about(value: Any, name: str) -> tuple[str, tuple[str, ...]]:
    if type(value) is not dict:
        raise ProtocolError(f"{name} must have a kind and functions")
    return _name(value.get("kind"), "kind"), _names(value.get("functions"), "functions")


def _several(check: Check, count: int) -> Check:
    def check_all(value: Any, name: str) -> Any:
        values = items(check)(value, name)
        if len(values) != count:
            raise ProtocolError(f"{name} must have {count} entries")
        return values

    return check_all


_MOST = 2**31 - 1
#: The check of each field in a zygote's messages; ``events.ChildDead`` explains those of a death.
OF_ZYGOTE: Dict[str, Check] = {
    "importing": _line,  # before each import that a flag names
    "child": integer(1, _MOST),  # that the import is for, else for all
    "ready": flag,
    "shared": _line,  # why sessions have no namespaces of their own
    "failed": _line,
    "zygote": integer(1, _MOST),  # the PID of the one that has made the child
    "born": integer(1, _MOST),
    "pid": integer(1, _MOST),
    "init": integer(0, _MOST),  # 0 for none
    "dead": integer(1, _MOST),
    "status": integer(-255, 255),
    "starved": flag,
    "cleaned": _names,
    "stuck": _names,
    "removed": _names,
}
#: The same for a session's process.
OF_CHILD: Dict[str, Check] = {
    "importing": _line,
    "ready": flag,
    "failed": _line,
    "printed": integer(0, _MOST),  # with the descriptor of its output
    "opened": flag,
    "held": flag,  # it is a hold: connections may attach
    "limit_s": seconds,  # that its client requests
    "outcome": text,
    "why": _line,
    "removed": _names,
}
#: The same for a model host or a deployer.
OF_SERVICE: Dict[str, Check] = {
    **OF_CHILD,
    "loaded": _about,
    "unloadable": _line,
    "load": _several(integer(0, _MOST), 3),
    "stuck": flag,
    "leaving": flag,
    "took": integer(1, _MOST),  # a client's connection; the supervisor's number of it
    "moved": text,
    "greeted": flag,
    "try": _several(text, 4),
    "changed": flag,
    "states": flag,
}

#: The same for the front.
OF_FRONT: Dict[str, Check] = {
    "importing": _line,
    "ready": flag,
    "failed": _line,
    "secured": integer(1, _MOST),  # the connection, with the descriptor of its plain side
    "session": text,  # with `serve` and `timeout_s`: the options of the greeting inside
    "serve": text,
    "timeout_s": seconds,
    "said": text,
    "refused": integer(1, _MOST),
    "why": _line,
    "closed": integer(1, _MOST),
    "took": flag,
}


#: The same for a canary.
OF_CANARY: Dict[str, Check] = {
    "importing": _line,
    "ready": flag,
    "failed": _line,
    "canary": _name,
    "seconds": seconds,
    "disturbed": flag,
    "throttled": seconds,  # a share of the time
    "unfit": _line,  # why it could not run
}


def parse(data: bytes, fields: Mapping[str, Check]) -> Dict[str, Any]:
    """Decode a message and check each of its ``fields``; other fields are dropped. Raises `ProtocolError`."""
    try:
        message = json.loads(data.decode())
    except (ValueError, RecursionError):
        raise ProtocolError("a message that is no JSON") from None
    if type(message) is not dict:
        raise ProtocolError("a message that is no object")
    return {name: check(message[name], name) for name, check in fields.items() if name in message}


class Allowance:
    """How many messages a child may still send: in all or, with ``span_s``, in each such time."""

    def __init__(self, now: float, most: float, span_s: float = math.inf) -> None:
        self._most = self._left = most
        self._span_s = span_s
        self._until = now + span_s

    def spend(self, now: float, size: int) -> None:
        """Count a message of ``size`` bytes. Raises `ProtocolError` if it is one too many."""
        if now >= self._until:
            self._left, self._until = self._most, now + self._span_s
        self._left -= 1 + size // 1024
        if self._left < 0:
            raise ProtocolError("it sends too much")


# Sockets


def pair() -> tuple[socket.socket, socket.socket]:
    """Two connected sockets; each read returns one message."""
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


def send(sock: socket.socket, data: bytes, descriptor: int | None = None) -> None:
    """Send a message, with a copy of ``descriptor``. Raises OSError."""
    beside = []
    if descriptor is not None:
        beside.append((socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [descriptor])))
    sock.sendmsg([data], beside, NO_SIGNAL)


def send_json(sock: socket.socket, descriptor: int | None = None, **fields: Any) -> None:
    """Send ``fields`` as a JSON object. Raises OSError."""
    send(sock, json.dumps(fields).encode(), descriptor)


def receive(sock: socket.socket) -> tuple[bytes, int | None]:
    """Receive one message and its descriptor; ``b""`` when the peer is closed. Raises OSError.

    A peer that ends without having read all that it was sent resets the socket once, before its last messages.
    """
    descriptors = array.array("i")
    asked = MAX_BYTES, socket.CMSG_SPACE(descriptors.itemsize), socket.MSG_CMSG_CLOEXEC
    try:
        data, beside, _, _ = sock.recvmsg(*asked)
    except ConnectionResetError:
        data, beside, _, _ = sock.recvmsg(*asked)
    for level, kind, payload in beside:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            descriptors.frombytes(payload[: len(payload) - len(payload) % descriptors.itemsize])
    for extra in descriptors[1:]:
        os.close(extra)
    return data, descriptors[0] if descriptors else None


def last(sock: socket.socket) -> dict[str, Any] | None:
    """The newest waiting message, None if there is none. Does not block; ignores OSError."""
    found = None
    with contextlib.suppress(OSError):
        while data := sock.recv(MAX_BYTES, socket.MSG_DONTWAIT):
            found = json.loads(data)
    return found
