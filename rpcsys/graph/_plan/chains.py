"""Divides spans of units over devices of one board: a **chain** of stages, which is one call, for every span."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rpcsys.graph._plan.cost_model import Goal, Matrix, Span


class Chain(NamedTuple):
    """Devices of one board in an order, and for every span of units its best division over all of them."""

    devices: tuple[int, ...]
    costs: Matrix  # seconds of the whole call
    slowest: Matrix  # seconds of its slowest stage
    total: Matrix  # seconds of all of its stages
    begins: tuple[NDArray[np.intp], ...] = ()  # for each device but the first: the unit that its stage begins with

    def spans(self, start: int, stop: int) -> list[Span]:
        """The stages of the division of one span."""
        found: list[Span] = []
        for device, begins in zip(self.devices[:0:-1], reversed(self.begins), strict=True):
            begin = int(begins[start, stop])
            found.insert(0, Span(device, begin, stop))
            stop = begin
        return [Span(self.devices[0], start, stop), *found]


def alone(device: int, seconds: Matrix) -> Chain:
    """The chain of one device."""
    return Chain((device,), seconds, seconds, seconds)


def chains(seconds: Mapping[int, Matrix], goal: Goal, *, keep_order: bool = False) -> Iterator[Chain]:
    """Every chain of two devices or more, in any order or in the one given; its costs are those without a link.

    seconds : of every span of units, a matrix for each device of the board
    goal : ``throughput`` divides by the slowest stage, ``latency`` by the sum
    """
    units = len(next(iter(seconds.values())))
    empty = np.tri(units, dtype=bool)
    inside = {device: np.where(empty, np.inf, matrix) for device, matrix in seconds.items()}
    known: dict[tuple[int, ...], Chain] = {}
    known |= {(device,): alone(device, matrix) for device, matrix in inside.items()}
    for count in range(2, len(seconds) + 1):
        orders = itertools.combinations(seconds, count) if keep_order else itertools.permutations(seconds, count)
        for devices in orders:
            chain = known[devices] = _longer(known[devices[:-1]], devices[-1], inside[devices[-1]], goal)
            yield chain


def _longer(chain: Chain, device: int, seconds: Matrix, goal: Goal) -> Chain:
    """The chain with one device more at its end."""
    units = len(seconds)
    join = np.maximum if goal == "throughput" else np.add
    begins = np.empty((units, units), np.intp)
    slowest, total = np.empty((units, units)), np.empty((units, units))
    columns = np.arange(units)
    for start in range(units):
        begin = begins[start] = join(chain.costs[start][:, None], seconds).argmin(axis=0)
        slowest[start] = np.maximum(chain.slowest[start, begin], seconds[begin, columns])
        total[start] = chain.total[start, begin] + seconds[begin, columns]
    costs = slowest if goal == "throughput" else total
    return Chain((*chain.devices, device), costs, slowest, total, (*chain.begins, begins))
