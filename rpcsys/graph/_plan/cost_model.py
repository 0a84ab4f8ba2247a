"""What stages take on devices, as a model of costs: nothing is measured or run here.

The model is a row of **units**: nodes, or neighbours that are not to be parted, in an order in which they can run. A
stage is a span of units on a device. A frame passes it in

    the seconds of its units there  +  round trip  +  bytes it takes / bytes a second there  +  bytes it gives / back

with the last three for devices behind a link. All tensors pass through the machine that plans: a skip connection
past a remote stage never crosses its link. For the goal ``latency`` a frame takes the sum of its stages. For
``throughput`` stages work on different frames at the same time, and the pace is that of the slowest; and a device
behind a link has several calls under way, so that its work, the way there and the way back overlap, and
the stage's pace is that of the slowest of the three.

Known weakness: units are assumed to add up, which fusions across a cut do not; measured spans replace sums, see
`Costs.learn`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

Goal: TypeAlias = Literal["throughput", "latency"]
#: Seconds, or bytes, of a stage of the units from the first index up to, not including, the second.
Matrix: TypeAlias = "NDArray[np.float64]"


@dataclass(frozen=True)
class UnitTensor:
    """A tensor as it flows between units.

    Attributes
    ----------
    nbytes : its size
    maker : the unit that makes it; -1 for an input of the model
    takers : the units that take it
    result : whether the model gives it
    """

    nbytes: float
    maker: int
    takers: tuple[int, ...]
    result: bool = False


@dataclass(frozen=True)
class DeviceLink:
    """The way to a device: seconds of an empty round trip, bytes a second to it and back.

    ``calls`` is how many are under way on it at once.
    """

    latency_s: float
    up: float
    down: float
    calls: int = 1

    def seconds(self, taken: Any, given: Any) -> Any:
        """On the way, of one call that takes and gives so many bytes; numbers or matrices of them."""
        return self.latency_s + taken / self.up + given / self.down

    def pace(self, work_s: Any, taken: Any, given: Any) -> Any:
        """Seconds from one result to the next, of calls that work so long; numbers or matrices."""
        alone = (work_s + self.seconds(taken, given)) / self.calls
        if self.calls == 1:
            return alone
        return np.maximum.reduce(np.broadcast_arrays(alone, work_s, taken / self.up, given / self.down))


@dataclass(frozen=True)
class Span:
    """A stage to be: units ``start`` up to ``stop``, not included, on the device of that number."""

    device: int
    start: int
    stop: int


@dataclass(frozen=True)
class Traffic:
    """Bytes that each span of units takes and gives: matrices by start and stop."""

    taken: Matrix
    given: Matrix


def traffic(tensors: Sequence[UnitTensor], units: int) -> Traffic:
    """What crosses at either end of every span. A tensor counts once for a span, however many of its units take it."""
    taken, given = np.zeros((units + 1, units + 1)), np.zeros((units + 1, units + 1))
    for tensor in tensors:
        takers = sorted({taker for taker in tensor.takers if taker > tensor.maker})
        after = tensor.maker + 1
        first = after
        for taker in takers:  # spans that begin behind its maker and the taker before, and reach this one
            taken[first : taker + 1, taker + 1 :] += tensor.nbytes
            first = taker + 1
        last = units if tensor.result else max(takers, default=tensor.maker)
        if tensor.maker >= 0:  # spans that hold its maker and end before its last taker
            given[:after, after : last + 1] += tensor.nbytes
    return Traffic(taken, given)


@dataclass
class Costs:
    """What is known of the devices' times, and what is learned of them by measuring.

    Parameters
    ----------
    seconds : of each unit, on any one machine: only their proportions count once a device has been measured
    links : the way to each device; None for this machine
    """

    seconds: Sequence[float]
    links: Sequence[DeviceLink | None]
    traffic: Traffic
    _weights: list[NDArray[np.float64]] = field(init=False)
    _known: list[dict[tuple[int, int], float]] = field(init=False)
    _seen: list[bool] = field(init=False)

    def __post_init__(self) -> None:
        self._weights = [np.array(self.seconds, float) for _ in self.links]
        self._known = [{} for _ in self.links]
        self._seen = [False for _ in self.links]

    def work_s(self, span: Span) -> float:
        """Seconds of its units on its device, without the way there."""
        return float(self._weights[span.device][span.start : span.stop].sum())

    def stage_s(self, span: Span) -> float:
        """Seconds between two of its results, when frames are there all the time."""
        return float(self.matrix(span.device)[span.start, span.stop])

    def matrix(self, device: int) -> Matrix:
        """`stage_s` of all spans on a device."""
        total = np.concatenate([[0.0], np.cumsum(self._weights[device])])
        seconds: Matrix = total[None, :] - total[:, None]
        link = self.links[device]
        if link is not None:
            seconds = link.pace(seconds, self.traffic.taken, self.traffic.given)
        for (start, stop), measured in self._known[device].items():
            seconds[start, stop] = measured
        return seconds

    def learn(self, span: Span, work_s: float, stage_s: float) -> None:
        """A span was measured: its work alone, and all of it.

        The first measurement of a device scales all of its units, each later one those of its span.
        """
        weights = self._weights[span.device]
        expected = self.work_s(span)
        scaled = slice(span.start, span.stop) if self._seen[span.device] else slice(None)
        if expected > 0 and work_s > 0:
            weights[scaled] *= work_s / expected
        self._seen[span.device] = True
        self._known[span.device][span.start, span.stop] = stage_s
