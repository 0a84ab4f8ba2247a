"""The events that wait for one receiver of webhooks."""

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from rpcsys.tracker.views.metrics import WebhookCounts
from rpcsys.tracker.webhook_events import WebhookEvent
from rpcsys.tracker.webhook_queue import GIVE_UP_S, MAX_WAITING, PAUSES_S, AttemptResult, DeliveryQueue, result_of


def event(number):
    return WebhookEvent(f"msg_{number}", b"{}")


@pytest.mark.parametrize(
    ("statuses", "expected"),
    [
        ((200, 202, 204), AttemptResult.ACCEPTED),
        ((301, 307, 400, 401, 404, 410), AttemptResult.REFUSED),
        ((0, 101, 408, 425, 429, 500, 503, 599), AttemptResult.LATER),
    ],
)
def test_what_a_status_says(statuses, expected):
    assert {result_of(status) for status in statuses} == {expected}


def test_an_event_that_fails_holds_no_other_back_and_is_given_up_at_last():
    counts = WebhookCounts()
    queue = DeliveryQueue(counts)
    queue.add(event(1), 0.0)
    queue.add(event(2), 0.0)
    first = queue.next()
    assert first.event.id == "msg_1"
    assert not queue.attempted(first, AttemptResult.LATER, 0.0, 0.0)
    assert first.due == PAUSES_S[0]
    second = queue.next()
    assert second.event.id == "msg_2"
    assert not queue.attempted(second, AttemptResult.ACCEPTED, 0.0, 0.0)
    assert queue.next() is first
    now, attempts = 0.0, 1
    while not queue.attempted(first, AttemptResult.LATER, now, 0.0):
        assert 0 < first.due - now <= PAUSES_S[1]
        now, attempts = first.due, attempts + 1
    assert now >= GIVE_UP_S
    assert attempts < 100
    assert counts == WebhookCounts(sent=1, failed=1)


def test_the_oldest_of_too_many_is_dropped_unless_it_is_being_sent():
    counts = WebhookCounts()
    queue = DeliveryQueue(counts)
    queue.add(event(0), 0.0)
    sending = queue.next()
    for number in range(MAX_WAITING):
        queue.add(event(number + 1), 0.0)
    assert (counts.dropped, counts.waiting) == (1, MAX_WAITING)
    assert not queue.attempted(sending, AttemptResult.ACCEPTED, 0.0, 0.0)
    assert queue.next().event.id == "msg_2"
    assert queue.drop_all() == MAX_WAITING - 1
    assert counts == WebhookCounts(sent=1, dropped=MAX_WAITING)


class AnyOrder(RuleBasedStateMachine):
    """Whatever is attempted, each event is counted once."""

    def __init__(self):
        super().__init__()
        self.counts = WebhookCounts()
        self.queue = DeliveryQueue(self.counts)
        self.now, self.added = 0.0, 0

    @rule()
    def add(self):
        self.added += 1
        self.queue.add(event(self.added), self.now)

    @rule(outcome=st.sampled_from(AttemptResult), jitter=st.floats(0, 0.99))
    def attempt(self, outcome, jitter):
        delivery = self.queue.next()
        if delivery is not None:
            self.now = max(self.now, delivery.due)
            self.queue.attempted(delivery, outcome, self.now, jitter)

    @rule()
    def hurry(self):
        self.queue.hurry(self.now)
        delivery = self.queue.next()
        assert delivery is None or delivery.due <= self.now

    @invariant()
    def each_is_counted_once(self):
        counts = self.counts
        assert counts.sent + counts.failed + counts.dropped + counts.waiting == self.added
        assert bool(self.queue) == bool(counts.waiting)


TestAnyOrder = AnyOrder.TestCase
