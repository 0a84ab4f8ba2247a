"""The messages of byte streams beside calls: programs' input and output, forwarded connections (docs/wire.md, 3).

Each is a CHUNK with the id of what its streams belong to; its head says what it is, and its body is data. A sender has
a window: `WINDOW` bytes at first, and those that the receiver grants later.
"""

from __future__ import annotations

from typing import Any, Dict, NamedTuple

from rpcsys.errors import ProtocolError
from rpcsys.wire.checks import shown
from rpcsys.wire.frames import Frame

#: Bytes that may be sent on a new stream, in each direction: all that its receiver ever keeps.
WINDOW = 1 << 20
#: More than any window, so that sums of them stay small.
MAX_AMOUNT = 1 << 40
MAX_NUMBER = 1 << 53  # of a stream
MAX_SIGNAL = 64
MAX_SIZE = 0xFFFF  # rows or columns of a terminal
MAX_WHY = 200

DATA, MORE, EOF, STOP, OPEN, SIGNAL, RESIZE, EXIT, CLOSE = OPS = (
    "data",  # the bytes of the body
    "more",  # the receiver takes ``amount`` more bytes
    "eof",  # the sender sends no more, and ``why`` where its descriptor failed
    "stop",  # the receiver takes no more, and ``why`` where its descriptor failed
    "open",  # a new connection
    "signal",  # the number ``amount``, to a program
    "resize",  # of its terminal: ``rows``, ``columns``
    "exit",  # of a program, with the status ``amount``; below zero the signal that ended it
    "close",  # what has the id is over: its program is killed, its connections are closed
)
_OF_STREAMS = (DATA, MORE, EOF, STOP, OPEN)
#: The lowest and the highest ``amount`` of the messages that have one.
_AMOUNTS = {MORE: (1, MAX_AMOUNT), SIGNAL: (1, MAX_SIGNAL), EXIT: (-MAX_SIGNAL, 255)}


class StreamMessage(NamedTuple):
    """A checked message; ``stream`` is -1 for one about all of them."""

    op: str
    stream: int = -1
    amount: int = 0
    rows: int = 0
    columns: int = 0
    why: str = ""

    def fields(self) -> Dict[str, Any]:
        """The head of its CHUNK."""
        fields: Dict[str, Any] = {} if self.op == DATA else {"op": self.op}
        if self.op in _OF_STREAMS:
            fields["s"] = self.stream
        if self.op in _AMOUNTS:
            fields["amount"] = self.amount
        if self.op == RESIZE:
            fields.update(rows=self.rows, columns=self.columns)
        if self.why:
            fields["why"] = self.why
        return fields


def parse(frame: Frame) -> StreamMessage:
    """The message of a CHUNK, cached with its head. Raises `ProtocolError` for what is none."""
    known = frame.parsed.memo
    if type(known) is not StreamMessage:
        known = _checked(frame.parsed.head)
        if frame.parsed.memo is None:
            frame.parsed.memo = known
    if known.op != DATA and len(frame.buffers[0]):
        raise ProtocolError(f"a message of a stream with data: {known.op}")
    return known


def _checked(head: Dict[str, Any]) -> StreamMessage:
    op, why = head.get("op", DATA), head.get("why", "")
    if type(op) is not str or op not in OPS or type(why) is not str or len(why) > MAX_WHY:
        raise ProtocolError(f"no message of a stream: {shown(head)}")
    stream = _number(head, "s", 0, MAX_NUMBER) if op in _OF_STREAMS else -1
    if op in _AMOUNTS:
        return StreamMessage(op, stream, _number(head, "amount", *_AMOUNTS[op]))
    if op == RESIZE:
        return StreamMessage(op, -1, 0, _number(head, "rows", 1, MAX_SIZE), _number(head, "columns", 1, MAX_SIZE))
    return StreamMessage(op, stream, why=why)


def _number(head: Dict[str, Any], name: str, least: int, most: int) -> int:
    value = head.get(name)
    if type(value) is not int or not least <= value <= most:
        raise ProtocolError(f"a message of a stream has {name} from {least} to {most}, not {shown(value)}")
    return value
