"""A client's connection over HTTP/1.1: one request after the other, each body received where it stays.

A request is read when the answer to the one
before it is sent; until then what a client sends ahead waits, a bounded part of it here.
"""

from __future__ import annotations

import asyncio
import functools
import socket
import time
from collections.abc import Callable, Sequence
from enum import Enum, auto
from typing import Any, NamedTuple

from rpcsys.gateway.connection import SCRATCH, ClientCrowd, ClientSocket
from rpcsys.gateway.content_coding import AT_ONCE, LARGEST, SMALLEST, packed, unpacked
from rpcsys.gateway.http_heads import KnownHead, KnownHeads, answer_head
from rpcsys.gateway.json_arrays import dumps
from rpcsys.gateway.memory import BodyMemory
from rpcsys.wire import first_bytes
from rpcsys.wire.http1 import CHUNKED, ChunkReader, HttpError, HttpLimits, find_head
from rpcsys.wire.http1_requests import CONTINUE
from rpcsys.wire.inference import InferenceError
from rpcsys.wire.memory import Pool

#: Seconds for a head from its first byte on; for a body, and an answer, of which nothing moves; between requests; for
#: a client that is told that its connection ends.
HEAD_S, MOVE_S, IDLE_S, END_S = 10.0, 60.0, 600.0, 2.0
#: Reads of one connection in a turn of the loop.
_ROUNDS = 16
#: Bytes of a chunked body that is taken while there is no memory for bodies.
_SOME = 1 << 20


class HttpStage(Enum):
    """What a connection waits for."""

    HEAD = auto()  # a request, or the rest of its head
    MEMORY = auto()  # room for its body
    BODY = auto()  # the rest of its body
    ANSWER = auto()  # the outcome of its call, and that the client takes the answer
    END = auto()  # the client hangs up; what it still sends is dropped


class HttpSettings(NamedTuple):
    """What connections share."""

    heads: KnownHeads
    limits: HttpLimits
    memory: BodyMemory
    pool: Pool


