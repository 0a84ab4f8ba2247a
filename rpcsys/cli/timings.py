"""Times runs of a model for the commands that print it: on its device, or here with the way there."""

from __future__ import annotations

import re
import time
import warnings
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from rpcsys import progress
from rpcsys.client import TimingResult
from rpcsys.client.remote import RemoteModule
from rpcsys.module import Module

if TYPE_CHECKING:
    from rpcsys.graph.samples import Arrays

_REQUEST_S = 1.0  # duration of one timing request: the progress bar moves about once a second


def time_model(
    model: RemoteModule, args: Sequence[Any], repeat: int, advance: Callable[[int, int], None]
) -> TimingResult:
    """``repeat`` single runs, each timed on the device; calls ``advance(done, repeat)`` after each request."""
    parts: list[TimingResult] = []
    done = 0
    while done < repeat:
        longest = max((part.max for part in parts), default=_REQUEST_S)
        count = min(repeat - done, max(1, int(_REQUEST_S / max(longest, 1e-6))))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # the result has them
            parts.append(model.time_evaluator("main", number=1, repeat=count)(*args))
        done += len(parts[-1].results)
        advance(done, repeat)
    return joined(parts)


def joined(parts: Sequence[TimingResult]) -> TimingResult:
    """The parts of one measurement as one result: each warning once, ``joules`` of the calls that a meter tells of."""
    metered = [part for part in parts if part.joules is not None]
    calls = sum(len(part.results) for part in metered)
    joules = sum((part.joules or 0.0) * len(part.results) for part in metered) / calls if metered else None
    said = {re.sub(r"[\d.]+", "", line): line for part in reversed(parts) for line in reversed(part.warnings)}
    board = {"before": parts[0].board.get("before", {}), "after": parts[-1].board.get("after", {})}
    return TimingResult([value for part in parts for value in part.results], board, [*said.values()][::-1], joules)


def time_calls(module: RemoteModule | Module, feed: Arrays, repeat: int) -> TimingResult:
    """``repeat`` calls one after another, each timed here: the way there and other clients' calls are included."""
    results = []
    with progress.bar("timing", "run") as advance:
        for done in range(1, repeat + 1):
            begun = time.perf_counter()
            module.run(feed)
            results.append(time.perf_counter() - begun)
            advance(done, repeat)
    return TimingResult(results)
