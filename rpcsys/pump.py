"""Moves byte streams between a session's peer and local descriptors: the same code in the client and on the board.

`Pump.take` handles what the peer sends, in the thread that reads the session: it never waits and never sends. All else
is done by the pump's own thread. A stream keeps at most a window of bytes, and stops its sender beyond that.
"""

from __future__ import annotations

import contextlib
import errno
import os
import select
import socket
import threading
from collections import deque
from typing import Any, Callable, Deque, Dict, Sequence, Set, Tuple, Union

from rpcsys.byte_streams import ByteStream, Listener, stream_of
from rpcsys.errors import ProtocolError, RpcsysError, printable
from rpcsys.stream import Ended
from rpcsys.wire.byte_streams import (
    CLOSE,
    DATA,
    EOF,
    MAX_AMOUNT,
    MAX_WHY,
    MORE,
    OPEN,
    STOP,
    WINDOW,
    StreamMessage,
    parse,
)
from rpcsys.wire.frames import Buffer, Frame

#: Bytes that are read from a descriptor, and sent, at a time.
PIECE = 256 << 10
#: Streams of one session at a time. Further connections wait in their listener.
MAX_STREAMS = 512
_GONE = (errno.EIO, errno.EPIPE)  # a terminal without a program, a pipe without a reader: ends that need no reason
_READ, _WRITE = select.POLLIN, select.POLLOUT

Key = Tuple[int, int]
#: Sends the fields of a CHUNK with that id, and the buffers of its body.
Send = Callable[[int, Dict[str, Any], Sequence[Buffer]], None]
#: Handles a message that belongs to no stream, in the thread that reads.
Handler = Callable[[StreamMessage], None]


