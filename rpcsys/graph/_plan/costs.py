"""The costs of a search: the model's times of spans and calls on devices, corrected by measurements."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np

from rpcsys.graph._plan.chains import Chain, alone, chains
from rpcsys.graph._plan.cost_model import Board, DeviceLink, Goal, Matrix, Span, Traffic, sums


class Costs:
    """The expected times of devices, corrected by measurements.

    ``seconds`` are of each unit, on any one machine: after a device was measured only their proportions count.
    ``links`` has the link to each device, None for this machine; for a device of one of ``boards`` it is the way from
    the board's memory.
    """

    def __init__(
        self, seconds: Sequence[float], links: Sequence[DeviceLink | None], traffic: Traffic,
        boards: Sequence[Board] = (),
    ) -> None:  # fmt: skip
        self.traffic = traffic
        self._links = links
        self._boards = boards
        self._weights = [np.array(seconds, float) for _ in links]
        self._known: list[dict[tuple[int, int], float]] = [{} for _ in links]
        self._calls: dict[tuple[Span, ...], float] = {}

    def work_s(self, span: Span) -> float:
        """Seconds of its units on its device, without transfers."""
        return float(self._weights[span.device][span.start : span.stop].sum())

    def stage_s(self, span: Span) -> float:
        """Seconds between two of its results, if frames arrive without pause."""
        return float(self.matrix(span.device)[span.start, span.stop])

    def matrix(self, device: int) -> Matrix:
        """`stage_s` of all spans on a device, as a matrix."""
        seconds = self.inside(device)
        for board in self._boards:
            if device in board.devices:
                return self._call(board, alone(device, seconds)).costs
        return seconds

    def chains(self, goal: Goal, *, keep_order: bool = False) -> list[Chain]:
        """The chains of two devices or more of each board, with the seconds of their calls."""
        found = []
        for board in self._boards:
            inside = {device: self.inside(device) for device in board.devices}
            found += [self._call(board, chain) for chain in chains(inside, goal, keep_order=keep_order)]
        return found

    def calls_s(self, spans: Sequence[Span]) -> list[float]:
        """Seconds of each call of a division; neighbours on one board are one call."""
        board_of = {device: number for number, board in enumerate(self._boards) for device in board.devices}
        calls = [list(each) for _, each in itertools.groupby(spans, lambda span: board_of.get(span.device, span))]
        return [self._call_s(call) for call in calls]

    def _call_s(self, spans: Sequence[Span]) -> float:
        if len(spans) == 1:
            return self.stage_s(spans[0])
        if tuple(spans) in self._calls:
            return self._calls[tuple(spans)]
        turns = [float(self.inside(span.device)[span.start, span.stop]) for span in spans]
        link = next(board.link for board in self._boards if spans[0].device in board.devices)
        ends = spans[0].start, spans[-1].stop
        return float(link.pace(sum(turns), self.traffic.taken[ends], self.traffic.given[ends], max(turns)))

    def _call(self, board: Board, chain: Chain) -> Chain:
        """A chain with the costs of its calls: the link to its board, and what was measured of them."""
        costs = board.link.pace(chain.total, self.traffic.taken, self.traffic.given, chain.slowest)
        for spans, measured in self._calls.items():
            start, stop = spans[0].start, spans[-1].stop
            if tuple(span.device for span in spans) == chain.devices and tuple(chain.spans(start, stop)) == spans:
                costs[start, stop] = measured
        return chain._replace(costs=costs)

    def inside(self, device: int) -> Matrix:
        """Seconds of all spans on a device in its turn: without the link to its board, if it is a part of one."""
        seconds = sums(self._weights[device])
        link = self._links[device]
        if link is not None:
            seconds = link.pace(seconds, self.traffic.taken, self.traffic.given)
        for (start, stop), measured in self._known[device].items():
            seconds[start, stop] = measured
        return seconds

    def learn(self, span: Span, work_s: float, stage_s: float) -> None:
        """Record a measured span: the seconds of its work alone, and of the whole stage.

        A device's first measurement scales all of its units, each later one the units of its span.
        """
        weights = self._weights[span.device]
        expected = self.work_s(span)
        scaled = slice(span.start, span.stop) if self._known[span.device] else slice(None)
        if expected > 0 and work_s > 0:
            weights[scaled] *= work_s / expected
        self._known[span.device][span.start, span.stop] = stage_s

    def learn_call(self, spans: Sequence[Span], pace_s: float) -> None:
        """Record the measured seconds between two results of one call to stages on a board."""
        self._calls[tuple(spans)] = pace_s
