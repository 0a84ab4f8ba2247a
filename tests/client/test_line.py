"""A connection lost and found again, without a socket: what is opened is given."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest

from rpcsys.client import line as lines
from rpcsys.client.line import Connection, Line
from rpcsys.errors import (
    NotSupported,
    RemoteFunctionError,
    RpcsysError,
    ServerUnreachable,
    SessionClosed,
)
from tests.live.daemons import wait_until

GONE = ServerUnreachable("nobody is there")


class Held:
    """Something to close."""

    def __init__(self) -> None:
        self.closed = 0

    def close(self) -> None:
        self.closed += 1


class Place:
    """What opens connections: whatever it is told to raise first. ``asked``: the seconds and addresses given each time."""

    def __init__(self, *errors: Exception | None, others: bool = False) -> None:
        self.errors = list(errors)
        self.asked: list[tuple[float, list[str]]] = []
        self.made: list[Held] = []
        self.others = others
        self.before: Callable[[], object] = lambda: None

    def __call__(self, seconds, avoid):
        self.asked.append((seconds, sorted(avoid)))
        self.before()
        error = self.errors.pop(0) if self.errors else None
        if error is not None:
            raise error
        self.made.append(Held())
        return Connection(len, f"server{len(self.made)}", [self.made[-1]], self.others)


def test_nothing_is_opened_before_it_is_asked_for_and_then_once():
    place = Place()
    line = Line(place, 5.0)
    assert place.asked == []
    assert line.get() is line.get()
    assert (line.opened, place.asked) == (1, [(5.0, [])])
    line.close()
    assert place.made[0].closed == 1


def test_a_server_that_never_was_there_is_an_error_at_once():
    place = Place(GONE)
    line = Line(place, 60.0)
    with pytest.raises(ServerUnreachable):
        line.get()
    assert len(place.asked) == 1
    assert line.get().where == "server1"


def test_one_that_was_there_is_looked_for():
    place = Place(None, GONE, GONE, GONE)
    line = Line(place, 60.0)
    first = line.get()
    line.lost(first)
    assert place.made[0].closed == 1
    second = line.get()
    assert (second.where, line.opened, len(place.asked)) == ("server2", 2, 5)
    line.lost(first)  # by another thread, which met its end later
    assert line.current is second
    assert place.made[1].closed == 0


def test_but_not_for_ever():
    place = Place(None, *[GONE] * 1000)
    line = Line(place, 0.3)
    line.lost(line.get())
    began = time.monotonic()
    with pytest.raises(ServerUnreachable):
        line.get()
    assert time.monotonic() - began >= 0.3
    assert 3 <= len(place.asked) < 20


@pytest.mark.parametrize("error", [NotSupported("TVM's"), RemoteFunctionError("no such function")])
def test_what_will_not_change_is_an_error_at_once(error):
    place = Place(None, error)
    line = Line(place, 60.0)
    line.lost(line.get())
    with pytest.raises(type(error)):
        line.get()


def test_those_who_wait_for_another_who_looks_get_what_that_one_gets():
    place = Place(GONE)
    began, goes_on = threading.Barrier(2), threading.Event()
    place.before = lambda: (began.wait(10), goes_on.wait(10))
    line, ended = Line(place, 60.0), []

    def ask() -> None:
        try:
            ended.append(line.get())
        except RpcsysError as error:
            ended.append(error)

    first = threading.Thread(target=ask)
    first.start()
    began.wait(10)
    rest = [threading.Thread(target=ask) for _ in range(4)]
    for thread in rest:
        thread.start()
    time.sleep(
        0.1
    )  # they are at the lock by then, or ask later, and the result is the same but for the count
    place.before = lambda: None
    goes_on.set()
    for thread in [first, *rest]:
        thread.join(10)
    assert len(ended) == 5
    assert any(one is GONE for one in ended)
    assert len(place.asked) <= 2


def test_who_does_not_want_to_wait_has_it_looked_for():
    place = Place(GONE, GONE, NotSupported("not now"))
    line = Line(place, 60.0)
    assert line.at_once() is None  # after the first try
    wait_until(lambda: line.current, 10, "the search finds it")
    assert line.at_once() is line.current
    assert len(place.asked) == 4
    wait_until(lambda: line._search is None, 10, "the search ends")


def test_a_first_try_that_takes_long_keeps_nobody():
    goes_on = threading.Event()
    place = Place()
    place.before = lambda: goes_on.wait(30)
    line = Line(place, 60.0)
    began = time.monotonic()
    assert line.at_once() is None
    assert line.at_once() is None  # not a second more each time
    assert time.monotonic() - began < 10
    goes_on.set()
    wait_until(lambda: line.current, 10, "the search finds it")


def test_a_search_ends_when_nobody_asks(monkeypatch):
    monkeypatch.setattr(lines, "IDLE_S", 0.2)
    place = Place(*[GONE] * 1000)
    line = Line(place, 60.0)
    assert line.at_once() is None
    wait_until(lambda: line._search is None, 10, "the search ends")
    tries = len(place.asked)
    assert line.at_once() is None  # and begins anew
    assert len(place.asked) > tries
    line.close()


def test_closed_it_opens_nothing():
    place = Place(None, *[GONE] * 1000)
    line = Line(place, 60.0)
    line.lost(line.get())
    ended: list[RpcsysError] = []

    def ask() -> None:
        try:
            line.get()
        except RpcsysError as error:
            ended.append(error)

    thread = threading.Thread(target=ask)
    thread.start()
    wait_until(lambda: len(place.asked) > 1, 10, "it looks")
    line.close()
    thread.join(10)
    assert isinstance(ended[0], (SessionClosed, ServerUnreachable))
    with pytest.raises(SessionClosed):
        line.get()
    assert line.at_once() is None


def test_what_is_opened_while_it_is_closed_is_closed():
    place = Place()
    line = Line(place, 60.0)
    place.before = line.close
    with pytest.raises(SessionClosed):
        line.get()
    assert [held.closed for held in place.made] == [1]
    assert line.current is None


def test_a_busy_server_is_avoided_where_there_are_others():
    place = Place(others=True)
    line = Line(place, 60.0)
    first = line.get()
    line.crowded(first)
    assert line.get().where == "server2"
    assert place.asked[-1][1] == ["server1"]
    assert place.made[0].closed == 0  # calls may be under way on it

    alone = Line(Place(), 60.0)
    only = alone.get()
    alone.crowded(only)
    assert alone.current is only
