"""Finds the best division of a row of units over devices, by dynamic programming over cut positions and devices."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from rpcsys.graph._plan.cost_model import Goal, Matrix, Span, sums

MOST_UNITS = 400  # more cut positions are thinned out: the search holds a few matrices of this number squared


def even(seconds: Sequence[float], devices: int) -> list[Span]:
    """Spans of about the same time, one on each of the first devices; fewer if there are fewer units."""
    return best([sums(seconds)] * min(devices, len(seconds)), "throughput", every=True)


def best(costs: Sequence[Matrix], goal: Goal, alike: Sequence[int] | None = None, *, every: bool = False) -> list[Span]:
    """The spans, in the model's order, that reach ``goal`` best; devices that would not help are left out.

    costs : seconds of every span, a matrix for each device
    goal : ``throughput`` minimises the slowest stage, and then the sum of all; ``latency`` minimises the sum
    alike : a class for each device. Devices of one class are used in the order given, classes in any order; by
        default all devices are of one class, so that they keep their order
    every : use every device
    """
    if goal == "latency":
        return _shortest(costs, np.add, alike, every)
    spans = _shortest(costs, np.maximum, alike, every)
    slowest = max(costs[span.device][span.start, span.stop] for span in spans)
    within = [np.where(matrix <= slowest, matrix, np.inf) for matrix in costs]
    return _shortest(within, np.add, alike, every)


def _shortest(costs: Sequence[Matrix], join: np.ufunc, alike: Sequence[int] | None, every: bool) -> list[Span]:
    """Dynamic programming over (the number of devices used of each class, the number of units done)."""
    units = len(costs[0]) - 1
    kinds = alike or [0] * len(costs)
    classes = [[i for i, each in enumerate(kinds) if each == kind] for kind in dict.fromkeys(kinds)]
    forwards = [np.where(np.tri(units + 1, dtype=bool), np.inf, matrix) for matrix in costs]
    reached: dict[tuple[int, ...], NDArray[np.float64]] = {}
    came: dict[tuple[int, ...], tuple[NDArray[np.intp], NDArray[np.intp]]] = {}
    for used in itertools.product(*(range(len(members) + 1) for members in classes)):
        seconds = np.full(units + 1, np.inf)
        if not any(used):
            seconds[0] = 0.0
        device, start = np.full(units + 1, -1), np.full(units + 1, -1)
        for last, number in _lasts(used, classes):
            through = join(reached[number][:, None], forwards[last])
            begin = through.argmin(axis=0)
            found = through[begin, np.arange(units + 1)]
            better = found < seconds
            seconds[better], device[better], start[better] = found[better], last, begin[better]
            if not every:  # the device may be unused
                better = reached[number] < seconds
                seconds[better], device[better], start[better] = reached[number][better], last, -1
        reached[used], came[used] = seconds, (device, start)
    return _traced(came, classes, units)


def _lasts(used: tuple[int, ...], classes: Sequence[Sequence[int]]) -> Iterator[tuple[int, tuple[int, ...]]]:
    """Each device that may be the last of ``used``, and the numbers of devices used before it."""
    for kind, count in enumerate(used):
        if count:
            yield classes[kind][count - 1], (*used[:kind], count - 1, *used[kind + 1 :])


def _traced(
    came: dict[tuple[int, ...], tuple[NDArray[np.intp], NDArray[np.intp]]], classes: Sequence[Sequence[int]], units: int
) -> list[Span]:
    """The spans on the path that ends with all units done and all devices used or left out."""
    used, stop = tuple(map(len, classes)), units
    spans: list[Span] = []
    while any(used):
        device, start = (int(each[stop]) for each in came[used])
        used = dict(_lasts(used, classes))[device]
        if start >= 0:
            spans.insert(0, Span(device, start, stop))
            stop = start
    return spans


def thinned(positions: Sequence[int], seconds: Sequence[float], crossing: Sequence[float]) -> list[int]:
    """At most `MOST_UNITS` - 1 of the cut ``positions``: in each slice of time the one with the fewest bytes to cross.

    ``seconds`` are those of the nodes; ``crossing`` are the bytes at each of ``positions``.
    """
    if len(positions) < MOST_UNITS:
        return list(positions)
    passed = sums(seconds)[0]
    slices: dict[int, int] = {}
    for place, position in enumerate(positions):
        slot = int(passed[position] / max(passed[-1], 1e-12) * (MOST_UNITS - 2))
        if slot not in slices or crossing[place] < crossing[slices[slot]]:
            slices[slot] = place
    return [positions[place] for place in sorted(slices.values())]
