"""What stages and links take, measured."""

from __future__ import annotations

import functools
import math
import threading
from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np

from rpcsys.client import Session
from rpcsys.graph._plan.cost_model import DeviceLink

#: A link is measured with more and more bytes, until they take this long or are this many.
_LINK_S = 0.1
_LINK_BYTES = (1 << 14, 1 << 16, 1 << 18, 1 << 20, 1 << 22, 1 << 24)
_PINGS = 15

#: Calls of a stage at least, and what of their times is taken: other work on the machine only ever adds to them.
_FEWEST = 3
_QUARTILE = 0.25


class TimedCall(NamedTuple):
    """Something to be called over and over, by so many threads at once."""

    function: Callable[[], Any]
    threads: int = 1


def paces(calls: Sequence[TimedCall], seconds: float, *, together: bool) -> list[float]:
    """Seconds from one result of each call to its next: the lower quartile, in which little else disturbs.

    ``together`` has all be called over and over at the same time, as the stages of a pipeline are, so that what they
    have to share (memory, caches, the heat of a processor) is in the figures.
    """
    if not together:
        return [pace for call in calls for pace in paces([call], seconds, together=True)]
    for call in calls:
        call.function()
    runs = [_Run(call, seconds) for call in calls]
    threads = [
        threading.Thread(target=run.loop, args=(runs,), daemon=True) for run in runs for _ in range(run.call.threads)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for run in runs:
        if run.error is not None:
            raise run.error
    return [run.pace() for run in runs]


class _Run:
    """One stage, called over and over until each of its siblings has had its time."""

    def __init__(self, call: TimedCall, seconds: float) -> None:
        self.call = call
        self._seconds = seconds
        self._done = [perf_counter()]  # when it began, and each result was there
        self.error: BaseException | None = None
        self.enough = False

    def loop(self, siblings: Sequence[_Run]) -> None:
        """What each of its threads does."""
        fewest = _FEWEST * self.call.threads
        try:
            while not all(run.enough for run in siblings):
                self.call.function()
                now = perf_counter()
                self._done.append(now)
                if len(self._done) > fewest and now - self._done[0] >= self._seconds:
                    self.enough = True
        except BaseException as error:  # noqa: BLE001 - raised where the threads are waited for
            self.error = error
            self.enough = True

    def pace(self) -> float:
        """Of as many results as it has threads, since those may come all together."""
        each = np.diff(np.sort(self._done)[:: self.call.threads])
        return float(np.quantile(each, _QUARTILE)) / self.call.threads


def measured_link(session: Session, calls: int) -> DeviceLink:
    """The way to a session's device and back, for so many calls under way.

    Raises `SessionError` where it is lost meanwhile.
    """
    echo = session.get_function("testing.echo")
    latency = timed(lambda: echo(0), _PINGS)[0]
    up = down = math.inf
    for size in _LINK_BYTES:
        array = np.random.default_rng(size).integers(0, 256, size, np.uint8)  # nothing on the way shortens it
        there = session.array(array)
        put = functools.partial(session.array, array)
        to_s = max(timed(put, 3)[0] - latency, 1e-9)
        back_s = max(timed(there.numpy, 3)[0] - latency, 1e-9)
        up, down = size / to_s, size / back_s
        if max(to_s, back_s) > _LINK_S:
            break
    return DeviceLink(latency, up, down, calls)


def timed(call: Callable[[], Any], repeat: int) -> tuple[float, Any]:
    """The least seconds of ``repeat`` calls, and what the last one gave."""
    best = math.inf
    for _ in range(repeat):
        began = perf_counter()
        result = call()
        best = min(best, perf_counter() - began)
    return best, result
