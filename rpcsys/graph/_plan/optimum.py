"""Finds the best division of a row of units over devices, by dynamic programming over cut positions and devices."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from rpcsys.graph._plan.chains import Chain, alone
from rpcsys.graph._plan.cost_model import Goal, Matrix, Span, sums

MOST_UNITS = 400  # more cut positions are thinned out: the search holds a few matrices of this number squared


def even(seconds: Sequence[float], devices: int) -> list[Span]:
    """Spans of about the same time, one on each of the first devices; fewer if there are fewer units."""
    return best([sums(seconds)] * min(devices, len(seconds)), "throughput", every=True)


def best(
    costs: Sequence[Matrix], goal: Goal, alike: Sequence[int] | None = None, *, every: bool = False,
    chains: Sequence[Chain] = (),
) -> list[Span]:  # fmt: skip
    """The spans, in the model's order, that reach ``goal`` best; devices that would not help are left out.

    costs : seconds of every span, a matrix for each device
    goal : ``throughput`` minimises the slowest stage, and then the sum of all; ``latency`` minimises the sum
    alike : a class for each device. Devices of one class are used in the order given, classes in any order; by
        default all devices are of one class, so that they keep their order
    every : use every device
    chains : devices of one board that neighbouring stages may use in one call, which costs less than a call for each
    """
    kinds = alike or [0] * len(costs)
    classes = [[i for i, each in enumerate(kinds) if each == kind] for kind in dict.fromkeys(kinds)]
    ways = [alone(device, costs[device]) for members in classes for device in members]
    ways += [chain for chain in chains if all(_in_order(chain.devices, members) for members in classes)]
    found = _shortest(ways, np.add if goal == "latency" else np.maximum, classes, every)
    if goal == "throughput":
        slowest = max(way.costs[start, stop] for way, start, stop in found)
        ways = [way._replace(costs=np.where(way.costs <= slowest, way.costs, np.inf)) for way in ways]
        found = _shortest(ways, np.add, classes, every)
    return [span for way, start, stop in found for span in way.spans(start, stop)]


def _in_order(devices: Sequence[int], members: Sequence[int]) -> bool:
    places = [members.index(device) for device in devices if device in members]
    return places == sorted(places)


def _shortest(
    ways: Sequence[Chain], join: np.ufunc, classes: Sequence[Sequence[int]], every: bool
) -> list[tuple[Chain, int, int]]:
    """Dynamic programming over (the number of devices used of each class, the number of units done)."""
    units = len(ways[0].costs) - 1
    forwards = [np.where(np.tri(units + 1, dtype=bool), np.inf, way.costs) for way in ways]
    reached: dict[tuple[int, ...], NDArray[np.float64]] = {}
    came: dict[tuple[int, ...], tuple[NDArray[np.intp], NDArray[np.intp]]] = {}
    for used in itertools.product(*(range(len(members) + 1) for members in classes)):
        seconds = np.full(units + 1, np.inf)
        if not any(used):
            seconds[0] = 0.0
        way, start = np.full(units + 1, -1), np.full(units + 1, -1)
        for last, number in _lasts(used, ways, classes):
            through = join(reached[number][:, None], forwards[last])
            begin = through.argmin(axis=0)
            found = through[begin, np.arange(units + 1)]
            better = found < seconds
            seconds[better], way[better], start[better] = found[better], last, begin[better]
            if not every and len(ways[last].devices) == 1:  # the device may be unused
                better = reached[number] < seconds
                seconds[better], way[better], start[better] = reached[number][better], last, -1
        reached[used], came[used] = seconds, (way, start)
    return _traced(came, ways, classes, units)


def _lasts(
    used: tuple[int, ...], ways: Sequence[Chain], classes: Sequence[Sequence[int]]
) -> Iterator[tuple[int, tuple[int, ...]]]:
    """Each way that may be the last of ``used``, by its index, and the numbers of devices used before it."""
    done = [members[:count] for members, count in zip(classes, used, strict=True)]
    for index, way in enumerate(ways):
        before = tuple(next((i for i, each in enumerate(some) if each in way.devices), len(some)) for some in done)
        ends = all(number == len(some) or some[-1] in way.devices for number, some in zip(before, done, strict=True))
        if ends and set(way.devices).issubset(itertools.chain(*done)):
            yield index, before


def _traced(
    came: dict[tuple[int, ...], tuple[NDArray[np.intp], NDArray[np.intp]]], ways: Sequence[Chain],
    classes: Sequence[Sequence[int]], units: int,
) -> list[tuple[Chain, int, int]]:  # fmt: skip
    """The ways on the path that ends with all units done and all devices used or left out."""
    used, stop = tuple(map(len, classes)), units
    found: list[tuple[Chain, int, int]] = []
    while any(used):
        way, start = (int(each[stop]) for each in came[used])
        used = dict(_lasts(used, ways, classes))[way]
        if start >= 0:
            found.insert(0, (ways[way], start, stop))
            stop = start
    return found


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
