"""Time a model on its device, so that somebody who waits sees that it goes on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from rpcsys.client.remote import RemoteModule
from rpcsys.client.timing import TimingResult

#: How long one request for figures may take: the bar moves about once a second.
_CHUNK_S = 1.0


def time_model(
    model: RemoteModule, args: Sequence[Any], repeat: int, advance: Callable[[int, int], None]
) -> TimingResult:
    """``repeat`` single runs, each timed on the device; ``advance(done, repeat)`` as they come."""
    results: list[float] = []
    while len(results) < repeat:
        longest = max(results, default=_CHUNK_S)
        chunk = min(repeat - len(results), max(1, int(_CHUNK_S / max(longest, 1e-6))))
        results += model.time_evaluator("main", number=1, repeat=chunk)(*args).results
        advance(len(results), repeat)
    return TimingResult(results)
