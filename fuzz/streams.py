"""The two streams of a session, in Python and in C: the same bytes give the same frames, or the same error."""

from __future__ import annotations

import random
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from rpcsys import stream as streams
from rpcsys.errors import ProtocolError
from rpcsys.stream import DONT_WAIT, Ended, PythonStream, Stream
from rpcsys.wire import frames
from rpcsys.wire.frames import Frame
from rpcsys.wire.limits import Limits
from rpcsys.wire.values import Out

#: Bytes that are sent before the other side receives: a socket has space for as many.
_PIECE = 32 << 10


def _frame(kind: int, fields: dict[str, Any], *bodies: bytes, **more: int) -> bytes:
    head, buffers = frames.encode_head(fields) if fields else (b"", [])
    return b"".join(map(bytes, frames.pack(kind, 7, head, [*buffers, *bodies], **more)))


def _call(*sizes: int, name: str = "f", fill: int = 1) -> bytes:
    arrays = [memoryview(bytes([fill]) * size) for size in sizes]
    return _frame(frames.CALL, {"f": name, "a": arrays}, deadline_ms=1500)


#: Frames without a buffer, with one, with several, with empty ones; long heads; many in one read.
SEEDS = (
    _call(),
    _call(5),
    _call(1000) + _call(1000, fill=2) + _call(1000, fill=3),
    _call(1000) + _call(1000, name="g") + _call(64) * 2,
    _call(20_000) * 3 + _call(),
    _call(70_000) * 2,
    _call(0),
    _call(0, 63, 0, 64, 5000, 0),
    _call(*[1] * 300),
    _frame(frames.RESULT, {"r": memoryview(b"x" * 300)}, flags=1) * 20,
    _frame(frames.PING, {}) * 50,
    _frame(frames.LOG, {"message": "one\ntwo"}) * 5 + _frame(frames.RESULT, {"r": 1}),
    _frame(frames.LOG, {"message": "x" * 40_000, "more": ["x" * 900] * 30}) * 3,
    _frame(frames.CALL, {"f": "f", "a": ["x" * 900, 1]}) * 2,
    _frame(frames.CALL, {"f": "f", "a": ["x" * 900] * 80}),
    _frame(frames.CALL, {"f": "f", "a": ["x" * 900] * 300}),
    _frame(frames.CALL, {"f": "f", "a": [Out((500,), "float32"), Out((2, 0), "int8")]}),
    _frame(frames.CHUNK, {}, bytes(3000)) * 3 + _frame(frames.CHUNK, {}),
    _frame(frames.CHUNK, {"sha256": "0"}, b"the last piece", flags=frames.LAST),
)
_LIMITS = (
    Limits(max_body=1 << 24),
    Limits(max_body=1 << 24, max_made=1000),
    Limits(max_body=60_000, max_head=100_000),
    Limits(max_body=1000, max_head=200, max_made=0),
)


@dataclass
class Trace:
    """What one stream made of the bytes: at each frame's place a frame, an error's text, or None if it was skipped."""

    found: dict[int, Any] = field(default_factory=dict)
    states: list[tuple[bool, int]] = field(default_factory=list)  # when nothing was left: whether torn, bytes unread
    error: Exception | None = None


def feed(data: bytes, rng: random.Random) -> None:
    """Feed both streams the bytes, after some valid frames, in the same pieces and with the same calls.

    Raises the error that both raise.
    """
    limits = _LIMITS[0] if data in SEEDS else rng.choice(_LIMITS)
    data = b"".join(rng.choices(SEEDS, k=rng.choice((0, 1, 1, 3, 8)))) + data
    seed = rng.random()
    python, native = (_Player(make, limits, data, random.Random(seed)).play() for make in _both())
    for at in python.found.keys() & native.found.keys():
        ours, theirs = python.found[at], native.found[at]
        assert ours == theirs or ours is None or theirs is None, f"at {at}: {ours!r:.300}\nin C: {theirs!r:.300}"
    if None not in python.found.values() and None not in native.found.values():
        assert list(python.found) == list(native.found), f"{list(python.found)[-3:]}, in C {list(native.found)[-3:]}"
        assert python.states == native.states, f"{python.states}\nin C: {native.states}"
    if native.error is not None:
        raise native.error


