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

    def results(self, rows: Iterator[Row]) -> Iterator[Any]:
        """The results in order. Whatever ends the iteration has the device drop the calls that wait."""
        calls, batch = self._calls, self._batch
        started = batch
        try:
            while calls or started == batch:
                while started == batch and len(calls) <= self._most:
                    started = self._start(list(islice(rows, batch)))
                if calls:
                    yield self._result(calls[0])
        finally:
            if calls:
                self._channel.drop(calls)

    def _start(self, rows: List[Row]) -> int:
        """Start the calls of ``rows``; returns their number."""
        channel = self._channel
        calls = [MappedCall() for _ in rows]
        if len(rows) > 1:
            self._calls.extend(calls)
            if channel.start_rows(calls, lambda: self._encode_rows(rows)):
                return len(rows)
            for _ in rows:
                self._calls.pop()
        for call, row in zip(calls, rows):
            template, buffers, call.convert = self._encode(row)
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
