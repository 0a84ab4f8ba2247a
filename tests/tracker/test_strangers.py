"""Which peers of a lab are read before they have said who they are."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from rpcsys.tracker import strangers as module
from rpcsys.tracker.strangers import FAILURES, FAILURES_S, LATER_S, TURN, Strangers
from rpcsys.tracker.views.metrics import LabCounts

MAX, MAX_OF_NETWORK = 6, 3


class Timer:
    def __init__(self, at: float, call: Callable[[], None]) -> None:
        self.at, self.call = at, call

    def cancel(self) -> None:
        self.call = lambda: None


class Clock:
    """A loop's time and timers, without a loop."""

    def __init__(self) -> None:
        self.now = 100.0
        self.timers: list[Timer] = []

    def time(self) -> float:
        return self.now

    def call_later(self, seconds: float, call: Callable[..., None], *arguments: object) -> Timer:
        self.timers.append(Timer(self.now + seconds, lambda: call(*arguments)))
        return self.timers[-1]

    def wait(self, seconds: float) -> None:
        self.now += seconds
        due, self.timers = [t for t in self.timers if t.at <= self.now], [t for t in self.timers if t.at > self.now]
        for timer in due:
            timer.call()


class Connection:
    """A peer; ``read``: whether it is read now."""

    def __init__(self, address: str) -> None:
        self.address, self.read = address, True

    def hold(self) -> None:
        self.read = False

    def read_on(self) -> None:
        assert not self.read
        self.read = True


class Entrance:
    def __init__(self) -> None:
        self.clock, self.counts = Clock(), LabCounts()
        self.strangers = Strangers(self.clock, self.counts)

    def come(self, address: str, count: int = 1) -> list[Connection]:
        made = [Connection(address) for _ in range(count)]
        for one in made:
            self.strangers.add(one)
        return made

    def fail(self, address: str, count: int) -> None:
        for one in self.come(address, count):
            self.strangers.failed(one.address, "tls")
            self.strangers.remove(one)


@pytest.fixture
def entrance(monkeypatch: pytest.MonkeyPatch) -> Iterator[Entrance]:
    monkeypatch.setattr(module, "MAX_READ", MAX)
    monkeypatch.setattr(module, "MAX_READ_OF_NETWORK", MAX_OF_NETWORK)
    return Entrance()


def reading(peers: list[Connection]) -> list[bool]:
    return [peer.read for peer in peers]


def test_so_many_of_a_network_are_read_and_the_next_when_one_leaves(entrance: Entrance) -> None:
    peers = entrance.come("10.0.0.5", 5)
    assert reading(peers) == [True] * 3 + [False] * 2
    entrance.strangers.remove(peers[1])
    assert reading(peers) == [True] * 4 + [False]
    entrance.strangers.remove(peers[4])  # it was not read yet
    entrance.strangers.remove(peers[0])
    assert reading(peers)[3:] == [True, False]


def test_a_flood_of_one_network_leaves_room_for_others(entrance: Entrance) -> None:
    flood = entrance.come("10.0.0.5", 100)
    (other,) = entrance.come("10.0.0.6")
    assert (sum(reading(flood)), other.read) == (3, True)


def test_networks_take_turns_where_all_is_taken(entrance: Entrance) -> None:
    first, second = entrance.come("10.0.0.1", 3), entrance.come("10.0.0.2", 3)
    third, fourth = entrance.come("10.0.0.3", 2), entrance.come("10.0.0.4", 2)
    assert not any(reading([*third, *fourth]))
    for number, leaving in enumerate([*first, *second[:1]], 1):
        entrance.strangers.remove(leaving)
        assert sum(reading([*third, *fourth])) == number
        assert abs(sum(reading(third)) - sum(reading(fourth))) <= 1


def test_a_network_that_fails_often_is_read_later_and_others_are_not(entrance: Entrance) -> None:
    entrance.fail("10.0.0.5", FAILURES - 1)
    (first,) = entrance.come("10.0.0.5")
    assert first.read
    entrance.fail("10.0.0.5", 1)
    (late,), (other,) = entrance.come("10.0.0.5"), entrance.come("10.0.0.6")
    assert (late.read, other.read) == (False, True)
    entrance.clock.wait(LATER_S)
    assert late.read
    assert (entrance.strangers.late("10.0.0.5"), entrance.strangers.late("10.0.0.6")) == (LATER_S, 0.0)
    assert entrance.counts.unauthorized["tls"] == FAILURES


def test_failures_are_forgotten_in_time(entrance: Entrance) -> None:
    entrance.fail("10.0.0.5", FAILURES)
    entrance.clock.wait(FAILURES_S)
    assert entrance.come("10.0.0.5")[0].read


def test_one_that_leaves_before_it_is_read_is_not_read(entrance: Entrance) -> None:
    entrance.fail("10.0.0.5", FAILURES)
    (late,) = entrance.come("10.0.0.5")
    entrance.strangers.remove(late)
    entrance.clock.wait(LATER_S)
    assert not late.read
    entrance.strangers.remove(late)  # a second time does nothing


def test_failures_of_so_many_networks_are_remembered(entrance: Entrance, monkeypatch) -> None:
    monkeypatch.setattr(module, "MAX_NETWORKS", 2)
    for number in range(3):
        entrance.fail(f"10.0.0.{number}", FAILURES)
    assert [entrance.come(f"10.0.0.{number}")[0].read for number in range(3)] == [True, False, False]


def test_a_turn_handles_some_and_the_first_first(entrance: Entrance) -> None:
    peers = [Connection("10.0.0.5") for _ in range(TURN + 3)]
    entrance.strangers.heard.extend(peers)
    assert entrance.strangers.take() == peers[:TURN]
    assert entrance.strangers.take() == peers[TURN:]
    assert entrance.strangers.take() == []


def test_the_memory_of_a_crowd_is_given_back_once_all_are_gone(
    entrance: Entrance, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[float] = []
    monkeypatch.setattr(module, "CROWD", MAX_OF_NETWORK)
    monkeypatch.setattr(module, "give_back_memory", lambda: given.append(entrance.clock.now))
    for count, expected in ((MAX_OF_NETWORK, 1), (MAX_OF_NETWORK - 1, 1), (MAX_OF_NETWORK, 2)):
        for peer in entrance.come("10.0.0.5", count):
            entrance.strangers.remove(peer)
        entrance.clock.wait(LATER_S)
        assert len(given) == expected
