"""Models the time of stages on devices; it measures and runs nothing.

The model is a row of **units**: nodes, or neighbours that stay together, in an order in which they can run. A stage is
a span of units on a device. The time of a frame in a stage is

    seconds of its units there  +  round trip  +  bytes in / bytes a second there  +  bytes out / bytes a second back

and only devices behind a link have the last three terms. All tensors pass through the machine that plans: a skip
connection past a remote stage never crosses its link. For the goal ``latency`` a frame takes the sum of its stages. For
``throughput`` the slowest stage limits the rate. Behind a link several calls are under way, so that the stage's rate is
that of the slowest of three: the device's work, the transfer there and the transfer back.

Neighbouring stages on devices of one board are one call: it crosses the board's link once, with the bytes of all of
them together. The devices work at the same time on other frames, so the slowest stage counts for the rate. Each has a
link of its own, from the board's memory to the device's, that its stage pays in its turn.

Limitation: the seconds of units are added up, even if they are fused. Measured spans correct it (`costs`).
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

    def pace(self, work_s: Any, taken: Any, given: Any, slowest_s: Any = None) -> Any:
        """Seconds from one result to the next, of calls that work ``work_s``; numbers or matrices.

        ``slowest_s`` : seconds of the slowest stage of a call, if several devices work on it one after another
        """
        alone = (work_s + self.seconds(taken, given)) / self.calls
        if self.calls == 1:
            return alone
        slowest_s = work_s if slowest_s is None else slowest_s
        return np.maximum.reduce(np.broadcast_arrays(alone, slowest_s, taken / self.up, given / self.down))


class Span(NamedTuple):
    """A candidate stage: units ``start`` up to, not including, ``stop`` on the device with that index."""

    device: int
    start: int
    stop: int


class Board(NamedTuple):
    """Devices that are one call, if neighbouring stages run on them; the ``link`` goes to the board."""

    devices: tuple[int, ...]
    link: DeviceLink


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
