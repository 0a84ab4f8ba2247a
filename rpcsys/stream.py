"""The only module that uses a session's socket, in the client and in the session's process.

`open` chooses between `PythonStream` and `NativeStream`, which has the same methods from the C library
`rpcsys.speedups`. Nothing else knows which of them it has.

A session runs on any stream socket, a socketpair too. The socket is in blocking mode: a receive costs one system call
and no poll. ``SO_RCVTIMEO`` bounds how long it blocks: `Stream.receive` returns None, and its caller checks deadlines.

A stream stays usable after Ctrl-C, or whatever else the handler of a signal raises.
"""

from __future__ import annotations

import select
import socket
import struct
import threading
import time
from typing import TYPE_CHECKING, Any, Callable, List, Optional, Sequence, Tuple

from rpcsys.compiled import speedups
from rpcsys.errors import RpcsysError
from rpcsys.link.tcp import NO_SIGNAL
from rpcsys.wire.frames import Buffer, Frame, FrameValues
from rpcsys.wire.head import parse
from rpcsys.wire.limits import DEFAULT, Limits
from rpcsys.wire.memory import Pool
from rpcsys.wire.reader import FrameReader

#: One sendmsg takes at most 1,024 buffers (UIO_MAXIOV).
MAX_PIECES = 1000
SEND_TIMEOUT_S = 0.2
# Plain numbers: to join two members of socket's enumeration costs half a microsecond.
DONT_WAIT = int(socket.MSG_DONTWAIT)
BLOCKING = NO_SIGNAL
NOT_BLOCKING = BLOCKING | DONT_WAIT
#: Receives in a row without waiting: a fast peer must not keep the thread.
DONT_WAIT_READS = 16
LAST_ID = 0xFFFFFFFF  # the id of a call has four bytes; 0 is none

#: Whether sessions use the compiled library ``rpcsys.speedups``.
SPEEDUPS: bool = speedups is not None

Action = Callable[[], None]
NOTHING: Tuple[Sequence[Buffer], Sequence[int], Optional[Action]] = ((), (), None)


class Ended(Exception):
    """The connection has ended; ``args[0]`` is the system's message."""


class Stream:
    """Frames over a connected stream socket. One thread at a time receives, and one sends.

    Raises `Ended` at the end of the connection, and `ProtocolError` for invalid frames.
    """

    socket: socket.socket
    #: Not 0 while bytes have been received that `next` has not decoded.
    unread: int
    #: Bytes that the current frame lacks, as far as its header is known; 0 between frames.
    missing: int
    #: Whether received bytes or a frame are lost, if the receipt or the handling of a frame was interrupted.
    torn: bool
    #: An interruption that came with received bytes; to be raised once their frame is handled.
    late: Optional[BaseException]

    @property
    def held(self) -> bool:
        """Whether bytes may have come that are not with `receive` yet, and that poll on the socket does not show."""
        return False

    @property
    def moved(self) -> int:
        """Bytes that one key has encrypted, in the direction with more; 0 in the clear."""
        return 0

    def fileno(self) -> int:
        """The descriptor, for poll."""
        return self.socket.fileno()

    def tick(self, seconds: float) -> None:
        """Have `receive` return None after ``seconds`` without data (0: never)."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, _timeval(seconds))

    def next_id(self) -> int:
        """The id of the next call on this stream."""
        raise NotImplementedError

    def receive(self, flags: int = 0, most: int = 0) -> Optional[Frame]:
        """The next frame. None after a tick without data, or with `DONT_WAIT` if no complete one has arrived.

        The frame counts as handled at the next call, or when it is settled. With ``most``, receives once, and so many
        bytes at most.
        """
        raise NotImplementedError

    def next(self) -> Optional[Frame]:
        """The next frame among the bytes that `receive` has read already; None if they have no complete one."""
        raise NotImplementedError

    def skip(self, kind: int) -> Tuple[int, bytes]:
        """Drop the next complete frames of ``kind`` that have arrived. Returns their number and their bytes."""
        raise NotImplementedError

    def settle(self) -> None:
        """The frame that was received last is handled, or may be lost: it is not `torn`."""
        raise NotImplementedError

    def raise_late(self) -> None:
        """Raise the late interruption, if there is one; the last frame is handled."""
        error, self.late = self.late, None
        if error is not None:
            self.settle()
            raise error

    def receive_within(self, seconds: float) -> Optional[Frame]:
        """The next frame; None if it is incomplete after ``seconds``, even if bytes arrive. For a first frame."""
        until = time.monotonic() + seconds
        frame = None
        while frame is None and self.wait(max(0.0, until - time.monotonic())):
            frame = self.receive(DONT_WAIT)
        return frame

    def send(
        self,
        pieces: Sequence[Buffer],
        on_full: Optional[Action] = None,
        patient: bool = False,
        begun: Optional[Action] = None,
    ) -> None:
        """Send the pieces of one or more frames in order.

        While the peer reads nothing, ``on_full`` is called: it waits (`wait`) and may receive meanwhile. It is called
        at once, or if ``patient`` after the system has blocked for `SEND_TIMEOUT_S` without sending anything, which
        saves system calls with a fast peer. Without ``on_full`` the call blocks until all is sent.

        ``begun`` is called before the first byte is sent: from then on, `resume` sends the rest after an interruption.
        It may be called again then.
        """
        raise NotImplementedError

    def _interrupted_send(self) -> Tuple[List[Buffer], Optional[Action]]:
        """What an interrupted `send` has not sent, and its ``begun``."""
        raise NotImplementedError

    def resume(self, on_full: Action, seconds: float) -> bool:
        """Send the rest of the frames whose sending was interrupted; False if the peer has not taken it in time."""
        rest, begun = self._interrupted_send()
        until = time.monotonic() + seconds

        def wait() -> None:
            if time.monotonic() >= until:
                raise Ended("the peer reads nothing")
            on_full()

        try:
            self.send(rest, wait, begun=begun)
        except (Ended, RpcsysError):
            return False
        return True

    def send_at_once(self, pieces: Sequence[Buffer]) -> None:
        """Send what the system takes now, for the last frame of a stream: the rest is lost. Raises OSError."""
        self.socket.sendmsg(pieces, (), NOT_BLOCKING)

    def last_frame(self) -> Optional[Frame]:
        """After `Ended`: the frame with the reason that the peer has sent beside the stream, once; None without one."""
        return None

    def wait(self, timeout: Optional[float], *, read: bool = True, write: bool = False) -> int:
        """Wait for the peer; the poll events that came, 0 after ``timeout`` seconds."""
        if read and self.held:
            return select.POLLIN
        poll = select.poll()
        try:
            poll.register(self.socket, (select.POLLIN if read else 0) | (select.POLLOUT if write else 0))
        except ValueError:  # closed by another thread: the next receive or send raises
            return select.POLLNVAL
        events = poll.poll(None if timeout is None else max(0, int(timeout * 1000)))
        return events[0][1] if events else 0

    def close(self) -> None:
        """Close the socket at once."""
        self.socket.close()

    # -------------------------------------------------------------- what else the library does

    def new_lock(self) -> Any:
        """A lock for one end of this stream, as `threading.Lock`."""
        raise NotImplementedError

    def exchange(self, **parts: Any) -> Any:
        """What makes short calls of a client (`rpcsys.speedups.Exchange`); None where Python makes them all."""
        raise NotImplementedError

    def forget_heads(self) -> None:
        """Parse the heads of later frames anew, with no memo: a library remembers the last one alone."""

    def call_loop(self, **parts: Any) -> Any:
        """What receives the frames of a server's session (`rpcsys.speedups.CallLoop`, or `CallLoop`)."""
        raise NotImplementedError