class Pump:
    """The byte streams of one session, until ``send`` raises `Ended` or `RpcsysError`: then all are closed."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._lock = threading.Lock()  # of streams' counts and buffers, for the two threads
        self._handlers: Dict[int, Handler] = {}
        self._streams: Dict[Key, ByteStream] = {}
        self._at: Dict[int, Union[ByteStream, Listener]] = {}  # by descriptor
        self._masks: Dict[int, int] = {}
        self._poll = select.poll()
        self._jobs: Deque[Callable[[], Any]] = deque()
        self._changed: Set[ByteStream] = set()
        self._wakeup, self._wake = socket.socketpair()
        self._wake.setblocking(False)
        self._poll.register(self._wakeup, _READ)
        self._closed = False
        self.on_failed: Callable[[str], None] = lambda why: None  # called where a descriptor of the peer has failed
        threading.Thread(target=self._run, name="rpcsys-streams", daemon=True).start()

    # -------------------------------------------------------------- for any thread

    def register(self, id: int, handler: Handler, *streams: ByteStream) -> None:
        """Take messages with ``id`` from now on, for these streams and, if they belong to none, for the handler."""
        self._handlers[id] = handler
        for stream in streams:
            self.add(stream)

    def add(self, stream: ByteStream) -> None:
        """Move the bytes of a stream, until both its directions are over."""
        self._streams[stream.key] = stream
        self.do(lambda: self._settle(stream))

    def listen(self, listener: Listener) -> None:
        """Accept connections, and open a stream for each."""
        self.do(lambda: self._watch(listener.socket.fileno(), listener, _READ))

    def release(self, id: int) -> None:
        """Drop the handler and close the streams and listeners of ``id``."""
        self._handlers.pop(id, None)
        self.do(lambda: self._release(id))

    def drain(self, stream: ByteStream) -> None:
        """End a stream's source as soon as there is nothing to read: its program is gone."""
        stream.draining = True
        self.do(lambda: self._fill(stream))

    def do(self, job: Callable[[], Any]) -> None:
        """Have the pump's thread call ``job``, after all jobs before."""
        self._jobs.append(job)
        self._wake_up()

    def tell(self, id: int, message: StreamMessage, *data: Buffer) -> None:
        """Have the pump's thread send a message, after all jobs before."""
        self.do(lambda: self._send(id, message.fields(), data))

    def close(self) -> None:
        """Close all descriptors, and end the thread."""
        self._closed = True
        self._wake_up()

    @property
    def idle(self) -> bool:
        """Whether nothing is registered."""
        return not self._handlers

    # -------------------------------------------------------------- for the thread that reads the session

    def take(self, frame: Frame) -> bool:
        """Take a CHUNK; False if its id is not registered here. Raises `ProtocolError`."""
        handler = self._handlers.get(frame.call_id)
        if handler is None:
            return False
        message = parse(frame)
        stream = self._streams.get((frame.call_id, message.stream))
        if message.op not in (DATA, MORE, EOF, STOP):
            if message.op == OPEN and stream is not None:
                raise ProtocolError(f"stream {message.stream} is open already")
            handler(message)
            if message.op == CLOSE:
                self.release(frame.call_id)
        elif stream is not None:  # else its end is on the way to the peer
            with self._lock:
                if self._took(stream, message, frame.buffers[0]):
                    self._changed.add(stream)
                    self._wake_up()
        return True

    def _took(self, stream: ByteStream, message: StreamMessage, data: Buffer) -> bool:
        """Apply a message; whether the pump's thread must act. The caller has the lock."""
        if message.op == MORE:
            if stream.credit + message.amount > MAX_AMOUNT:
                raise ProtocolError("a stream with a window of a terabyte")
            stream.credit += message.amount
            return True
        if message.op != DATA:
            stream.ended |= message.op == EOF
            stream.stopped |= message.op == STOP
            if message.why:
                self.on_failed(message.why)
            return True
        if len(data) > stream.room or stream.ended:
            raise ProtocolError(f"{len(data)} bytes on a stream that takes {0 if stream.ended else stream.room}")
        stream.room -= len(data)
        if stream.target < 0:
            return False
        taken, had = 0, bool(stream.backlog)
        if not had:
            with contextlib.suppress(OSError):  # the pump's thread meets it again
                taken = stream.write(data)
        if taken < len(data):
            stream.backlog.append(memoryview(data)[taken:])
        return bool(stream.backlog) != had or stream.freed >= WINDOW // 2

    def _wake_up(self) -> None:
        with contextlib.suppress(OSError):  # it is awake already, or has ended
            self._wake.send(b".")

    # -------------------------------------------------------------- the pump's thread

    def _run(self) -> None:
        try:
            while not self._closed:
                self._turn()
        except (Ended, RpcsysError):
            pass  # the session is over
        finally:
            self._closed = True
            self._close_all()

    def _turn(self) -> None:
        for descriptor, events in self._poll.poll():
            found = self._at.get(descriptor)
            if descriptor == self._wakeup.fileno():
                self._wakeup.recv(4096)
            elif isinstance(found, Listener):
                self._accept(found)
            elif found is not None:
                if descriptor == found.target and events & ~_READ and found.backlog:
                    self._flush(found)
                if descriptor == found.source and events & ~_WRITE:
                    self._fill(found)
                self._settle(found)
        while self._jobs:
            self._jobs.popleft()()
        with self._lock:
            changed, self._changed = self._changed, set()
        for stream in changed:
            self._settle(stream)

    def _fill(self, stream: ByteStream) -> None:
        """Send what a stream's source has, as far as the peer takes it."""
        while stream.source >= 0 and stream.credit:
            why = ""
            try:
                piece = os.read(stream.source, min(stream.credit, PIECE))
            except BlockingIOError:
                if not stream.draining:
                    return
                piece = b""
            except OSError as error:
                piece, why = b"", _reason(error)
            if not piece:
                self._end_source(stream, why)
                if why or stream.draining:
                    self._stop_target(stream)
                return
            with self._lock:
                stream.credit -= len(piece)
            self._tell(stream, DATA, piece)
            if not stream.draining:
                return

    def _flush(self, stream: ByteStream) -> None:
        """Write what a stream has received, as far as its target takes it."""
        try:
            with self._lock:
                with stream.backlog.first() as piece:
                    taken = stream.write(piece)
                stream.backlog.drop(taken)
        except OSError as error:
            self._stop_target(stream, _reason(error))

    def _settle(self, stream: ByteStream) -> None:
        """Grant the peer what was written, end what is over, and wait for what comes next."""
        if self._streams.get(stream.key) is not stream:
            return
        if stream.failed and stream.source >= 0:
            self._end_source(stream, stream.failed)
            self._stop_target(stream)
        if stream.stopped and stream.source >= 0:
            self._close_source(stream)
        if stream.draining:
            self._fill(stream)
        with self._lock:
            freed = stream.freed if stream.freed >= WINDOW // 2 and not stream.ended else 0
            stream.freed -= freed
            stream.room += freed
            over = stream.target >= 0 and stream.ended and not stream.backlog
        if freed:
            self._tell(stream, MORE, amount=freed)
        if over:
            self._close_target(stream)
        wanted = stream.mask()
        for descriptor in {stream.source, stream.target, stream.shared, *wanted} - {-1}:
            self._watch(descriptor, stream, wanted.get(descriptor, 0))
        if stream.source < 0 and stream.target < 0:
            self._remove(stream)

    def _tell(self, stream: ByteStream, op: str, data: Buffer = b"", amount: int = 0, why: str = "") -> None:
        owner, number = stream.key
        self._send(owner, StreamMessage(op, number, amount, why=why).fields(), (data,) if data else ())

    def _end_source(self, stream: ByteStream, why: str = "") -> None:
        self._close_source(stream)
        self._tell(stream, EOF, why=why)

    def _close_source(self, stream: ByteStream) -> None:
        descriptor, stream.source = stream.source, -1
        if descriptor != stream.shared:
            self._close(descriptor)

    def _stop_target(self, stream: ByteStream, why: str = "") -> None:
        """Take no more for a target that has failed."""
        if stream.target >= 0:
            self._close_target(stream)
            if not stream.ended:
                self._tell(stream, STOP, why=why)

    def _close_target(self, stream: ByteStream) -> None:
        with self._lock:
            descriptor, stream.target = stream.target, -1
            stream.backlog.clear()
        if descriptor != stream.shared:
            self._close(descriptor)
        else:
            with contextlib.suppress(OSError):  # its peer is gone
                stream.end_of_input()

    def _remove(self, stream: ByteStream) -> None:
        self._streams.pop(stream.key, None)
        if stream.shared >= 0:
            self._close(stream.shared)
            stream.shared = -1
        stream.on_end()
        for found in list(self._at.values()):
            if isinstance(found, Listener):
                self._watch(found.socket.fileno(), found, _READ)

    def _release(self, id: int) -> None:
        for key, stream in list(self._streams.items()):
            if key[0] == id:
                self._discard(stream)
        for found in list(self._at.values()):
            if isinstance(found, Listener) and found.id == id:
                self._watch(found.socket.fileno(), found, 0)
                del self._at[found.socket.fileno()]
                found.socket.close()

    def _discard(self, stream: ByteStream) -> None:
        with self._lock:
            descriptors = {stream.source, stream.target, stream.shared} - {-1}
            stream.source = stream.target = stream.shared = -1
        for descriptor in descriptors:
            self._close(descriptor)
        self._remove(stream)

    def _close_all(self) -> None:
        for stream in list(self._streams.values()):
            self._discard(stream)
        for found in self._at.values():
            if isinstance(found, Listener):
                found.socket.close()
        self._wakeup.close()
        self._wake.close()

    # -------------------------------------------------------------- descriptors

    def _watch(self, descriptor: int, found: Union[ByteStream, Listener], mask: int) -> None:
        """Wait for the events of ``mask``: without any, not even for the end of the other side."""
        self._at[descriptor] = found
        before = self._masks.get(descriptor, 0)
        if mask and not before:
            self._poll.register(descriptor, mask)
        elif mask and mask != before:
            self._poll.modify(descriptor, mask)
        elif before and not mask:
            self._poll.unregister(descriptor)
        self._masks[descriptor] = mask

    def _close(self, descriptor: int) -> None:
        if self._masks.pop(descriptor, 0):
            self._poll.unregister(descriptor)
        self._at.pop(descriptor, None)
        os.close(descriptor)

    def _accept(self, listener: Listener) -> None:
        try:
            if len(self._streams) >= MAX_STREAMS:
                raise OSError(errno.EMFILE, "too many streams")
            connection, _ = listener.socket.accept()
        except BlockingIOError:
            return
        except OSError:  # no descriptors: the next stream that ends gives one
            self._watch(listener.socket.fileno(), listener, 0)
            return
        stream = stream_of(listener.id, listener.accepted, connection)
        listener.accepted += 1
        self._streams[stream.key] = stream
        self._tell(stream, OPEN)
        self._settle(stream)


class Connecting:
    """Connects to ``port`` of this machine for each stream of ``id`` that the peer opens."""

    def __init__(self, pump: Pump, id: int, port: int) -> None:
        self._pump = pump
        self._id = id
        self._port = port

    def __call__(self, message: StreamMessage) -> None:
        """Open a connection. Raises `ProtocolError` for another message."""
        if message.op != OPEN:
            only_close(message)
            return
        connection = socket.socket()
        connection.setblocking(False)
        failed = connection.connect_ex(("127.0.0.1", self._port))
        stream = stream_of(self._id, message.stream, connection)
        stream.failed = os.strerror(failed) if failed not in (0, errno.EINPROGRESS) else ""
        self._pump.add(stream)


def only_close(message: StreamMessage) -> None:
    """The handler of a listener. Raises `ProtocolError` for another message than a CLOSE."""
    if message.op != CLOSE:
        raise ProtocolError(f"a forwarded port takes no message {message.op!r}")


def _reason(error: OSError) -> str:
    """Why a descriptor has failed, for people; "" where that is its normal end."""
    return "" if error.errno in _GONE else printable(error.strerror or str(error))[:MAX_WHY]
