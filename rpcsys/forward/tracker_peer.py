"""A tracker connection of this desk, and its link to the lab's tracker, which is made again when it is needed."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections import deque
from collections.abc import Callable
from typing import Any

from rpcsys.errors import LimitExceeded, ProtocolError, RpcsysError, one_line
from rpcsys.forward.state import ForwardState, failure, is_hello
from rpcsys.link.link import Link
from rpcsys.link.tcp import acknowledge_at_once, drain_and_close
from rpcsys.wire.tracker import MAGIC_BYTES, SUCCESS, TrackerFrameReader, decode_json, encode

log = logging.getLogger(__name__)
RECEIVED = 64 << 10  # bytes of one read
MAX_UNSENT = 4 << 20  # with so many bytes unsent, the client counts as lost
MAX_UNANSWERED = 10_000  # messages under way


class TrackerPeer:
    """Forwards the messages of the client on ``sock``, whose magic was read.

    ``open_link()`` connects to the lab's tracker, and may raise `RpcsysError`; ``report(why)`` is called when it is
    lost, and ``on_end(peer)`` once.
    """

    def __init__(
        self, sock: socket.socket, state: ForwardState, open_link: Callable[[], Link],
        report: Callable[[str], None], on_end: Callable[[TrackerPeer], None],
    ) -> None:  # fmt: skip
        self._sock, self._state, self._open_link, self._on_end = sock, state, open_link, on_end
        self._report = report
        self._loop = asyncio.get_running_loop()
        self._reader = TrackerFrameReader(magic=False)
        self._unsent = bytearray()
        self._link: Link | None = None
        self._up = False  # whether the link has answered the hello
        self._waiting: deque[Any] = deque()  # messages until then
        self._unanswered: deque[Any] = deque()
        self._closed = False
        self._loop.add_reader(sock.fileno(), self._receive)
        self._send(MAGIC_BYTES)

    # The client

    def _receive(self) -> None:
        try:
            data = self._sock.recv(RECEIVED)
            if not data:
                self.close()
                return
            self._reader.feed(data)
            while not self._closed and (frame := self._reader.next()) is not None:
                self._take(decode_json(frame))
        except BlockingIOError:
            return
        except OSError:
            self.close()
        except ProtocolError as error:
            log.warning("a tracker connection was closed: %s", one_line(error))
            self.close()
        else:
            # TVM's clients send the second half of a message when the first is acknowledged.
            if self._reader.partial and not self._closed:
                acknowledge_at_once(self._sock)

    def _take(self, message: Any) -> None:
        answer = self._state.own_answer(message)
        if answer is not None:
            self._send(encode(answer))
            return
        if len(self._waiting) + len(self._unanswered) >= MAX_UNANSWERED:
            raise LimitExceeded(f"{MAX_UNANSWERED} messages are not answered yet")
        self._waiting.append(message)
        self._forward()

    def _send(self, data: bytes) -> None:
        self._unsent += data
        if len(self._unsent) > MAX_UNSENT:
            self.close()
        else:
            self._flush()

    def _flush(self) -> None:
        if self._closed:
            return
        try:
            del self._unsent[: self._sock.send(self._unsent)]
        except BlockingIOError:
            pass
        except OSError:
            self.close()
            return
        if self._unsent:
            self._loop.add_writer(self._sock.fileno(), self._flush)
        else:
            self._loop.remove_writer(self._sock.fileno())

    # The tracker

    def advance(self) -> None:
        """Handle what the tracker has sent. To be called regularly, too, so that the link gives up in time."""
        if self._link is None:
            return
        try:
            messages = self._link.advance()
            if self._link.ready and not self._up:
                self._up = True
                self._forward()
        except RpcsysError as error:
            self._lost(error)
            return
        for message in messages:
            self._answered(message)
            self._send(encode(self._state.reply(message, self._loop.time())))

    def _forward(self) -> None:
        """Send what waits, as soon as the link is there."""
        try:
            if self._link is None:
                self._link = self._open_link()
                self._loop.add_reader(self._link.fileno(), self.advance)
            while self._up and self._waiting:
                message = self._waiting.popleft()
                if is_hello(message):
                    self._send(encode(self._link.tracker if self._link.ours else SUCCESS))
                else:
                    self._unanswered.append(message)
                    self._link.send(message)
        except RpcsysError as error:
            self._lost(error)

    def _answered(self, message: Any) -> None:
        """Forget the message that this one answers: ours by its id, the oldest one of TVM's."""
        number = message.get("id") if type(message) is dict else None
        if type(message) is dict and "event" in message:
            return
        for asked in self._unanswered:
            if (asked.get("id") if type(asked) is dict else None) == number:
                self._unanswered.remove(asked)
                return

    def _lost(self, error: RpcsysError) -> None:
        """The link has ended: what is not answered has failed. The next message makes a new link."""
        self._report(one_line(error))
        failed = [*self._unanswered, *self._waiting]
        self._close_link()
        for message in failed:
            self._send(encode(failure(message, error)))

    def _close_link(self) -> None:
        self._unanswered.clear()
        self._waiting.clear()
        self._up = False
        if self._link is not None:
            self._loop.remove_reader(self._link.fileno())
            self._link.close()
            self._link = None

    def close(self) -> None:
        """End both connections. A second call does nothing."""
        if self._closed:
            return
        self._closed = True
        self._close_link()
        self._loop.remove_reader(self._sock.fileno())
        self._loop.remove_writer(self._sock.fileno())
        drain_and_close(self._sock)
        self._on_end(self)
