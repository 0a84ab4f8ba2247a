"""What disturbed the turns of a board, told by facts that the board states, never by how long a turn took.

Where a model runs in the calling thread alone, it waits for a CPU only because of others: these waits are no time of
its own, and are taken off. So a busy board says nearly what it would say alone. A turn that waited, or lost its CPU, is
disturbed even so: its caches were another's.

Threads of one model wait for each other, too. Then waits and lost CPUs may be the model's own doing, and only a turn in
which other processes had CPU time is disturbed.

All of it treats the turns alike, whoever's they are, so that the tests of `judge` remain exact.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from rpcsys.measure.judge import Blocks, Floats
from rpcsys.measure.schedule import blocks

if TYPE_CHECKING:
    from rpcsys.client.rows import TurnsReport

WAITED = 0.005  # a turn that waited a larger share of its time for a CPU was disturbed
OTHERS = 0.05  # so was one in which others had a larger share of the CPUs, where a model has several threads
ALONE = 0.05  # of a process's CPU time, which other threads have at most where the calling one is alone
FRESH = 5  # blocks; of a round with fewer, the first one counts, too
LEAST_S = 1e-12  # a coarse clock may read zero
_MEANT = ("seconds", "spent", "own_cpu", "thread_cpu", "others_cpu", "waited", "switches")


class Facts:
    """The turns of one board by block and subject, and what the board said of each."""

    def __init__(self, subjects: int) -> None:
        self._subjects = subjects
        self._columns: dict[str, list[list[float]]] = {name: [] for name in _MEANT}
        self._round = itertools.count()
        self._rounds: list[int] = []  # of each block

    def add(self, order: Sequence[int], number: Sequence[int], report: TurnsReport) -> None:
        """Add the turns of a round: ``order`` says whose they are, ``number`` how many calls each had.

        The first block is left out where there are others: the subjects have just been loaded.
        """
        spent = [seconds * number[place] for seconds, place in zip(report["seconds"], order, strict=False)]
        values: Mapping[str, Any] = {**report, "spent": spent}
        for name, column in self._columns.items():
            known = [np.nan if value is None else value for value in values[name]]
            found = blocks(order, known, self._subjects)
            column += found[1:] if len(found) >= FRESH else found
        self._rounds += [next(self._round)] * (len(column) - len(self._rounds))

    def _column(self, name: str) -> Floats:
        return np.array(self._columns[name], float).reshape(-1, self._subjects)

    @property
    def alone(self) -> bool:
        """Whether the models run in the calling thread alone."""
        own = float(self._column("own_cpu").sum())
        return own - float(self._column("thread_cpu").sum()) <= ALONE * own

    @property
    def blocks(self) -> Blocks:
        """The times that are judged, and which turns were disturbed."""
        seconds, spent, waited = map(self._column, ("seconds", "spent", "waited"))
        if not self.alone:
            busy = np.nan_to_num(self._column("others_cpu")) > OTHERS
            return Blocks(np.maximum(seconds, LEAST_S), busy, np.array(self._rounds, int))
        waits = np.nan_to_num(waited)
        lost = (waits > WAITED * spent) | (self._column("switches") > 0)
        left = np.maximum(spent - waits, 0.0)
        own = np.divide(left, spent, out=np.ones_like(spent), where=spent > 0)
        return Blocks(np.maximum(seconds * own, LEAST_S), lost, np.array(self._rounds, int))

    @property
    def others(self) -> float | None:
        """The mean share of the board's CPUs that others took; None where it does not show it."""
        return _mean(self._column("others_cpu"))

    @property
    def waited(self) -> float | None:
        """The share of the turns' time in which they waited for a CPU; None where the board does not show it."""
        waited, spent = self._column("waited"), float(self._column("spent").sum())
        return float(np.nansum(waited)) / spent if spent and not np.isnan(waited).all() else None


def _mean(values: Floats) -> float | None:
    return float(np.nanmean(values)) if values.size and not np.isnan(values).all() else None
