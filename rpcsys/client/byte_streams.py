"""The byte streams of a client's session: a pump for their local ends, and a thread that reads while there are any."""

from __future__ import annotations

import contextlib
import logging
import threading
from typing import Any, Dict, Optional, Sequence

from rpcsys.byte_streams import ByteStream
from rpcsys.client.calls import Channel, PendingCall
from rpcsys.errors import NotSupported, RpcsysError
from rpcsys.pump import Handler, Pump
from rpcsys.wire import frames
from rpcsys.wire.byte_streams import CLOSE, StreamMessage
from rpcsys.wire.frames import Buffer

_log = logging.getLogger("rpcsys.session")


class SessionStreams:
    """All byte streams of one session. For any number of threads."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._lock = threading.Lock()
        self._reading: Optional[PendingCall] = None  # completed when nothing is left to read for
        self.pump = Pump(self._send)
        self.pump.on_failed = lambda why: _log.warning("a connection ended on the device: %s", why)
        channel.on_streams(self.pump.take)

    @property
    def broken(self) -> Optional[RpcsysError]:
        """The error that ended the session, or None."""
        return self._channel.broken

    def new_id(self) -> int:
        """An id for streams that belong together. Raises the error that ended the session, if it is over."""
        if self.broken is not None:
            raise self.broken
        return self._channel.new_id()

    def open(self, handler: Handler, *streams: ByteStream, id: int) -> None:
        """Take the messages with ``id`` (of `new_id`) from now on, and read the session for them."""
        with self._lock:
            self.pump.register(id, handler, *streams)
            if self._reading is None:
                self._reading = PendingCall()
                threading.Thread(
                    target=self._read, args=(self._reading,), name="rpcsys-streams-reader", daemon=True
                ).start()

    def close(self, id: int) -> None:
        """Close the streams of ``id``, and have the device do the same. The session may be lost already."""
        with self._lock:
            self.pump.tell(id, StreamMessage(CLOSE))
            self.pump.release(id)
            if self.pump.idle and self._reading is not None:
                self._reading.complete(None)
                self._reading = None

    def _read(self, until: PendingCall) -> None:
        with contextlib.suppress(RpcsysError):
            self._channel.wait(until)
        if self._channel.broken is not None:
            self.pump.close()

    def _send(self, id: int, fields: Dict[str, Any], buffers: Sequence[Buffer]) -> None:
        self._channel.send(frames.CHUNK, id, fields, buffers)


def check_able(info: Dict[str, Any]) -> None:
    """Raise `NotSupported` where the server of this HELLO is older than byte streams."""
    if "exec" not in info.get("capabilities", {}):
        raise NotSupported("the device's server is older than programs and forwarded ports: update rpcsys there")
