"""How much of what a device prints is taken. Decisions only: no clock, no socket."""

from __future__ import annotations

from typing import Callable, List, Tuple

from rpcsys.wire.frames import Frame
from rpcsys.wire.head import ParsedHead

#: What is taken of one device: so much at once, and as much again in `REFILL_S`. Reading it must not keep anybody
#: from a reply, and a line may cost 100 us where it is logged.
MOST_LINES = 10_000
MOST_LETTERS = 4 << 20
REFILL_S = 5.0


class LogLimit:
    """Takes `MOST_LINES` and `MOST_LETTERS` of one device, and as much again in `REFILL_S`."""

    def __init__(self) -> None:
        self._at = 0.0
        self._lines, self._letters = float(MOST_LINES), float(MOST_LETTERS)
        self._lost = 0

    def taken(self, frame: Frame, now: float, skip: Callable[[], int]) -> List[Frame]:
        """The LOG frames to be taken in place of this one: it, none, or before it one that says what was left out.

        Where it is none, ``skip`` drops those that came with it, and says how many lines they are.
        """
        refilled = max(0.0, now - self._at) / REFILL_S
        self._at = now
        self._lines = min(MOST_LINES, self._lines + refilled * MOST_LINES)
        self._letters = min(MOST_LETTERS, self._letters + refilled * MOST_LETTERS)
        lines, letters = _measured(frame)
        if lines > self._lines or letters > self._letters:
            self._lost += lines + skip()
            return []
        self._lines -= lines
        self._letters -= letters
        if not self._lost:
            return [frame]
        left_out = ParsedHead({"message": gap(self._lost)}, ())
        self._lost = 0
        return [Frame(frame.kind, 0, 0, 0, left_out, ()), frame]


def _measured(frame: Frame) -> Tuple[int, int]:
    """Lines and letters of a LOG frame, counted where they lie."""
    said = frame.parsed.head.get("message")
    if type(said) is str:
        return 1 + said.count("\n"), len(said)
    letters = frame.parsed.weight
    if letters > MOST_LETTERS:
        return 1, letters
    return 1 + sum(bytes(buffer).count(b"\n") for buffer in frame.buffers), letters


def gap(lines: object) -> str:
    """What stands in the place of lines that were lost."""
    return f"({lines} lines are missing here: they came faster than they were read)"