class HttpConnection(ClientSocket):
    """One client. ``head``: of the request that is under way. ``give_up``: ends its call, if there is one."""

    __slots__ = ("_body", "_chunks", "_filled", "_rest", "_settings", "_size", "_stage", "give_up", "head")

    def __init__(self, crowd: ClientCrowd, sock: socket.socket, settings: HttpSettings) -> None:
        self.head: KnownHead | None = None
        self.give_up: Callable[[], None] | None = None
        self._settings = settings
        self._stage = HttpStage.HEAD
        self._rest = bytearray()  # received, and not parsed yet
        self._body: memoryview | None = None
        self._filled = 0
        self._chunks: ChunkReader | None = None
        self._size = 0  # bytes of memory that are taken
        super().__init__(crowd, sock)

    # -------------------------------------------------------------- receiving

    def readable(self) -> None:
        """As `ClientSocket`."""
        crowd = self.crowd
        try:
            for _ in range(_ROUNDS):
                body = self._body
                space = crowd.scratch_view if body is None else body[self._filled :]
                count = self.sock.recv_into(space)
                if not count:
                    self._hung_up()
                    return
                crowd.received += count
                if body is not None:
                    self._fill(body, count)
                elif self._stage is not HttpStage.END:
                    self._receive(count)
                if self.closed or self._paused or (body is None and count < SCRATCH):
                    return
        except BlockingIOError:
            pass
        except OSError:
            self.close()

    def _receive(self, count: int) -> None:
        """Take bytes that lie in the scratch buffer."""
        rest = self._rest
        if self._stage is HttpStage.HEAD and not rest and self._chunks is None:
            self.moved_at = time.monotonic()
        if rest or self._stage is HttpStage.ANSWER:
            rest += self.crowd.scratch_view[:count]
            if self._stage is HttpStage.ANSWER:
                self.pause(len(rest) >= SCRATCH)
                return
            self._rest = bytearray()
            self._parse(rest, len(rest))
        else:
            self._parse(self.crowd.scratch, count)

    def _parse(self, data: bytearray, end: int) -> None:
        """Take what is whole in ``data[:end]``, and keep the rest."""
        at = 0
        view = memoryview(data)
        try:
            while at < end and self._stage is not HttpStage.END and not self.closed:
                if self._chunks is not None:
                    at += self._feed_chunks(view[at:end])
                elif self._stage is HttpStage.HEAD:
                    found = find_head(data, at, end, self._settings.limits)
                    if found is None:
                        if first_bytes.kind_of(view[at : at + 4]) not in (None, first_bytes.PAGE):
                            raise HttpError("this port speaks HTTP")
                        break
                    at = found[1] + self._begin(bytes(view[found[0] : found[1]]), view[found[1] : end])
                else:
                    break
        except HttpError as error:
            self._refuse(error, bytes(view[at : at + 4]))
            at = end
        if at < end and self._stage is not HttpStage.END:
            self._rest += view[at:end]
            if len(self._rest) >= SCRATCH and self._stage is HttpStage.ANSWER:
                self.pause(True)

    def _begin(self, raw: bytes, behind: memoryview) -> int:
        """Begin a request; returns how many bytes ``behind`` its head belong to it. Raises `HttpError`."""
        head = self._settings.heads.get(raw)
        self.head = head
        request, length = head.request, head.request.length
        if length == 0:
            self._take(memoryview(b""))
            return 0
        if request.expects and not len(behind):
            self.say([CONTINUE])
        if length == CHUNKED:
            self._chunks = ChunkReader(self._settings.limits)
            self._stage = HttpStage.BODY
            self.moved_at = time.monotonic()
            return 0
        came = min(length, len(behind))
        if self._settings.memory.take(length):
            self._size = length
            if came == length:
                self._take(memoryview(bytes(behind[:length])))
            else:
                self._make_room(length, behind)
            return came
        self._stage = HttpStage.MEMORY
        self.pause(True)
        self._settings.memory.wait(length, functools.partial(self._room_made, length, bytes(behind[:came])))
        return came

    def _room_made(self, length: int, came: bytes) -> bool:
        if self.closed:
            return False
        self._size = length
        self.pause(False)
        if len(came) == length:
            self._take(memoryview(came))
        else:
            self._make_room(length, came)
        return True

    def _make_room(self, length: int, came: Any) -> None:
        self._stage = HttpStage.BODY
        self.moved_at = time.monotonic()
        body = self._body = self._settings.pool.take(length)
        body[: len(came)] = came
        self._filled = len(came)

    def _fill(self, body: memoryview, count: int) -> None:
        self._filled += count
        self.moved_at = time.monotonic()
        if self._filled == len(body):
            self._body = None
            self._take(body)

    def _feed_chunks(self, data: memoryview) -> int:
        chunks, memory = self._chunks, self._settings.memory
        assert chunks is not None
        taken = chunks.feed(data)
        grown = len(chunks.body) - self._size
        self._size += grown
        memory.add(grown)
        self.moved_at = time.monotonic()
        if chunks.done:
            self._chunks = None
            self._take(memoryview(chunks.body))
        elif self._size > _SOME and memory.taken > memory.limit:
            raise HttpError("all memory for bodies is in use; call again in a moment", 503)
        return taken

    # -------------------------------------------------------------- requests

    def _take(self, body: memoryview) -> None:
        """A request is whole."""
        head = self.head
        assert head is not None
        self._stage = HttpStage.ANSWER
        if head.coding and head.error is None:
            self._unpack(head.coding, body)
        else:
            self._handle(head, body)

    def _handle(self, head: KnownHead, body: memoryview) -> None:
        route, method = head.route, head.request.method
        try:
            if head.error is not None or route is None:
                raise head.error or InferenceError("there is nothing here", 404)
            if method not in route.methods and not (method == "HEAD" and "GET" in route.methods):
                allowed = ", ".join(route.methods)
                self.fail(InferenceError(f"{head.request.path[:200]} takes {allowed} only", 405), (("Allow", allowed),))
                return
            route.handle(self, body)
        except InferenceError as error:
            self._not_taken(error.with_traceback(None))

    def _not_taken(self, error: InferenceError) -> None:
        """Answer a request that is refused with nothing begun for it."""
        head = self.head
        if head is not None and head.route is not None:
            head.route.refused(error.status)
        self.fail(error)

    def _unpack(self, coding: str, body: memoryview) -> None:
        """Handle a compressed body; a longer one is unpacked beside the loop."""
        limit = self._settings.limits.body
        if len(body) <= AT_ONCE:
            try:
                whole = unpacked(body, coding, limit)
            except InferenceError as error:
                self._not_taken(error.with_traceback(None))
            else:
                self._unpacked(whole)
            return
        loop = asyncio.get_running_loop()
        loop.run_in_executor(None, unpacked, body, coding, limit).add_done_callback(self._unpacked_later)

    def _unpacked_later(self, future: asyncio.Future[memoryview]) -> None:
        error = future.exception()
        if self.closed:
            return
        if isinstance(error, InferenceError):
            self._not_taken(error.with_traceback(None))
        elif error is not None:
            raise error
        else:
            self._unpacked(future.result())

    def _unpacked(self, body: memoryview) -> None:
        head = self.head
        assert head is not None
        self._settings.memory.add(len(body))
        self._size += len(body)
        self._handle(head, body)

    # -------------------------------------------------------------- answers

    def answer_json(self, value: Any, status: int = 200) -> None:
        """Answer with JSON."""
        self.answer(dumps(value), status)

    def fail(self, error: InferenceError, fields: Sequence[tuple[str, str]] = ()) -> None:
        """Answer with an error."""
        more = (("Retry-After", "1"), *fields) if error.status == 503 else tuple(fields)
        self.answer(dumps({"error": str(error)}), error.status, fields=more)

    def answer(
        self,
        content: bytes,
        status: int = 200,
        binary: Sequence[Any] = (),
        *,
        fields: tuple[tuple[str, str], ...] = (),
        packs: bool = False,
    ) -> None:
        """Answer with ``content``, which is JSON, and arrays behind it. Then the next request is read.

        ``packs``: whether it may be compressed. NVIDIA's client on asyncio takes only the answers of calls so.
        """
        head = self.head
        assert head is not None
        request = head.request
        pieces = [content, *[data for data in binary if len(data)]]
        size = sum(map(len, pieces))
        json_bytes = len(content) if binary else None
        coding = ""
        if packs and head.accepts and SMALLEST <= size <= LARGEST:
            coding = head.accepts
            pieces = [packed(pieces, coding)]
            size = len(pieces[0])
        keep = request.keep_alive and self._stage is not HttpStage.END
        first = answer_head(status, size, json_bytes, coding, keep, request.old, fields)
        if request.method == "HEAD":
            pieces = []
        if size <= SCRATCH:
            self.say([b"".join([first, *pieces])])
        else:
            self.say([first, *pieces])
        self._settings.memory.add(size)
        self._size += size
        self._finished(keep)

    def _finished(self, keep: bool) -> None:
        """The answer is said."""
        self.give_up = None
        self.head = None
        if not keep:
            self._stage = HttpStage.END
        if not self.full:
            self._answered()

    def drained(self) -> None:
        """As `ClientSocket`."""
        if self.head is None:
            self._answered()

    def _answered(self) -> None:
        """The client has taken the answer: its next request, or the end."""
        if self.closed:
            return
        size, self._size = self._size, 0
        self.moved_at = time.monotonic()
        if self._stage is HttpStage.END:
            self._shut_down()
        else:
            self._stage = HttpStage.HEAD
            self.pause(False)
            rest, self._rest = self._rest, bytearray()
            if rest:  # what was sent ahead; within `_parse` there is nothing here
                self._parse(rest, len(rest))
        self._settings.memory.give_back(size)

    # -------------------------------------------------------------- ends

    def _refuse(self, error: HttpError, begins: bytes = b"") -> None:
        """Answer what is no request, or is not read to its end, and hang up."""
        if self.head is not None and self.head.route is not None:
            self.head.route.refused(error.status)
        self._body = self._chunks = None
        self._rest = bytearray()
        self._stage = HttpStage.END
        self.moved_at = time.monotonic()
        said = first_bytes.answer(first_bytes.PAGE, first_bytes.kind_of(begins))
        if not said:
            more = "; the gateway's --max-body allows more" if error.status == 413 else ""
            content = dumps({"error": f"{error}{more}"})
            said = answer_head(error.status, len(content), None, "", False, False, ()) + content
        self.say([said])
        self.head = None
        if not self.full:
            self._answered()

    def _shut_down(self) -> None:
        """Hang up, once the client has what was said: bytes that are not read would end it with a reset."""
        self.send_now()
        if self.full or self.closed:
            return
        if self._over:
            self.close()
            return
        self.pause(False)
        try:
            self.sock.shutdown(socket.SHUT_WR)
        except OSError:
            self.close()

    def _hung_up(self) -> None:
        """The client has sent its last byte. One that waits for an answer has given it up."""
        self.send_now()
        if self.closed:
            return
        if not self.full or self.head is not None:
            self.close()
            return
        self._stage = HttpStage.END
        self.read_no_more()

    def ended(self) -> None:
        """As `ClientSocket`."""
        give_up, self.give_up = self.give_up, None
        if give_up is not None:
            give_up()
        self._body = self._chunks = None
        size, self._size = self._size, 0
        self._settings.memory.give_back(size)

    @property
    def busy(self) -> bool:
        """As `ClientSocket`."""
        return self.head is not None or self.full

    def finish(self) -> None:
        """The gateway ends: hang up, at once or when the request is answered."""
        if self._stage is HttpStage.HEAD:
            self._stage = HttpStage.END
            self._shut_down()
        elif self.head is not None:
            request = self.head.request._replace(keep_alive=False)
            self.head = self.head._replace(request=request)

    def overdue(self, now: float) -> None:
        """As `ClientSocket`."""
        waited = now - self.moved_at
        stage = self._stage
        if self.full:
            if waited > MOVE_S:
                self.close()
        elif stage is HttpStage.HEAD:
            if self._rest and waited > HEAD_S:
                self._refuse(HttpError(f"a head that is not whole within {HEAD_S:g} s", 408))
            elif waited > IDLE_S:
                self.close()
        elif stage is HttpStage.BODY and waited > MOVE_S:
            self._refuse(HttpError(f"a body of which nothing came for {MOVE_S:g} s", 408))
        elif stage is HttpStage.MEMORY and waited > MOVE_S:
            self._refuse(HttpError("all memory for bodies is in use; call again in a moment", 503))
        elif stage is HttpStage.END and waited > END_S:
            self.close()
