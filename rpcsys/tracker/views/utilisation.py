"""The averages of each key's devices, leases and waiting requests over the last day."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rpcsys.tracker.records import Records

SAMPLE_S = 5.0  # how often a sample is taken
#: Averages of ten minutes, for a day.
STEP_S = 600
STEPS = 144
MAX_KEYS = 500  # keys that are sampled
#: The start of the ten minutes, the key, the number of samples; averages of slots, leased and waiting.
Row = tuple[int, str, int, float, float, float]


class Utilisation:
    """Averages by key. After a restart, `add` restores what `rows` has returned."""

    def __init__(self) -> None:
        self._steps: dict[int, dict[str, list[float]]] = {}

    def sample(self, records: Records, at: float) -> None:
        """Add a sample of the current state."""
        begin = int(at) // STEP_S * STEP_S
        step = self._steps.get(begin)
        if step is None:
            step = self._steps[begin] = {}
            for old in [other for other in self._steps if other <= begin - STEPS * STEP_S]:
                del self._steps[old]
        for key, queue in records.queues.items():
            if key not in step and len(step) >= MAX_KEYS:
                continue
            sums = step.setdefault(key, [0, 0.0, 0.0, 0.0])
            sums[0] += 1
            sums[1] += sum(records.peers[conn].slots for conn in queue.servers)
            sums[2] += len(queue.leases)
            sums[3] += len(queue.waiting)

    def rows(self, at: float) -> list[Row]:
        """The averages of the ten minutes around ``at``."""
        begin = int(at) // STEP_S * STEP_S
        return [
            (begin, key, int(looks), slots / looks, leased / looks, waiting / looks)
            for key, (looks, slots, leased, waiting) in self._steps.get(begin, {}).items()
        ]

    def add(self, rows: Iterable[Row]) -> None:
        """Add averages of an earlier run."""
        for begin, key, looks, *averages in rows:
            self._steps.setdefault(begin, {})[key] = [looks, *(average * looks for average in averages)]

    def day(self, at: float) -> dict[str, Any]:
        """The last day, or the time since the first sample: ``begin`` (seconds since 1970) and ``step_s``; by key, for
        each step, averages or None.
        """
        last = int(at) // STEP_S * STEP_S
        oldest = last - (STEPS - 1) * STEP_S
        first = min((begin for begin, step in self._steps.items() if step and oldest <= begin <= last), default=last)
        begins = range(first, last + 1, STEP_S)
        names = sorted({key for begin in begins for key in self._steps.get(begin, ()) if key})[:MAX_KEYS]
        keys = {key: [_averages(self._steps.get(begin, {}).get(key)) for begin in begins] for key in names}
        return {"begin": begins[0], "step_s": STEP_S, "keys": keys}


def _averages(sums: list[float] | None) -> list[float] | None:
    return None if sums is None else [round(each / sums[0], 2) for each in sums[1:]]
