"""A forecast of a request's wait: how many requests are served before it, and the time that takes.

It assumes that the users of a band take turns, in the order of their device time now.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from rpcsys.tracker.entities import Queue, WaitingRequest
from rpcsys.tracker.matching import Band

if TYPE_CHECKING:
    from rpcsys.tracker.records import Records

_FEW = 3  # the fewest past leases for an estimate
_EXACT = 64  # with more devices than this, the end of each single lease does not matter
_MANY_SUBQUEUES = 256  # with more subqueues than this, a request counts as the last one
#: The quantiles of past leases' lengths that are the least and the most of an estimate.
_QUICK, _SLOW = 0.25, 0.9


def ahead(records: Records, at: float, request: WaitingRequest) -> int:
    """About how many requests of its key are served before this one."""
    x, share = records.shares.clock(at), records.shares.of(request.user)
    before = 0
    subqueues = records.subqueues.of_key(request.key)
    if len(subqueues) > _MANY_SUBQUEUES:
        return max(0, len(records.queues[request.key].waiting) - 1)
    for subqueue in subqueues:
        for standing, band in subqueue.bands.items():
            if standing > request.standing:
                before += len(band)
            elif standing == request.standing:
                before += band.ahead(x, share, request.arrival)
    return before


def in_order(records: Records, at: float, queue: Queue) -> Iterator[WaitingRequest]:
    """All requests of a key, in the expected order of service."""
    by_standing: dict[float, list[Band]] = {}
    for subqueue in records.subqueues.of_key(queue.key):
        for standing, band in subqueue.bands.items():
            by_standing.setdefault(standing, []).append(band)
    x = records.shares.clock(at)
    for _, bands in sorted(by_standing.items(), reverse=True):
        turns = _turns(x, bands)
        index = 0
        while turns:
            for arrivals in turns:
                yield records.waiting[arrivals[index]]
            index += 1
            turns = [arrivals for arrivals in turns if len(arrivals) > index]


def _turns(x: float, bands: list[Band]) -> list[list[int]]:
    ranks = sorted(rank for band in bands for rank in band.ranks(x))
    if len(bands) == 1:
        return [bands[0].turns[user] for _, _, user in ranks]
    turns: dict[str, list[int]] = {user: [] for _, _, user in ranks}
    for band in bands:
        for user, arrivals in band.turns.items():
            turns[user] += arrivals
    for arrivals in turns.values():
        arrivals.sort()
    return [*turns.values()]


class Estimate:
    """Estimates the waits of a key's requests from the lengths of its past leases."""

    def __init__(self, queue: Queue, free: int, at: float) -> None:
        self._devices = len(queue.leases) + free
        lengths = sorted(queue.lengths)
        self._known = self._devices > 0 and len(lengths) >= _FEW
        if not self._known:
            return
        self._spans = [lengths[int(share * (len(lengths) - 1) + 0.5)] for share in (_QUICK, _SLOW)]
        self._left = [self._ends(queue, at, span) for span in self._spans]

    def _ends(self, queue: Queue, at: float, span: float) -> list[float] | None:
        """Seconds until each device is free, sorted, if leases last ``span``; None if there are too many."""
        if self._devices > _EXACT:
            return None
        left = []
        for lease in queue.leases.values():
            held = at - lease.since
            rest = span - held
            if rest <= 0:  # longer than ``span``: it ends at once, or lasts for as long again
                rest = 0.0 if span == self._spans[0] else held
            until = lease.until
            left.append(rest if until is None else min(rest, max(0.0, until - at)))
        return [0.0] * (self._devices - len(left)) + sorted(left)

    def of(self, request: WaitingRequest, before: int) -> list[float] | None:
        """The least and the most seconds from now; None if unknown."""
        if not self._known or request.parked or not request.wants.bare:
            return None
        rounds, place = divmod(before + request.count - 1, self._devices)
        times = []
        for span, left in zip(self._spans, self._left, strict=True):
            first = span * place / self._devices if left is None else left[place]
            times.append(round(first + rounds * span, 1))
        return sorted(times)
