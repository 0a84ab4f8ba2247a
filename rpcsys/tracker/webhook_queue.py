"""The events that wait for one receiver of webhooks: which is sent next, again, or no more. No clock, no socket."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from rpcsys.link.backoff import Backoff
from rpcsys.tracker.views.metrics import WebhookCounts
from rpcsys.tracker.webhook_events import WebhookEvent

MAX_WAITING = 1000  # events; beyond, the oldest that waits is dropped
PAUSES_S = (1.0, 60.0)  # first and longest pause before an event is sent again
GIVE_UP_S = 3600.0  # how long an event is sent again
#: Statuses below 500 that say that a later attempt may succeed: a timeout, too early, too many.
_LATER = frozenset((408, 425, 429))


class AttemptResult(str, Enum):
    """What an attempt has come to."""

    ACCEPTED = "accepted"
    LATER = "it may be accepted later"
    REFUSED = "it is not accepted, whenever it is sent"


def result_of(status: int) -> AttemptResult:
    """What an answer's status says of an event; 0 for no answer. A redirect is refused: the URL is the operator's."""
    if 200 <= status < 300:
        return AttemptResult.ACCEPTED
    return AttemptResult.REFUSED if 300 <= status < 500 and status not in _LATER else AttemptResult.LATER


@dataclass(slots=True, eq=False)
class Delivery:
    """An event for one receiver, which is sent when ``due`` has come. Times are of a clock that never jumps."""

    event: WebhookEvent
    since: float
    due: float
    backoff: Backoff = field(default_factory=lambda: Backoff(*PAUSES_S))


class DeliveryQueue:
    """The events for one receiver, the oldest first. One that fails waits apart: it holds no other one back.

    ``counts``: what is counted of them.
    """

    def __init__(self, counts: WebhookCounts) -> None:
        self._counts = counts
        self._waiting: dict[Delivery, None] = {}
        self._next: Delivery | None = None

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def add(self, event: WebhookEvent, now: float) -> None:
        """Add an event. Where too many wait, the oldest goes for it that is not being sent."""
        self._waiting[Delivery(event, now, now)] = None
        self._counts.waiting += 1
        if len(self._waiting) > MAX_WAITING:
            del self._waiting[next(each for each in self._waiting if each is not self._next)]
            self._counts.dropped += 1
            self._counts.waiting -= 1

    def next(self) -> Delivery | None:
        """The event that is due first. A full queue drops others in place of it, until the next call."""
        self._next = min(self._waiting, key=lambda delivery: delivery.due, default=None)
        return self._next

    def attempted(self, delivery: Delivery, outcome: AttemptResult, now: float, jitter: float) -> bool:
        """Note an attempt of `next`'s event. True: the event is not sent again, and was not accepted."""
        if outcome is AttemptResult.LATER and now - delivery.since < GIVE_UP_S:
            delivery.due = now + delivery.backoff.pause(jitter)
            return False
        del self._waiting[delivery]
        self._counts.waiting -= 1
        if outcome is AttemptResult.ACCEPTED:
            self._counts.sent += 1
            return False
        self._counts.failed += 1
        return True

    def hurry(self, now: float) -> None:
        """Have all events be sent once more now: the tracker ends."""
        for delivery in self._waiting:
            delivery.due = min(delivery.due, now)

    def drop_all(self) -> int:
        """Drop what waits; how many events these are."""
        dropped = len(self._waiting)
        self._waiting.clear()
        self._counts.waiting -= dropped
        self._counts.dropped += dropped
        return dropped
