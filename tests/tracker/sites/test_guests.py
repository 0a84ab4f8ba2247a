"""Clients of other sites in the tracker's state: their users, their priority, and what ends with them."""

from __future__ import annotations

from typing import Any

import pytest

from rpcsys.tracker import events
from rpcsys.tracker.sites import guests
from rpcsys.tracker.sites.guests import HOME, Guest, GuestLink, Guests, guest_of
from rpcsys.tracker.state import TrackerState
from rpcsys.wire import control, tracker
from rpcsys.wire.checks import MAX_TEXT

LINK, BOARD = 1, 2
AT, LOCAL = "10.1.0.1", "10.2.0.1"


class Lab:
    """The state of the tracker in Paris, a board, and a link from Berlin."""

    def __init__(self) -> None:
        self.at, self.numbers = 1_000_000.0, BOARD
        self.state = TrackerState(events.TrackerStarted(self.at, "paris.1"))
        self.guests = Guests(self.perform, self.number, lambda: self.at)
        self.said: dict[int, list[Any]] = {LINK: [], HOME: [], BOARD: []}
        self.guests.links[LINK] = GuestLink("berlin", self.said[LINK].append)
        self.guests.links[HOME] = GuestLink("", self.said[HOME].append)
        self.perform(events.Connected(self.at, BOARD, "10.2.0.9", LOCAL))
        self.perform(events.Received(self.at, BOARD, control.Register(1, "rpi4", "far")))

    def number(self) -> int:
        self.numbers += 1
        return self.numbers

    def perform(self, event: events.Event) -> None:
        for action in self.state.apply(event):
            if isinstance(action, events.Send):
                if action.conn == BOARD:
                    self.said[BOARD].append(action.message)
                else:
                    self.guests.told(action.conn, action.message)

    def offer(self, part: str) -> None:
        self.perform(events.Received(self.at, BOARD, tracker.Put("rpi4", 9090, f"rpi4:{part}")))

    def ask(self, link: int, user: str, message: Any, number: int = 1, address: str = "10.1.0.7") -> None:
        of = self.guests.links[link]
        guest = guest_of(of, AT, LOCAL, number, user, address) if link else Guest(number, user, address, LOCAL)
        self.guests.ask(link, guest, message)

    def told(self) -> list[str]:
        """What the board is told."""
        return [message["op"] for message in self.said[BOARD] if type(message) is dict and "op" in message]

    def leases(self) -> list[tuple[str, str]]:
        return [(lease.user, lease.address) for lease in self.state.records.leases.values()]


@pytest.fixture
def lab() -> Lab:
    return Lab()


def test_a_guests_user_has_its_site_and_its_own_address(lab: Lab) -> None:
    lab.offer("a")
    lab.ask(LINK, "ann", control.Request(5, "rpi4"))
    assert lab.leases() == [("ann@berlin", "10.1.0.7")]
    (answer,) = lab.said[LINK]
    assert (answer["id"], answer["leases"][0]["matchkey"]) == (5, "rpi4:a")


def test_a_client_on_its_trackers_machine_is_at_the_trackers_address(lab: Lab) -> None:
    lab.offer("a")
    lab.ask(LINK, "ann", control.Request(5, "rpi4"), address="127.0.0.1")
    assert lab.leases() == [("ann@berlin", AT)]


def test_the_sites_own_users_keep_their_names_and_their_priority(lab: Lab) -> None:
    lab.ask(LINK, "ann", control.Request(1, "rpi4", priority=1))
    lab.ask(HOME, "mo", control.Request(2, "rpi4", priority=1))
    lab.offer("a")
    assert lab.leases() == [("mo", "10.1.0.7")]
    waiting = lab.state.records.waiting.values()
    assert [(request.user, request.priority) for request in waiting] == [("ann@berlin", 0)]


def test_a_guest_with_more_priority_is_first(lab: Lab) -> None:
    lab.ask(HOME, "mo", control.Request(2, "rpi4", priority=1))
    lab.ask(LINK, "ann", control.Request(1, "rpi4", priority=3))
    lab.offer("a")
    assert lab.leases() == [("ann@berlin", "10.1.0.7")]


def test_guests_of_one_name_are_told_apart_by_their_connections(lab: Lab) -> None:
    lab.ask(LINK, "ann", control.Request(1, "rpi4"), number=1)
    lab.ask(LINK, "ann", control.Request(2, "rpi4"), number=2)
    lab.guests.left(LINK, 1)
    lab.guests.left(LINK, 9)
    assert [request.id for request in lab.state.records.waiting.values()] == [2]


def test_what_a_guest_has_not_used_ends_with_it_and_with_its_link(lab: Lab) -> None:
    lab.offer("a")
    lab.offer("b")
    for number in (1, 2):
        lab.ask(LINK, "ann", control.Request(number, "rpi4"), number=number)
    lab.guests.left(LINK, 1)
    assert lab.told() == ["taken", "taken", "end"]
    lab.guests.end(LINK)
    assert lab.told()[3:] == ["end"]
    assert LINK not in lab.guests.links
    assert [*lab.state.records.peers] == [BOARD]
    lab.guests.end(LINK)


def test_the_guests_of_a_link_are_bounded(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guests, "MAX_GUESTS", 2)
    for number in (1, 2, 2):
        lab.ask(LINK, "ann", control.Request(lab.number(), "rpi4"), number=number)
    with pytest.raises(ValueError, match="2 clients of site berlin are known here already"):
        lab.ask(LINK, "ann", control.Request(3, "rpi4"), number=3)


def test_a_long_name_is_cut(lab: Lab) -> None:
    lab.ask(LINK, "a" * MAX_TEXT, control.Request(1, "rpi4"))
    (request,) = lab.state.records.waiting.values()
    assert (len(request.user), request.user.endswith("a@berlin")) == (MAX_TEXT, True)
