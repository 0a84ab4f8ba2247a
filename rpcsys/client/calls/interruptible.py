"""A session's stream that stays usable after Ctrl-C, or whatever else the handler of a signal raises.

Python runs such a handler between any two bytecodes: after a system call has moved bytes, and before its result is
stored. So C code stores it here: ``list.extend`` of a ``map``, inside which no handler runs.
"""

from __future__ import annotations

import socket
import time
from typing import Callable, List, Optional, Sequence, Tuple

from rpcsys.errors import RpcsysError
from rpcsys.stream import BLOCKING, MAX_PIECES, NOT_BLOCKING, Ended, Stream, ended, rest_of
from rpcsys.wire.frames import Buffer, Frame
from rpcsys.wire.reader import FrameReader

Action = Callable[[], None]
_NOTHING: Tuple[Sequence[Buffer], Sequence[int], Optional[Action]] = ((), (), None)


class InterruptibleStream(Stream):
    """A `Stream` that knows what an interruption has left: of a frame that arrives, and of frames that are sent."""

    def __init__(self, sock: socket.socket, reader: Optional[FrameReader] = None) -> None:
        super().__init__(sock, reader)
        #: An interruption that came with received bytes; to be raised once their frame is handled.
        self.late: Optional[BaseException] = None
        self._received: List[int] = []  # not empty from the receipt of bytes until they, or their frame, are handled
        self._sending = _NOTHING  # pieces, how many bytes of them were sent each time, and ``begun`` of `send`
        self._system_recv_into, self._recv_into = self._recv_into, self._receive_into
        self._system_send, self._system_sendmsg = sock.send, sock.sendmsg

    # -------------------------------------------------------------- receiving

    @property
    def torn(self) -> bool:
        """Whether received bytes or a frame are lost, if the receipt or the handling of a frame was interrupted."""
        return bool(self._received)

    def settle(self) -> None:
        """The frame that was received last is handled, or may be lost: it is not `torn`."""
        self._received.clear()

    def raise_late(self) -> None:
        """Raise the late interruption, if there is one; the last frame is handled."""
        error, self.late = self.late, None
        if error is not None:
            self.settle()
            raise error

    def receive(self, flags: int = 0) -> Optional[Frame]:
        """As `Stream.receive`. The frame counts as handled at the next call, or when it is settled."""
        received, reader = self._received, self.reader
        received.clear()
        frame = None
        try:
            if reader.unread:
                received.append(0)
                frame = reader.next()
            while frame is None:
                frame = reader.read(self._recv_into, flags)
        except BlockingIOError:
            return None
        except (EOFError, OSError) as error:
            raise ended(error) from None
        return frame

    def next(self) -> Optional[Frame]:
        """As `Stream.next`; as for `receive`."""
        received = self._received
        received.clear()
        received.append(0)
        frame = super().next()
        if frame is None:
            received.clear()
        return frame

    def _receive_into(self, place: memoryview, count: int, flags: int) -> int:
        received = self._received
        received.clear()
        try:
            received.extend(map(self._system_recv_into, (place,), (count,), (flags,)))
        except BaseException as error:
            if not received:
                raise
            self.late = error
        return received[0]

    # -------------------------------------------------------------- sending

    def send(
        self,
        pieces: Sequence[Buffer],
        on_full: Optional[Action] = None,
        patient: bool = False,
        begun: Optional[Action] = None,
    ) -> None:
        """As `Stream.send`. ``begun`` is called before the first byte is sent: from then on, `resume` sends the rest.

        After an interruption it may be called again.
        """
        sent: List[int] = []
        self._sending = (pieces, sent, begun)
        if begun is not None:
            begun()
        flags = BLOCKING if on_full is None or patient else NOT_BLOCKING
        while pieces:
            try:
                if len(pieces) == 1:
                    sent.extend(map(self._system_send, pieces, (flags,)))
                else:
                    sent.extend(map(self._system_sendmsg, (pieces[:MAX_PIECES],), ((),), (flags,)))
            except BlockingIOError:
                if on_full is not None:
                    on_full()
                continue
            except OSError as error:
                raise ended(error) from None
            if sent[-1] == sum(map(len, pieces)):
                break
            pieces = rest_of(pieces, sent[-1])
        self._sending = _NOTHING

    def resume(self, on_full: Action, seconds: float) -> bool:
        """Send the rest of the frames whose sending was interrupted; False if the peer has not taken it in time."""
        pieces, sent, begun = self._sending
        until = time.monotonic() + seconds

        def wait() -> None:
            if time.monotonic() >= until:
                raise Ended("the peer reads nothing")
            on_full()

        try:
            self.send(rest_of(pieces, sum(sent)), wait, begun=begun)
        except (Ended, RpcsysError):
            return False
        return True
