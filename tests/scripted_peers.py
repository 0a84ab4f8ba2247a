"""A scripted tracker and server, over real sockets: they send valid messages, or false values in any field."""

from __future__ import annotations

import contextlib
import copy
import json
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from typing import Any

from hypothesis import strategies as st

MAGIC = struct.pack("<i", 0x2F271)
WELCOME = {"ok": True, "tracker": "rpcsys", "version": "0", "capabilities": []}

#: False values of a field: every kind of JSON value, and values that printing or counting may fail at.
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=8)
    | st.sampled_from([0, 1, 10**300, 1e308, -1e308, "", "\x1b[2J", "\u202ex", "\ud800", "a\nb", "x" * 3000, 2**53]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=5,
)
REMOVED = object()


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The paths, of labels and indexes, to all parts of a JSON value."""
    yield path
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for label, item in inner:
        yield from places(item, (*path, label))


def changed(value: Any, path: tuple[Any, ...], new: Any) -> Any:
    """``value`` with ``new`` at ``path``; without that part if it is `REMOVED`."""
    if not path:
        return None if new is REMOVED else new
    copy = value.copy()
    if new is REMOVED and len(path) == 1:
        del copy[path[0]]
    else:
        copy[path[0]] = changed(value[path[0]], path[1:], new)
    return copy


@st.composite
def mutated(draw: Any, truth: Any) -> Any:
    """A copy of the object ``truth`` with one to three false values."""
    truth = copy.deepcopy(truth)
    for _ in range(draw(st.integers(1, 3))):
        found = sorted((path for path in places(truth) if path), key=repr)
        if not found:
            return truth
        path = draw(st.sampled_from(found))
        truth = changed(truth, path, draw(VALUES | st.just(REMOVED)))
    return truth


def framed(value: Any) -> bytes:
    text = value if isinstance(value, bytes) else json.dumps(value).encode()
    return struct.pack("<i", len(text)) + text


#: Returns the answers to a question: bytes as they are, or JSON values in frames.
Replies = Callable[[Any], "list[Any]"]


class ScriptedTracker:
    """Sends the hello of our tracker, and answers each question with ``replies(question)``. A context manager.

    ``commands(list)`` answers TVM's messages, with success if it is not given.
    """

    def __init__(self, replies: Replies | None = None, commands: Replies | None = None) -> None:
        self.replies: Replies = replies or (lambda asked: [])
        self.commands: Replies = commands or (lambda asked: [0])
        self.received: list[Any] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._connections: list[socket.socket] = []
        self.address: tuple[str, int] = self._listener.getsockname()
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                sock, _ = self._listener.accept()
                self._connections.append(sock)
                threading.Thread(target=self._serve, args=(sock,), daemon=True).start()

    def _serve(self, sock: socket.socket) -> None:
        with contextlib.suppress(OSError, EOFError), sock:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            assert exactly(sock, 4) == MAGIC
            sock.sendall(MAGIC)
            while True:
                asked = json.loads(exactly(sock, struct.unpack("<i", exactly(sock, 4))[0]))
                self.received.append(asked)
                if isinstance(asked, list):
                    hello = len(asked) > 1 and asked[0] == 1
                    answers = [WELCOME] if hello else self.commands(asked)
                else:
                    answers = self.replies(asked)
                for said in answers:
                    sock.sendall(said if isinstance(said, bytes) else framed(said))

    def __enter__(self) -> ScriptedTracker:
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for sock in self._connections:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)


def exactly(sock: socket.socket, count: int) -> bytes:
    """The next ``count`` bytes. Raises EOFError if the peer ends first."""
    data = b""
    while len(data) < count:
        piece = sock.recv(count - len(data))
        if not piece:
            raise EOFError(f"closed after {len(data)} of {count} bytes")
        data += piece
    return data


def answers(fields: dict[str, Any]) -> Replies:
    """Answers every question with ``fields``."""
    return lambda asked: [{"ok": True, **fields, "id": asked["id"]}]


@contextlib.contextmanager
def one_shot_server(said: bytes) -> Iterator[tuple[str, int]]:
    """The address of a server that takes one connection, sends ``said``, and reads on."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=_send, args=(listener, said), daemon=True)
        thread.start()
        yield listener.getsockname()
        with contextlib.suppress(OSError):
            listener.shutdown(socket.SHUT_RDWR)
        thread.join(30)


def _send(listener: socket.socket, said: bytes) -> None:
    with contextlib.suppress(OSError):
        sock, _ = listener.accept()
        with sock:
            sock.settimeout(30)
            sock.recv(65536)
            sock.sendall(said)
            sock.shutdown(socket.SHUT_WR)
            while sock.recv(65536):
                pass
