"""Which call runs next, and which is refused."""

from __future__ import annotations

import math

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from rpcsys.server.models.call_queue import MAX_ABANDONED, Call, CallQueue
from rpcsys.wire import frames
from rpcsys.wire.head import ParsedHead


def call(client: str, number: int, due: float = math.inf, weight: int = 0) -> Call:
    parsed = ParsedHead({}, (weight,) if weight else ())
    return Call(client, frames.Frame(frames.CALL, 0, 0, number, parsed, ()), due)


def numbers(queue: CallQueue) -> list[tuple[str, int]]:
    """Take all calls that may run now; return their clients and numbers."""
    taken = []
    while (found := queue.take()) is not None:
        taken.append((found.client, found.frame.call_id))
    return taken


def test_clients_take_turns_and_each_keeps_its_order():
    queue = CallQueue(8, 8, 1 << 20)
    for client, number in (("a", 1), ("a", 2), ("a", 3), ("b", 1), ("c", 1)):
        assert queue.offer(call(client, number))
    assert numbers(queue) == [("a", 1), ("b", 1), ("c", 1), ("a", 2), ("a", 3)]


def test_running_and_waiting_calls_are_limited():
    queue = CallQueue(2, 3, 1 << 20)
    assert [queue.offer(call("a", number)) for number in range(7)] == [True] * 5 + [False] * 2
    assert len(numbers(queue)) == 2
    assert (queue.running, queue.waiting) == (2, 3)
    assert not queue.offer(call("b", 1))


def test_waiting_calls_are_limited_in_bytes():
    queue = CallQueue(1, 100, 1000)
    assert queue.offer(call("a", 1, weight=5000))  # it runs at once, whatever its size
    assert numbers(queue) == [("a", 1)]
    assert queue.offer(call("a", 2, weight=900))
    assert not queue.offer(call("a", 3, weight=200))
    assert queue.offer(call("a", 4, weight=50))


def test_a_number_under_way_is_refused():
    queue = CallQueue(1, 1, 1)
    queue.offer(call("a", 1))
    with pytest.raises(KeyError):
        queue.offer(call("a", 1))
    assert queue.offer(call("b", 1))


def test_a_waiting_call_can_be_cancelled():
    queue = CallQueue(1, 5, 1 << 20)
    for number in (1, 2, 3):
        queue.offer(call("a", number))
    numbers(queue)
    cancelled = queue.cancel("a", 2, 0.0)
    assert cancelled is not None
    assert cancelled.abandoned_at is None
    assert queue.cancel("a", 2, 0.0) is None
    assert (queue.running, queue.waiting) == (1, 1)


def test_cancelling_a_running_call_frees_its_worker():
    queue = CallQueue(1, 5, 1 << 20)
    queue.offer(call("a", 1))
    queue.offer(call("a", 2))
    first = queue.take()
    assert first is not None
    assert queue.take() is None
    queue.cancel("a", 1, 7.0)
    assert first.abandoned_at == 7.0
    assert numbers(queue) == [("a", 2)]
    assert queue.live == 1
    assert not queue.finish(first)
    assert queue.abandoned == []


def test_too_many_abandoned_calls_occupy_workers():
    queue = CallQueue(1, 100, 1 << 20)
    for number in range(MAX_ABANDONED + 1):
        queue.offer(call("a", number))
        assert numbers(queue) == [("a", number)]
        queue.cancel("a", number, 0.0)
    queue.offer(call("a", 999))
    assert queue.take() is None


def test_calls_past_their_deadlines_are_overdue():
    queue = CallQueue(1, 5, 1 << 20)
    assert queue.deadline() == math.inf
    queue.offer(call("a", 1, due=5.0))
    queue.offer(call("a", 2, due=3.0))
    queue.offer(call("b", 1))
    assert queue.deadline() == 3.0
    assert queue.overdue(2.9) == []
    assert [late.frame.call_id for late in queue.overdue(3.0)] == [2]
    assert queue.deadline() == 5.0


def test_calls_of_a_client_that_is_gone_are_dropped():
    queue = CallQueue(1, 5, 1 << 20)
    for client, number in (("a", 1), ("a", 2), ("b", 1)):
        queue.offer(call(client, number))
    assert numbers(queue) == [("a", 1)]
    assert len(queue.drop("a", 0.0)) == 2
    assert queue.count("a") == 0
    assert numbers(queue) == [("b", 1)]


class Machine(RuleBasedStateMachine):
    """After any sequence of events the counts are right, and each call is answered once."""

    def __init__(self) -> None:
        super().__init__()
        self.queue = CallQueue(3, 4, 1000)
        self.running: list[Call] = []
        self.open: dict[tuple[str, int], Call] = {}
        self.next = 0

    @rule(client=st.sampled_from("abc"), weight=st.integers(0, 400), due=st.sampled_from([5.0, math.inf]))
    def offer(self, client, weight, due):
        self.next += 1
        made = call(client, self.next, due, weight)
        if self.queue.offer(made):
            self.open[client, self.next] = made

    @rule()
    def take(self):
        found = self.queue.take()
        if found is not None:
            self.running.append(found)

    @rule(data=st.data())
    def finish(self, data):
        if self.running:
            done = self.running.pop(data.draw(st.integers(0, len(self.running) - 1)))
            assert self.queue.finish(done) == (self.open.pop((done.client, done.frame.call_id), None) is not None)

    @rule(data=st.data())
    def cancel(self, data):
        if self.open:
            client, number = data.draw(st.sampled_from(sorted(self.open)))
            assert self.queue.cancel(client, number, 1.0) is self.open.pop((client, number))

    @rule(client=st.sampled_from("abc"))
    def gone(self, client):
        mine = [key for key in self.open if key[0] == client]
        assert {id(each) for each in self.queue.drop(client, 1.0)} == {id(self.open.pop(key)) for key in mine}

    @rule()
    def overdue(self):
        late = [key for key, each in self.open.items() if each.due <= 6.0]
        assert {id(each) for each in self.queue.overdue(6.0)} == {id(self.open.pop(key)) for key in late}

    @invariant()
    def counts(self):
        waiting = [each for each in self.open.values() if each.state == "waiting"]
        assert self.queue.waiting == len(waiting)
        assert self.queue.waiting_bytes == sum(each.frame.parsed.weight for each in waiting)
        assert self.queue.running == len(self.running)
        assert self.queue.live == len(self.open)
        assert self.queue.running - len(self.queue.abandoned) <= self.queue.workers
        assert self.queue.waiting - max(self.queue.free, 0) <= 4


TestMachine = Machine.TestCase


def test_calls_of_a_client_that_does_not_receive_wait_and_do_not_count():
    stalled = {"slow"}
    queue = CallQueue(2, 2, 1 << 20, lambda client: client not in stalled)
    for number in range(4):
        assert queue.offer(call("slow", number))
    assert queue.take() is None
    assert queue.offer(call("quick", 1))
    assert queue.take().client == "quick"
    assert queue.offer(call("quick", 2))
    stalled.clear()
    assert queue.take().client in ("slow", "quick")
