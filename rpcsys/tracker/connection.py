"""One connection of the tracker: bytes to frames, replies to bytes, and what keeps a bad peer in bounds."""

from __future__ import annotations

import asyncio
import logging
import socket
from typing import TYPE_CHECKING, cast

from rpcsys.errors import ProtocolError
from rpcsys.link import acknowledge_at_once
from rpcsys.wire.tracker import FrameReader

if TYPE_CHECKING:
    from rpcsys.tracker.service import Service

log = logging.getLogger(__name__)

BURST = 256
"""Frames of one connection handled in a row before the others have their turn."""

SILENCE_S = 8.0
"""A magic or a frame that was begun must be whole after so long, so that it is dropped within 10 s; and a peer
that reads nothing of what it was sent has so long, too."""

HIGH_WATER = 256 << 10
"""Bytes unsent at which a peer's own frames are left unread."""

MAX_UNSENT = 4 << 20
"""Bytes unsent at which it is dropped: others' actions can make messages for it even while it is not read."""


class Connection(asyncio.Protocol):
    """``number`` is 0 until the magic was said, and then what the state calls the connection."""

    def __init__(self, service: Service, sock: socket.socket, address: str, local: str) -> None:
        self.address = _plain(address)
        self.local = _plain(local)
        self.number = 0
        self._service = service
        self._sock = sock
        self._reader = FrameReader()
        self._out: list[bytes] = []
        self._out_bytes = 0
        self._stuck = False
        self._again = False
        self._waiting_since: float | None = None
        self._stuck_since: float | None = None

    # What the transport calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(HIGH_WATER)
        self._service.strangers[self] = None
        self._waiting_since = self._service.loop.time()

    def data_received(self, data: bytes) -> None:
        self._reader.feed(data)
        if not self._again:
            self._work()

    def pause_writing(self) -> None:
        self._stuck = True
        self._stuck_since = self._service.loop.time()
        self._transport.pause_reading()

    def resume_writing(self) -> None:
        self._stuck = False
        self._stuck_since = None
        self._call_again()

    def connection_lost(self, exc: Exception | None) -> None:
        self._service.lost(self)

    # Frames.

    def _work(self) -> None:
        self._again = False
        try:
            drained = self._handle_frames()
        except ProtocolError as error:
            self._service.flush()
            self.drop(str(error), politely=True)
            return
        self._service.flush()
        if drained:
            self._note_rest()
        elif not self._stuck:  # others have their turn
            self._transport.pause_reading()
            self._call_again()

    def _note_rest(self) -> None:
        """Half a message is here, or none. TVM's clients send the rest only when the first half is
        acknowledged (two small writes, Nagle on); of a whole message our reply is the acknowledgement.
        """
        if not (self._reader.partial or self._reader.magic_due):
            self._waiting_since = None
            return
        acknowledge_at_once(self._sock)
        if self._waiting_since is None:
            self._waiting_since = self._service.loop.time()

    def _handle_frames(self) -> bool:
        """Handle what has arrived, in bounds; whether nothing is left to handle."""
        for _ in range(BURST):
            if self._stuck:
                return False
            if self._transport.is_closing():
                return True
            frame = self._reader.next()
            if not self.number and not self._reader.magic_due:
                self._service.strangers.pop(self, None)
                self.number = self._service.greeted(self)
            if frame is None:
                return True
            self._service.received(self, frame)
            if not self._reader.partial:
                return True
        return False

    def _call_again(self) -> None:
        if not self._again and not self._transport.is_closing():
            self._again = True
            self._service.loop.call_soon(self._continue)

    def _continue(self) -> None:
        self._again = False
        if self._stuck or self._transport.is_closing():
            return
        self._transport.resume_reading()
        self._work()

    # Replies.

    def queue(self, data: bytes) -> None:
        """Send ``data`` with the next flush."""
        if not self._out:
            self._service.to_flush(self)
        self._out.append(data)
        self._out_bytes += len(data)
        if self._out_bytes > HIGH_WATER:
            self.flush()

    def flush(self) -> None:
        """Write what is queued, in one piece."""
        if not self._out:
            return
        data = self._out[0] if len(self._out) == 1 else b"".join(self._out)
        self._out.clear()
        self._out_bytes = 0
        if self._transport.is_closing():
            return
        self._transport.write(data)
        if self._stuck and self._transport.get_write_buffer_size() > MAX_UNSENT:
            self.drop("it does not read what it is sent")

    # Ends.

    def look(self, now: float) -> None:
        """Drop the connection if it was silent too long in the middle of something."""
        if self._stuck_since is not None and now - self._stuck_since > SILENCE_S:
            self.drop("it does not read what it is sent")
        elif self._waiting_since is not None and now - self._waiting_since > SILENCE_S:
            self.drop("it began something and fell silent")

    def drop(self, reason: str, *, politely: bool = False) -> None:
        """End the connection, ``politely`` after what was to be sent. For the state it is gone at once."""
        log.info("connection from %s dropped: %s", self.address, reason)
        self._service.lost(self)
        if politely:
            self._transport.close()
            self._service.strangers[self] = None  # so that `look` ends it if the peer does not read
            self._waiting_since = self._service.loop.time()
        else:
            self._transport.abort()

    def close(self) -> None:
        """End the connection, after what was to be sent."""
        self._transport.close()


def _plain(address: str) -> str:
    """An IPv4 address that comes through an IPv6 socket, as people write it."""
    return address.removeprefix("::ffff:")