class PythonStream(Stream):
    """A stream in Python.

    Python runs the handler of a signal between any two bytecodes: after a system call has moved bytes, and before its
    result is stored. So C code stores it here: ``list.extend`` of a ``map``, inside which no handler runs.
    """

    def __init__(self, sock: socket.socket, limits: Limits = DEFAULT, pool: Optional[Pool] = None) -> None:
        self.socket = sock
        self._reader = FrameReader(limits, pool)
        self._received: List[int] = []  # not empty from the receipt of bytes until they, or their frame, are handled
        self._sending = NOTHING  # pieces, how many bytes of them were sent each time, and ``begun`` of `send`
        self.last_id = 0
        self.late = None

    def next_id(self) -> int:
        self.last_id = self.last_id + 1 if self.last_id < LAST_ID else 1
        return self.last_id

    @property
    def unread(self) -> int:  # type: ignore[override]
        return self._reader.unread

    @property
    def torn(self) -> bool:  # type: ignore[override]
        return bool(self._received)

    def settle(self) -> None:
        self._received.clear()

    @property
    def missing(self) -> int:  # type: ignore[override]
        return self._reader.missing

    def receive(self, flags: int = 0, most: int = 0) -> Optional[Frame]:
        received, reader = self._received, self._reader
        received.clear()
        frame = None
        fill = self._receive_into
        reads = DONT_WAIT_READS if flags else -1
        if most:
            reads = 1

            def fill(place: memoryview, count: int, flags: int) -> int:
                return self._receive_into(place[:most], count, flags)

        try:
            if reader.unread:
                received.append(0)
                frame = reader.next()
            while frame is None and reads:
                frame = reader.read(fill, flags)
                reads -= 1
        except BlockingIOError:
            return None
        except (EOFError, OSError) as error:
            raise ended(error) from None
        return frame

    def next(self) -> Optional[Frame]:
        received = self._received
        received.clear()
        received.append(0)
        frame = self._reader.next()
        if frame is None:
            received.clear()
        return frame

    def skip(self, kind: int) -> Tuple[int, bytes]:
        return self._reader.skip(kind)

    def _receive_into(self, place: memoryview, count: int, flags: int) -> int:
        received = self._received
        received.clear()
        try:
            received.extend(map(self.socket.recv_into, (place,), (count,), (flags,)))
        except BaseException as error:
            if not received:
                raise
            self.late = error
        return received[0]

    def send(
        self,
        pieces: Sequence[Buffer],
        on_full: Optional[Action] = None,
        patient: bool = False,
        begun: Optional[Action] = None,
    ) -> None:
        sent: List[int] = []
        self._sending = (pieces, sent, begun)
        if begun is not None:
            begun()
        flags = BLOCKING if on_full is None or patient else NOT_BLOCKING
        while pieces:
            try:
                if len(pieces) == 1:
                    sent.extend(map(self.socket.send, pieces, (flags,)))
                else:
                    sent.extend(map(self.socket.sendmsg, (pieces[:MAX_PIECES],), ((),), (flags,)))
            except BlockingIOError:
                if on_full is not None:
                    on_full()
                continue
            except OSError as error:
                raise ended(error) from None
            if sent[-1] == sum(map(len, pieces)):
                break
            pieces = rest_of(pieces, sent[-1])
        self._sending = NOTHING

    def _interrupted_send(self) -> Tuple[List[Buffer], Optional[Action]]:
        pieces, sent, begun = self._sending
        return rest_of(pieces, sum(sent)), begun

    def new_lock(self) -> Any:
        return threading.Lock()

    def exchange(self, **parts: Any) -> Any:
        return None

    def forget_heads(self) -> None:
        self._reader.forget_heads()

    def call_loop(self, **parts: Any) -> Any:
        return CallLoop(self, parts["idle"])