def _both() -> Sequence[Callable[..., Stream]]:
    return PythonStream, streams.NativeStream


class _Player:
    """Feeds one stream, with calls that ``rng`` chooses; the pieces are the same for both streams."""

    def __init__(self, make: Callable[..., Stream], limits: Limits, data: bytes, rng: random.Random) -> None:
        sockets = socket.socketpair()
        self._sender, self._stream = rng.choice(_both())(sockets[0]), make(sockets[1], limits)
        self._stream.tick(0.001)
        self._data = data
        self._skips = rng.random() < 0.2
        self._flags = 0 if rng.random() < 0.05 else DONT_WAIT
        # Each piece costs system calls, and a tick where the stream waits.
        most = (1, 24, 100, 1000, _PIECE, _PIECE) if len(data) < 5000 else (3000, _PIECE)
        self._most = rng.choice(most) if self._flags else _PIECE
        self._cuts = rng
        self._calls = random.Random(rng.random())
        self._kept: list[tuple[Frame, Any]] = []
        self._at = 0
        self._trace = Trace()

    def play(self) -> Trace:
        try:
            self._play()
        except (ProtocolError, Ended) as error:
            self._trace.error = error if isinstance(error, ProtocolError) else None
            self._trace.found[self._at] = f"{type(error).__name__}: {error}"
        finally:
            self._sender.close()
            self._stream.close()
        assert all(_shown(frame) == before for frame, before in self._kept), "a kept frame has changed"
        return self._trace

    def _play(self) -> None:
        start = 0
        while start < len(self._data):
            end = start + self._cuts.randint(1, self._most)
            piece = memoryview(self._data)[start:end]
            cut = self._cuts.randint(0, len(piece))
            self._sender.send([piece[:cut], b"", piece[cut:]] if self._cuts.random() < 0.3 else [piece])
            start = end
            self._take_all()
        self._sender.close()
        raise AssertionError(f"{self._stream.receive()} came after the end")

    def _take_all(self) -> None:
        """Take all that has come, by `receive` and sometimes by `next` or `skip`."""
        stream = self._stream
        while True:
            if self._skips and self._calls.random() < 0.5:
                self._skip(self._calls.choice((frames.LOG, frames.RESULT, frames.PING, 0, 255)))
            frame = stream.next() if stream.unread and self._calls.random() < 0.5 else None
            if frame is None:
                frame = stream.receive(self._flags)
            if frame is None:
                break
            self._took(frame)
        self._trace.states.append((stream.torn, stream.unread))

    def _took(self, frame: Frame) -> None:
        assert self._stream.torn
        if self._calls.random() < 0.5:
            self._stream.settle()
            assert not self._stream.torn
        shown = self._trace.found[self._at] = _shown(frame)
        self._at += _length(self._data, self._at)
        if self._calls.random() < 0.5:
            self._kept.append((frame, shown))

    def _skip(self, kind: int) -> None:
        count, skipped = self._stream.skip(kind)
        end = self._at + len(skipped)
        assert skipped == self._data[self._at : end]
        for _ in range(count):
            assert self._data[self._at + 4] == kind
            self._trace.found[self._at] = None
            self._at += _length(self._data, self._at)
        assert self._at == end


def _length(data: bytes, at: int) -> int:
    head_bytes, *_, body_bytes = frames.HEADER.unpack_from(data, at)
    return int(frames.HEADER_BYTES + head_bytes + body_bytes)


def _shown(frame: Frame) -> tuple[Any, ...]:
    parsed, whole = frame.parsed, [bytes(buffer) for buffer in frame.buffers]
    numbers: list[int] = [getattr(frame, name) for name in ("kind", "flags", "deadline_ms", "call_id")]
    assert [bytes(frame.buffer(number)) for number in range(len(whole))] == whole
    return (*numbers, repr(parsed.head), parsed.sizes, whole)
