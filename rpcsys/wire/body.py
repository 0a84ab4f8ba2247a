"""The body of a frame, as it comes."""

from __future__ import annotations

from typing import Callable

from rpcsys.wire.frames import Frame


class Body:
    """The body of one frame while it is received: which buffer is being filled, and how far."""

    __slots__ = ("_buffers", "_filled", "_index", "frame", "remaining")

    def __init__(self, frame: Frame, size: int) -> None:
        self.frame = frame
        self._buffers = frame.buffers
        self.remaining = size
        self._index = 0
        self._filled = 0

    def space(self) -> memoryview:
        buffer = self._buffers[self._index]
        while self._filled == len(buffer):
            self._index += 1
            self._filled = 0
            buffer = self._buffers[self._index]
        view: memoryview = buffer[self._filled :]
        return view

    def read(self, fill: Callable[[memoryview, int, int], int], flags: int) -> None:
        """Receive once with ``fill``, as `FrameReader.read`; little besides, since 64 MB come in hundreds of reads."""
        buffer = self._buffers[self._index]
        count = fill(buffer[self._filled :] if self._filled < len(buffer) else self.space(), 0, flags)
        if not count:
            raise EOFError
        self._filled += count
        self.remaining -= count

    def filled(self, count: int) -> None:
        self._filled += count
        self.remaining -= count

    def take(self, data: memoryview) -> int:
        """Copy what belongs to this body from ``data``; the number of bytes taken."""
        taken = 0
        while self.remaining and taken < len(data):
            space = self.space()
            count = min(len(space), len(data) - taken)
            space[:count] = data[taken : taken + count]
            self.filled(count)
            taken += count
        return taken
