"""A key's page: its queue in order with forecasts, what keeps requests waiting, its boards, and who used it."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any

from rpcsys.tracker.entities import Queue
from rpcsys.tracker.views import eta, lab_page, questions
from rpcsys.tracker.views.board_page import GROUP
from rpcsys.tracker.views.fragments import Fragment

if TYPE_CHECKING:
    from rpcsys.tracker.records import Records
    from rpcsys.tracker.views.past import Past

MAX_BOARDS, MAX_WAITING = 500, 100  # listed at most; the others are counted
_ROUND_S = 10  # forecasts are rounded to this: they are no better, and a page that changes less is calmer


def key_fragments(records: Records, at: float, key: str, past: Past) -> Iterator[Fragment]:
    """A key's page; nothing if neither the tracker nor the history knows the key."""
    queue = records.queues.get(key)
    if queue is None:
        if key and not past and key not in records.unserved_lately(at):
            return
        queue = Queue(key)
    found = lab_page.counts(records, queue)
    reasons = questions.why(records, at, key, None)["reasons"] if key in records.queues else []
    yield Fragment(GROUP, "state", "key_state.html", {**found, "reasons": reasons})
    data = {"queue": _queue(records, at, queue), "more": max(0, found["waiting"] - MAX_WAITING)}
    yield Fragment(GROUP, "queue", "key_queue.html", data)
    most = max((row["held_s"] for row in past.usage), default=0.0)
    yield Fragment("usage", "usage", "usage.html", {"usage": past.usage, "most": most, "problem": past.problem})
    peers = [records.peers[conn] for conn in queue.servers]
    left = {name: row for name, row in lab_page.gone(records, at).items() if key in row["keys"]}
    yield from lab_page.boards(records, at, [peer for peer in peers if peer.name], left, MAX_BOARDS)


def _queue(records: Records, at: float, queue: Queue) -> list[dict[str, Any]]:
    """The first waiting requests with their forecasts: the earliest and the latest time, or None."""
    estimate = eta.Estimate(queue, records.free(queue.key), at)
    rows = []
    for before, request in enumerate(islice(eta.in_order(records, at, queue), MAX_WAITING)):
        times = estimate.of(request, before)
        forecast = None if times is None else [_rounded(at + seconds) for seconds in times]
        rows.append({**lab_page.waiting(request), "forecast": forecast})
    return rows


def _rounded(at: float) -> float:
    return at // _ROUND_S * _ROUND_S + _ROUND_S
