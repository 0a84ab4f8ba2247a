"""Clients that the tracker's state knows only by the word of a site: guests of other sites, and this site's own clients
as far as they ask for several sites. Each is a connection in the state, without a socket of its own.

A *link* is the connection over which another site asks, or `HOME`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from rpcsys import __version__
from rpcsys.tracker import events
from rpcsys.tracker.addresses import is_loopback
from rpcsys.wire import checks, control, tracker

HOME = 0
#: Clients of one link that are known at once: as many as wait on a few of its connections.
MAX_GUESTS = 16_384
#: Guests stand one step of priority behind a site's own users.
STEP_BEHIND = 1.0


@dataclass(slots=True)
class GuestLink:
    """Where guests come from. ``answer`` takes what the state says to one of them."""

    site: str  # "" for this one
    answer: Callable[[Any], None]
    numbers: dict[int, int] = field(default_factory=dict)  # of a guest at its site -> of its connection in the state


@dataclass(frozen=True, slots=True)
class Guest:
    """A client, as its site has named it, with the number of its connection there; ``local``: of `events.Connected`."""

    number: int
    user: str
    address: str
    local: str


class Guests:
    """All guests. ``perform`` gives an event to the state; ``number`` makes the number of a connection."""

    def __init__(
        self, perform: Callable[[events.Event], None], number: Callable[[], int], now: Callable[[], float]
    ) -> None:
        self._perform, self._number, self._now = perform, number, now
        self.links: dict[int, GuestLink] = {}
        self._link_of: dict[int, GuestLink] = {}  # by the number in the state

    def ask(self, link: int, guest: Guest, message: Any) -> None:
        """Give a guest's message to the state. Raises `ValueError`: too many guests."""
        of = self.links[link]
        if of.site and guest.number not in of.numbers and len(of.numbers) >= MAX_GUESTS:
            raise ValueError(f"{MAX_GUESTS} clients of site {of.site} are known here already")
        number = of.numbers.get(guest.number) or self._welcome(of, guest)
        if of.site and isinstance(message, control.Request):
            message = replace(message, priority=message.priority - STEP_BEHIND)
        self._perform(events.Received(self._now(), number, message))

    def _welcome(self, link: GuestLink, guest: Guest) -> int:
        number = link.numbers[guest.number] = self._number()
        self._perform(events.Connected(self._now(), number, guest.address, guest.local))
        hello = control.Hello(__version__, (), guest.user)
        self._perform(events.Received(self._now(), number, tracker.Ping(hello)))
        self._link_of[number] = link
        return number

    def told(self, number: int, message: Any) -> None:
        """Pass on what the state says to a guest; what it answers to a hello is for nobody."""
        link = self._link_of.get(number)
        if link is not None:
            link.answer(message)

    def left(self, link: int, guest: int) -> None:
        """The connection of a client has ended at its site."""
        of = self.links.get(link)
        number = None if of is None else of.numbers.pop(guest, None)
        if number is not None:
            del self._link_of[number]
            self._perform(events.Disconnected(self._now(), number))

    def end(self, link: int) -> None:
        """A link has ended, and with it all of its guests."""
        of = self.links.get(link)
        for guest in [*of.numbers] if of is not None else ():
            self.left(link, guest)
        self.links.pop(link, None)


def guest_of(link: GuestLink, at: str, local: str, number: int, user: str, address: str) -> Guest:
    """A client that the site at address ``at`` has named; its user has the site's name.

    One on the very machine of its site's tracker is at that one's address.
    """
    who = f"{user}@{link.site}"
    if len(who) > checks.MAX_TEXT:
        who = f"{user[: checks.MAX_TEXT - len(link.site) - 1]}@{link.site}"
    return Guest(number, who, at if is_loopback(address) else address, local)