class CallLoop:
    """What the two threads of a server's session share, and the receipt of frames."""

    def __init__(self, stream: Stream, idle: Frame) -> None:
        self.call = idle  # the frame of the call that runs
        self.turn = 0  # odd while a call runs
        self.asleep = False  # whether the watching thread waits for a call
        self.reading = False  # whether the watching thread reads frames
        self.receive = stream.receive


if TYPE_CHECKING:
    from rpcsys.speedups import FunctionBase as FunctionBase  # noqa: PLC0414 - it is exported
elif SPEEDUPS:
    FunctionBase = speedups.FunctionBase
else:

    class FunctionBase:
        """The base of functions on a device. A subclass has ``_call``."""

        def _bind(self, exchange: Any, about: Any) -> None:
            """Set the exchange for short calls, and what the function adds to the keys of heads."""

        def __init_subclass__(cls) -> None:
            cls.__call__ = cls._call


if SPEEDUPS:

    class NativeFrame(speedups.Frame, FrameValues):
        """A frame of the library."""

        __slots__ = ()

    class NativeStream(speedups.Stream, Stream):
        """A stream of the library. No handler of a signal runs inside it between a system call and its effects."""

        def __new__(cls, sock: socket.socket, limits: Limits = DEFAULT, *tunnel: Any) -> NativeStream:
            return super().__new__(cls, sock.fileno(), limits, parse, Ended, NativeFrame, *tunnel)

        def __init__(self, sock: socket.socket, limits: Limits = DEFAULT, *tunnel: Any) -> None:
            self.socket = sock

        def _interrupted_send(self) -> Tuple[List[Buffer], Optional[Action]]:
            views = [memoryview(piece) for piece in self.sending or ()]
            return rest_of([view.cast("B") for view in views if view.nbytes], self.sent), None

        def close(self) -> None:
            self.fd = -1  # first: the system may give the number to another socket
            super().close()

        def new_lock(self) -> Any:
            return speedups.Lock()

        def exchange(self, **parts: Any) -> Any:
            return speedups.Exchange(self, **parts)

        def call_loop(self, **parts: Any) -> Any:
            return speedups.CallLoop(self, **parts)


def open(sock: socket.socket, limits: Limits = DEFAULT, pool: Optional[Pool] = None) -> Stream:  # noqa: A001
    """A stream over ``sock``, by the library where it can be used.

    ``pool``: memory for arrays; the library has its own.
    """
    prepare(sock)
    return NativeStream(sock, limits) if SPEEDUPS else PythonStream(sock, limits, pool)


def prepare(sock: socket.socket) -> None:
    """Set what streams need of a socket."""
    sock.setblocking(True)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _timeval(SEND_TIMEOUT_S))


def ended(error: Exception) -> Ended:
    """The `Ended` for an error of the socket."""
    return Ended(getattr(error, "strerror", None) or str(error) or "the connection was closed")


def _timeval(seconds: float) -> bytes:
    return struct.pack("ll", int(seconds), int(seconds % 1 * 1e6))


def rest_of(pieces: Sequence[Buffer], count: int) -> List[Buffer]:
    """The rest of ``pieces`` after ``count`` bytes were sent."""
    for index, piece in enumerate(pieces):
        if count < len(piece):
            return [memoryview(piece)[count:], *pieces[index + 1 :]]
        count -= len(piece)
    return []
