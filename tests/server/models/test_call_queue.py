"""Which call runs next, and which is turned away."""

from __future__ import annotations

import math

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from rpcsys.server.models.call_queue import MAX_ABANDONED, Call, Desk
from rpcsys.wire import frames
from rpcsys.wire.head import ParsedHead


def call(client: str, number: int, due: float = math.inf, weight: int = 0) -> Call:
    parsed = ParsedHead({}, (weight,) if weight else ())
    return Call(client, frames.Frame(frames.CALL, 0, 0, number, parsed, ()), due)


def numbers(desk: Desk) -> list[tuple[str, int]]:
    """Take all that may run now."""
    taken = []
    while (found := desk.take()) is not None:
        taken.append((found.client, found.frame.call_id))
    return taken


def test_clients_are_served_in_turn_and_each_in_its_order():
    desk = Desk(8, 8, 1 << 20)
    for client, number in (("a", 1), ("a", 2), ("a", 3), ("b", 1), ("c", 1)):
        assert desk.offer(call(client, number))
    assert numbers(desk) == [("a", 1), ("b", 1), ("c", 1), ("a", 2), ("a", 3)]


def test_at_most_so_many_run_and_so_many_wait():
    desk = Desk(2, 3, 1 << 20)
    assert [desk.offer(call("a", number)) for number in range(7)] == [True] * 5 + [False] * 2
    assert len(numbers(desk)) == 2
    assert (desk.running, desk.waiting) == (2, 3)
    assert not desk.offer(call("b", 1))


def test_what_waits_is_bounded_in_bytes():
    desk = Desk(1, 100, 1000)
    assert desk.offer(call("a", 1, weight=5000))  # it runs at once, whatever it brings
    assert numbers(desk) == [("a", 1)]
    assert desk.offer(call("a", 2, weight=900))
    assert not desk.offer(call("a", 3, weight=200))
    assert desk.offer(call("a", 4, weight=50))


def test_a_number_under_way_is_not_given_again():
    desk = Desk(1, 1, 1)
    desk.offer(call("a", 1))
    with pytest.raises(KeyError):
        desk.offer(call("a", 1))
    assert desk.offer(call("b", 1))


def test_a_call_that_waits_is_cancelled_and_gone():
    desk = Desk(1, 5, 1 << 20)
    for number in (1, 2, 3):
        desk.offer(call("a", number))
    numbers(desk)
    cancelled = desk.cancel("a", 2, 0.0)
    assert cancelled is not None
    assert cancelled.abandoned_at is None
    assert desk.cancel("a", 2, 0.0) is None
    assert (desk.running, desk.waiting) == (1, 1)


def test_a_call_that_runs_and_is_cancelled_leaves_its_place_to_another():
    desk = Desk(1, 5, 1 << 20)
    desk.offer(call("a", 1))
    desk.offer(call("a", 2))
    first = desk.take()
    assert first is not None
    assert desk.take() is None
    desk.cancel("a", 1, 7.0)
    assert first.abandoned_at == 7.0
    assert numbers(desk) == [("a", 2)]
    assert desk.live == 1
    assert not desk.finish(first)
    assert desk.abandoned == []


def test_abandoned_calls_take_places_when_they_are_too_many():
    desk = Desk(1, 100, 1 << 20)
    for number in range(MAX_ABANDONED + 1):
        desk.offer(call("a", number))
        assert numbers(desk) == [("a", number)]
        desk.cancel("a", number, 0.0)
    desk.offer(call("a", 999))
    assert desk.take() is None


def test_deadlines():
    desk = Desk(1, 5, 1 << 20)
    assert desk.deadline() == math.inf
    desk.offer(call("a", 1, due=5.0))
    desk.offer(call("a", 2, due=3.0))
    desk.offer(call("b", 1))
    assert desk.deadline() == 3.0
    assert desk.overdue(2.9) == []
    assert [late.frame.call_id for late in desk.overdue(3.0)] == [2]
    assert desk.deadline() == 5.0


def test_a_client_that_is_gone_takes_its_calls_along():
    desk = Desk(1, 5, 1 << 20)
    for client, number in (("a", 1), ("a", 2), ("b", 1)):
        desk.offer(call(client, number))
    assert numbers(desk) == [("a", 1)]
    assert len(desk.gone("a", 0.0)) == 2
    assert desk.of("a") == 0
    assert numbers(desk) == [("b", 1)]


class Machine(RuleBasedStateMachine):
    """Whatever happens, the books are right, and each call is answered once."""

    def __init__(self) -> None:
        super().__init__()
        self.desk = Desk(3, 4, 1000)
        self.running: list[Call] = []
        self.open: dict[tuple[str, int], Call] = {}
        self.next = 0

    @rule(client=st.sampled_from("abc"), weight=st.integers(0, 400), due=st.sampled_from([5.0, math.inf]))
    def offer(self, client, weight, due):
        self.next += 1
        made = call(client, self.next, due, weight)
        if self.desk.offer(made):
            self.open[client, self.next] = made

    @rule()
    def take(self):
        found = self.desk.take()
        if found is not None:
            self.running.append(found)

    @rule(data=st.data())
    def finish(self, data):
        if self.running:
            done = self.running.pop(data.draw(st.integers(0, len(self.running) - 1)))
            assert self.desk.finish(done) == (self.open.pop((done.client, done.frame.call_id), None) is not None)

    @rule(data=st.data())
    def cancel(self, data):
        if self.open:
            client, number = data.draw(st.sampled_from(sorted(self.open)))
            assert self.desk.cancel(client, number, 1.0) is self.open.pop((client, number))

    @rule(client=st.sampled_from("abc"))
    def gone(self, client):
        mine = [key for key in self.open if key[0] == client]
        assert {id(each) for each in self.desk.gone(client, 1.0)} == {id(self.open.pop(key)) for key in mine}

    @rule()
    def overdue(self):
        late = [key for key, each in self.open.items() if each.due <= 6.0]
        assert {id(each) for each in self.desk.overdue(6.0)} == {id(self.open.pop(key)) for key in late}

    @invariant()
    def books(self):
        waiting = [each for each in self.open.values() if each.state == "waiting"]
        assert self.desk.waiting == len(waiting)
        assert self.desk.waiting_bytes == sum(each.frame.parsed.weight for each in waiting)
        assert self.desk.running == len(self.running)
        assert self.desk.live == len(self.open)
        assert self.desk.running - len(self.desk.abandoned) <= self.desk.workers
        assert self.desk.waiting - max(self.desk.free, 0) <= 4


TestMachine = Machine.TestCase


def test_the_calls_of_a_client_that_takes_nothing_wait_and_keep_no_places():
    away = {"slow"}
    desk = Desk(2, 2, 1 << 20, lambda client: client not in away)
    for number in range(4):
        assert desk.offer(call("slow", number))
    assert desk.take() is None
    assert desk.offer(call("quick", 1))
    assert desk.take().client == "quick"
    assert desk.offer(call("quick", 2))
    away.clear()
    assert desk.take().client in ("slow", "quick")
