"""Ports of the device that are reached here, and ports of this machine that are reached there."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Callable

from rpcsys.byte_streams import Listener, listening
from rpcsys.errors import UsageError
from rpcsys.pump import Connecting, only_close

if TYPE_CHECKING:
    from typing_extensions import Self

    from rpcsys.client.byte_streams import SessionStreams

Call = Callable[..., Any]


class Forward:
    """A forwarded port, until it is closed. Made by `Session.forward`; a context manager.

    Attributes
    ----------
    port : the port of 127.0.0.1 that is listened at: here, or with ``reverse`` on the device
    """

    def __init__(self, streams: SessionStreams) -> None:
        self._streams = streams
        self._id = streams.new_id()
        self.port = 0

    def _start(self, call: Call, board_port: int, desk_port: int, reverse: bool) -> Forward:
        pump = self._streams.pump
        if reverse:
            self._streams.open(Connecting(pump, self._id, desk_port or board_port), id=self._id)
            self.port = self._asked(call, board_port, reverse)
            return self
        try:
            listener = listening(desk_port)
        except OSError as error:
            raise UsageError(f"cannot listen at port {desk_port} here: {error.strerror}; choose another one") from None
        self._streams.open(only_close, id=self._id)
        self._asked(call, board_port, reverse)
        self.port = listener.getsockname()[1]
        pump.listen(Listener(self._id, listener))
        return self

    def _asked(self, call: Call, board_port: int, reverse: bool) -> int:
        try:
            return int(call("session.forward", self._id, board_port, int(reverse)))
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Listen no longer, and close the connections. Does nothing the second time."""
        self._streams.close(self._id)


def forwarded(streams: SessionStreams, call: Call, board_port: int, desk_port: int, reverse: bool) -> Forward:
    """See `Session.forward`. ``call`` calls one of the session's own functions."""
    return Forward(streams)._start(call, board_port, desk_port, reverse)
