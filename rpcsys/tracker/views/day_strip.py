"""A board's last day as a strip: when it was leased, and when it was out of use."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rpcsys.tracker.events import HistoryEntry
    from rpcsys.tracker.views.past import Past

DAY_S = 86400.0
STEP_S = 60.0  # the strip moves by so much, and shows nothing shorter
#: What ends each kind of being out of use.
_ENDS = {"joined": "gone", "trusted": "set_aside", "healthy": "unhealthy", "enabled": "drained"}
#: From when to when, in seconds since 1970; None: it goes on.
Span = tuple[float, "float | None"]


def day_strip(at: float, past: Past, running: Sequence[Span], *, out: bool) -> dict[str, Any]:
    """The strip of the day before ``at``: ``leased`` and ``out``, spans as shares of the day, and their sums.

    ``running``: the spans of leases that go on; ``out``: whether the board is out of use now.
    """
    end = at // STEP_S * STEP_S + STEP_S
    leases = [*((lease["since"], lease["ended"]) for lease in past.leases), *running]
    leased, closed = _merged(end, leases), _merged(end, _out(past.events, end, out))
    return {
        "begin": end - DAY_S,
        "leased": _shares(end, leased),
        "out": _shares(end, closed),
        "leased_s": _sum(leased),
        "out_s": _sum(closed),
    }


def _out(events: Sequence[HistoryEntry], end: float, out: bool) -> Iterable[Span]:
    """The spans in which a board was out of use, by its events, of which the last is the first."""
    why: dict[str, None] = {}
    since: float | None = None
    for number, event in enumerate(reversed(events)):
        ended = _ENDS.get(event.kind)
        if ended is not None:
            if number == 0 and event.kind != "joined":
                since, why = end - DAY_S, {ended: None}  # it began before what is known
            why.pop(ended, None)
        elif event.kind in _ENDS.values():
            why[event.kind] = None
        if why and since is None:
            since = event.at
        elif not why and since is not None:
            yield since, event.at
            since = None
    if out and since is not None:
        yield since, None


def _merged(end: float, spans: Iterable[Span]) -> list[tuple[float, float]]:
    """The parts of spans within the day, without overlaps."""
    begin = end - DAY_S
    clipped = [(max(begin, since), end if until is None else min(until, end)) for since, until in spans]
    found: list[tuple[float, float]] = []
    for since, until in sorted(span for span in clipped if span[1] > span[0]):
        if found and since <= found[-1][1]:
            found[-1] = found[-1][0], max(until, found[-1][1])
        else:
            found.append((since, until))
    return found


def _shares(end: float, spans: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
    """The begin and the length of each span, in shares of the day."""
    return [(round((a - end + DAY_S) / DAY_S, 5), max(STEP_S / DAY_S, round((b - a) / DAY_S, 5))) for a, b in spans]


def _sum(spans: Iterable[tuple[float, float]]) -> float:
    """Seconds in all, in whole steps."""
    return sum(b - a for a, b in spans) // STEP_S * STEP_S
