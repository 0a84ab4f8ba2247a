"""Models the time of stages on devices; it measures and runs nothing.

The model is a row of **units**: nodes, or neighbours that stay together, in an order in which they can run. A stage is
a span of units on a device. The time of a frame in a stage is

    seconds of its units there  +  round trip  +  bytes in / bytes a second there  +  bytes out / bytes a second back

and only devices behind a link have the last three terms. All tensors pass through the machine that plans: a skip
connection past a remote stage never crosses its link. For the goal ``latency`` a frame takes the sum of its stages. For
``throughput`` the slowest stage limits the rate. Behind a link several calls are under way, so that the stage's rate is
that of the slowest of three: the device's work, the transfer there and the transfer back.

Limitation: the seconds of units are added up, even if they are fused. Measured spans correct it (`Costs.learn`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

Goal: TypeAlias = Literal["throughput", "latency"]
Matrix: TypeAlias = "NDArray[np.float64]"  # seconds, or bytes, of the units in [first index, second index)


class UnitTensor(NamedTuple):
    """A tensor that flows between units."""

    nbytes: float
    maker: int  # index of the unit that makes it; -1 for an input of the model
    takers: tuple[int, ...]  # indices of the units that take it
    result: bool = False  # whether it is an output of the model


class DeviceLink(NamedTuple):
    """The network path to a device and back."""

    latency_s: float  # round trip without data
    up: float  # bytes a second to the device
    down: float  # bytes a second from it
    calls: int = 1  # calls under way on it at once

    def seconds(self, taken: Any, given: Any) -> Any:
        """Transfer seconds of one call that takes and gives so many bytes; numbers or matrices of them."""
        return self.latency_s + taken / self.up + given / self.down

    def pace(self, work_s: Any, taken: Any, given: Any) -> Any:
        """Seconds from one result to the next, of calls that work ``work_s``; numbers or matrices."""
        alone = (work_s + self.seconds(taken, given)) / self.calls
        if self.calls == 1:
            return alone
        return np.maximum.reduce(np.broadcast_arrays(alone, work_s, taken / self.up, given / self.down))


class Span(NamedTuple):
    """A candidate stage: units ``start`` up to, not including, ``stop`` on the device with that index."""

    device: int
    start: int
    stop: int


class Traffic(NamedTuple):
    """Bytes that each span of units takes and gives: matrices indexed by start and stop."""

    taken: Matrix
    given: Matrix


def sums(seconds: Sequence[float] | NDArray[np.float64]) -> Matrix:
    """The sum of seconds of every span of units."""
    total = np.concatenate([[0.0], np.cumsum(np.asarray(seconds, float))])
    matrix: Matrix = total[None, :] - total[:, None]
    return matrix


def traffic(tensors: Iterable[UnitTensor], units: int) -> Traffic:
    """Bytes in and out of every span. A tensor counts once per span, even if several of its units take it."""
    taken, given = np.zeros((units + 1, units + 1)), np.zeros((units + 1, units + 1))
    for tensor in tensors:
        takers = sorted({taker for taker in tensor.takers if taker > tensor.maker})
        after = tensor.maker + 1
        first = after
        for taker in takers:  # spans that begin behind both its maker and the previous taker, and include this one
            taken[first : taker + 1, taker + 1 :] += tensor.nbytes
            first = taker + 1
        last = units if tensor.result else max(takers, default=tensor.maker)
        if tensor.maker >= 0:  # spans that include its maker and end before its last taker
            given[:after, after : last + 1] += tensor.nbytes
    return Traffic(taken, given)


class Costs:
    """The expected times of devices, corrected by measurements.

    ``seconds`` are of each unit, on any one machine: after a device was measured only their proportions count.
    ``links`` has the link to each device, None for this machine.
    """

    def __init__(self, seconds: Sequence[float], links: Sequence[DeviceLink | None], traffic: Traffic) -> None:
        self.traffic = traffic
        self._links = links
        self._weights = [np.array(seconds, float) for _ in links]
        self._known: list[dict[tuple[int, int], float]] = [{} for _ in links]

    def work_s(self, span: Span) -> float:
        """Seconds of its units on its device, without transfers."""
        return float(self._weights[span.device][span.start : span.stop].sum())

    def stage_s(self, span: Span) -> float:
        """Seconds between two of its results, if frames arrive without pause."""
        return float(self.matrix(span.device)[span.start, span.stop])

    def matrix(self, device: int) -> Matrix:
        """`stage_s` of all spans on a device, as a matrix."""
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
