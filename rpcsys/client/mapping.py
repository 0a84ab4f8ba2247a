"""The calls of `RemoteFunction.map`: many under way, results in order."""

from __future__ import annotations

from collections import deque
from itertools import islice
from typing import Any, Callable, Deque, Iterator, List, Optional, Sequence, Tuple

from rpcsys.client.calls import Channel, PendingCall
from rpcsys.client.calls.channel import BATCH
from rpcsys.wire.frames import Buffer, Frame, FrameTemplate

Row = Tuple[Any, ...]
Convert = Callable[[Frame], Any]
#: A call's template and buffers, and the converter of its result if it is not the usual one.
Encoded = Tuple[FrameTemplate, Sequence[Buffer], Optional[Convert]]


class MappedCall(PendingCall):
    """A call under way, without the cost of a future."""

    submitted = True
    convert: Optional[Convert] = None


class MappedCalls:
    """Makes one call for each row of arguments, at most ``ahead`` at a time.

    ``encode`` encodes a call, and ``encode_rows`` several calls without arrays, as `rpcsys.speedups.Exchange.encode`.
    """

    def __init__(
        self,
        channel: Channel,
        encode: Callable[[Row], Encoded],
        encode_rows: Callable[[List[Row]], Optional[Tuple[bytes, int]]],
        convert: Convert,
        ahead: int,
    ) -> None:
        self._channel = channel
        self._encode = encode
        self._encode_rows = encode_rows
        self._convert = convert
        self._batch = min(BATCH, ahead)
        self._most = ahead - self._batch  # calls under way up to which another batch is sent
        self._calls: Deque[MappedCall] = deque()  # under way, the oldest first
        self._end: Optional[Exception] = None  # why no more rows come, if an error ended them

    def results(self, rows: Iterator[Row]) -> Iterator[Any]:
        """The results in order, then the error of a row that could not be drawn or sent.

        Whatever ends the iteration has the device drop the calls that wait.
        """
        calls, batch = self._calls, self._batch
        started = batch
        try:
            while calls or started == batch:
                while started == batch and len(calls) <= self._most:
                    started = self._start(self._draw(rows))
                if calls:
                    yield self._result(calls[0])
            if self._end is not None:
                raise self._end
        finally:
            self._end = None  # it refers to this frame
            if calls:
                self._channel.drop(calls)

    def _draw(self, rows: Iterator[Row]) -> List[Row]:
        """The next rows, fewer than a batch if they end."""
        drawn: List[Row] = []
        try:
            drawn.extend(islice(rows, self._batch))  # keeps those before an error
        except Exception as error:  # noqa: BLE001 - whatever the caller's iterable raises
            self._end = error
        return drawn

    def _start(self, rows: List[Row]) -> int:
        """Start the calls of ``rows``; returns their number, which is less where one cannot be sent."""
        channel = self._channel
        calls = [MappedCall() for _ in rows]
        if len(rows) > 1:
            self._calls.extend(calls)
            if channel.start_rows(calls, lambda: self._encode_rows(rows)):
                return len(rows)
            for _ in rows:
                self._calls.pop()
        for number, (call, row) in enumerate(zip(calls, rows)):
            try:
                template, buffers, call.convert = self._encode(row)
            except Exception as error:  # noqa: BLE001 - an argument's own, too
                self._end = error
                return number
            self._calls.append(call)
            channel.start(call, template, buffers)
        return len(rows)

    def _result(self, call: MappedCall) -> Any:
        if not call.answered:
            call.submitted = False  # a thread waits for it now
            self._channel.flush()
        frame = self._channel.finish(call)
        self._calls.popleft()
        make = call.convert or frame.parsed.memo or self._convert
        return make(frame)
