"""A site's tracker beside the trackers of other sites: messages become events of `SitesState`, and its actions are
carried out. Nothing is decided here.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from ipaddress import ip_address
from typing import Any, Protocol

from rpcsys.errors import ProtocolError
from rpcsys.link.address import each_address
from rpcsys.link.admission import plain
from rpcsys.tracker import events
from rpcsys.tracker.config import TrackerConfig
from rpcsys.tracker.connection import PeerConnection
from rpcsys.tracker.events import Received
from rpcsys.tracker.sites.guests import HOME, Guest, GuestLink, Guests, guest_of
from rpcsys.tracker.sites.links import SILENT_S, SiteLink
from rpcsys.tracker.sites.state import ASKED, AskSite, Leave, SiteAction, SitePart, SitesState, Tell
from rpcsys.tracker.state import TrackerState
from rpcsys.tracker.views.metrics import SiteCounts
from rpcsys.wire import control, tracker
from rpcsys.wire.checks import items
from rpcsys.wire.control import Answer
from rpcsys.wire.sites import ANY, OF_GUESTS, SITE, AskForGuest, GuestLeft, Introduce, site_of, split_ticket

log = logging.getLogger(__name__)
TICK_S = 1.0
RESOLVE_S = 60.0  # between two look-ups of the peers' addresses
#: How much longer than its client allows a request may wait, for the answers of its sites.
GRACE_S = 2.0
_leases = items(control.Lease.from_json)
_ABOUT_LEASES = (control.Renew, control.Release, control.EndLease)


class OwnTracker(Protocol):
    """What the sites need of the tracker's service."""

    loop: asyncio.AbstractEventLoop
    connections: dict[int, PeerConnection]
    state: TrackerState

    def now(self) -> float:
        """Seconds since 1970."""

    def number(self) -> int:
        """A number for a connection."""

    def perform(self, event: events.Event) -> None:
        """Give an event to the state, and carry out its actions."""

    def flush(self) -> None:
        """Send what is unsent."""


@dataclass(slots=True)
class Heard:
    """A link from another site, and when it was heard last."""

    site: str
    at: float


class SitesService:
    """The sites that a tracker knows, made inside its event loop; the state's connections are ``own``'s."""

    def __init__(self, own: OwnTracker, config: TrackerConfig) -> None:
        assert config.site is not None, "a tracker without a name has no sites"
        self.state = SitesState(config.site, (site for site, _ in config.peers))
        self.counts = SiteCounts()
        self._own = own
        self._guests = Guests(own.perform, own.number, own.now)
        self._guests.links[HOME] = GuestLink("", self._from_home)
        self._from_own: deque[Any] = deque()
        self._peers = dict(config.peers)
        self._trusted = {site: _numeric(address) for site, address in config.peers}  # addresses, by site
        self._heard: dict[int, Heard] = {}  # by the number of the connection
        self._links = {
            site: SiteLink(config.site, site, address, self._reached, self._cut, self._from_site)
            for site, address in config.peers
        }
        self._handlers: dict[type, Callable[[PeerConnection, Any], bool]] = {
            Introduce: self._introduce,
            AskForGuest: self._ask_for_guest,
            GuestLeft: self._guest_left,
            tracker.TvmRequest: self._tvm_request,
            control.Request: self._request,
            control.Cancel: self._cancel,
            **dict.fromkeys(_ABOUT_LEASES, self._about_lease),
        }
        self._resolving = own.loop.create_task(self._resolve())
        self._timer = own.loop.call_later(TICK_S, self._tick)
        self._note()

    def close(self) -> None:
        """End the links to other sites."""
        self._timer.cancel()
        self._resolving.cancel()
        for link in self._links.values():
            link.close()

    # What the tracker hands over.

    def takes(self, connection: PeerConnection, message: Any) -> bool:
        """Handle a message, if it is one for other sites, or from one."""
        heard = self._heard.get(connection.number)
        if heard is not None:
            heard.at = self._own.loop.time()
        handler = self._handlers.get(type(message))
        return handler is not None and handler(connection, message)

    def told(self, number: int, message: Any) -> None:
        """Pass on what the state says to a connection that is not the tracker's own."""
        self._guests.told(number, message)

    def left(self, number: int) -> None:
        """A connection has ended."""
        if self._heard.pop(number, None) is not None:
            self._guests.end(number)
        self._carry_out(self.state.left(number))

    # Clients of this site.

    def _request(self, connection: PeerConnection, message: control.Request) -> bool:
        wanted = message.labels.get(SITE)
        if wanted is None:
            return False
        sites = self._sites(wanted)
        message = replace(message, labels={name: text for name, text in message.labels.items() if name != SITE})
        if sites == (self.state.own,):
            self._own.perform(Received(self._own.now(), connection.number, message))
        elif sites is None:
            known = ", ".join((ANY, *self.state.sites))
            self._refuse(connection, message.id, f"site {wanted!r} is not known here; there are: {known}")
        elif why := self.state.problem(connection.number, message.id):
            self._refuse(connection, message.id, why)
        else:
            until = None if message.wait_timeout is None else self._own.now() + message.wait_timeout + GRACE_S
            tickets = {site or self.state.own: ticket for site, ticket in split_ticket(message.ticket).items()}
            message = replace(message, ticket=None)
            self._carry_out(self.state.request(connection.number, message, sites, tickets, id=message.id, until=until))
        return True

    def _tvm_request(self, connection: PeerConnection, message: tracker.TvmRequest) -> bool:
        key, sign, wanted = message.key.rpartition("@")
        sites = self._sites(wanted) if sign and key else None
        if sites is None:
            return False
        if sites == (self.state.own,):
            self._own.perform(Received(self._own.now(), connection.number, replace(message, key=key)))
        elif why := self.state.problem(connection.number, None):
            connection.send([tracker.FAIL, why])
        else:
            ours = control.Request(0, key, message.priority, wait_for_key=True)
            self._carry_out(self.state.request(connection.number, ours, sites, {}, id=None))
        return True

    def _sites(self, wanted: str) -> tuple[str, ...] | None:
        """The sites that a request wants; None for no known one."""
        if wanted == ANY:
            return self.state.sites
        return (wanted,) if wanted in self.state.sites else None

    def _cancel(self, connection: PeerConnection, message: control.Cancel) -> bool:
        if not self.state.has(connection.number, message.request):
            return False
        self._carry_out(self.state.cancel(connection.number, message))
        return True

    def _about_lease(self, connection: PeerConnection, message: Any) -> bool:
        site = site_of(message.lease)
        if site not in self._links:
            return False
        self._carry_out(self.state.about_lease(connection.number, message, site))
        return True

    # Other sites' trackers.

    def _introduce(self, connection: PeerConnection, message: Introduce) -> bool:
        """Let a site ask for its clients, if it comes from where it is known to be. It has one link at a time."""
        why = self._why_not(connection, message.site)
        if why:
            log.warning("site %s is refused: %s", message.site[:64], why)
            self._refuse(connection, message.id, why, "Forbidden")
            return True
        for number in [number for number, heard in self._heard.items() if heard.site == message.site]:
            if number != connection.number and number in self._own.connections:
                self._own.connections[number].drop(f"site {message.site} has another link now")
        self._heard[connection.number] = Heard(message.site, self._own.loop.time())
        answer = partial(self._answer_guest, connection, message.site)
        self._guests.links.setdefault(connection.number, GuestLink(message.site, answer))
        connection.send(Answer(message.id, True, fields={"site": self.state.own}).to_json())
        return True

    def _answer_guest(self, connection: PeerConnection, site: str, message: Any) -> None:
        self.counts.lent[site] += len(message.get("leases", ()))
        connection.send(message)

    def _why_not(self, connection: PeerConnection, site: str) -> str:
        """Why a connection may not speak for a site; "" if it may."""
        if site not in self._peers:
            return f"site {self.state.own} has no peer of that name: start its tracker with --peer {site}=HOST:PORT"
        if connection.number in self._heard:
            return "it has said already which site it is"
        address = self._own.state.records.peers[connection.number].address
        if address in self._trusted[site]:
            return ""
        return f"it comes from {address}: name that in --peer {site}=…, too, at the tracker of site {self.state.own}"

    def _ask_for_guest(self, connection: PeerConnection, message: AskForGuest) -> bool:
        link = self._guests.links.get(connection.number)
        if link is None:
            self._refuse(connection, message.id, "only the tracker of a peer site asks for others", "Forbidden")
            return True
        try:
            asked = tracker.parse_to_tracker(message.ask, OF_GUESTS)
            if type(asked) not in OF_GUESTS.values():
                raise ProtocolError("this is not asked for others")
            guest = guest_of(link, connection.address, connection.local, message.guest, message.user, message.address)
            self._guests.ask(connection.number, guest, asked)
        except (ProtocolError, ValueError) as problem:
            self._refuse(connection, message.id, str(problem))
        return True

    def _guest_left(self, connection: PeerConnection, message: GuestLeft) -> bool:
        self._guests.left(connection.number, message.guest)
        connection.send(Answer(message.id, True).to_json())
        return True

    def _refuse(self, connection: PeerConnection, id: int, why: str, error: str = "BadRequest") -> None:
        connection.send(Answer(id, False, error, why).to_json())

    async def _resolve(self) -> None:
        """Look up the addresses of the peers now and then."""
        while True:
            for site, address in self._peers.items():
                found: set[str] = set()
                for host, port in each_address(address):
                    try:
                        answers = await self._own.loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
                    except (OSError, UnicodeError) as error:
                        log.warning("site %s: no address of %s is known (%s)", site, host, error)
                        found.update(self._trusted[site])
                    else:
                        found.update(plain(str(answer[4][0])) for answer in answers)
                self._trusted[site] = frozenset(found)
            await asyncio.sleep(RESOLVE_S)

    # What sites say.

    def _reached(self, site: str) -> None:
        self._carry_out(self.state.reached(site))
        self._note()
        self._own.flush()

    def _cut(self, site: str) -> None:
        self._carry_out(self.state.cut(site))
        self._note()
        self._own.flush()

    def _from_site(self, site: str, message: dict[str, Any]) -> None:
        """Handle a message of a site. Raises `ProtocolError`: it makes no sense."""
        self._take(site, message)
        self._own.flush()

    def _from_home(self, message: Any) -> None:
        """Take what the tracker's own state says, later: it may be in the midst of an event."""
        self._from_own.append(message)
        if len(self._from_own) == 1:
            self._own.loop.call_soon(self._take_from_home)

    def _take_from_home(self) -> None:
        while self._from_own:
            self._take(self.state.own, self._from_own.popleft())
        self._own.flush()

    def _take(self, site: str, message: dict[str, Any]) -> None:
        if "event" in message:
            if message["event"] == "queued":
                event = control.Queued.from_json(message, "event")
                self._asked(site, event.id)
                self._carry_out(self.state.queued(event.id, event.to_json()))
            return  # others are a newer tracker's
        answer = control.Answer.from_json(message)
        part = self._asked(site, answer.id)
        if answer.ok and part is not None:
            granted = _leases(answer.fields.get("leases"), "leases")
            if len(granted) != part.request.message.count:
                raise ProtocolError(f"site {site} has granted {len(granted)} devices, which were not asked for")
            if site != self.state.own and part.state is ASKED:
                self.counts.borrowed[site] += len(granted)
                for lease in granted:
                    log.info("site %s has granted lease %s", site, lease.lease)
        self._carry_out(self.state.answered(answer.id, answer.to_json()))

    def _asked(self, site: str, number: int) -> SitePart | None:
        """What is answered. Raises `ProtocolError`: another site was asked."""
        part = self.state.parts.get(number)
        if part is not None and part.site != site:
            raise ProtocolError("it answers what another site was asked")
        return part

    # Actions.

    def _carry_out(self, actions: list[SiteAction]) -> None:
        for action in actions:
            if isinstance(action, Tell):
                connection = self._own.connections.get(action.client)
                if connection is not None:
                    connection.send(action.message)
            elif isinstance(action, AskSite):
                self._ask(action)
            else:
                self._leave(action)

    def _ask(self, action: AskSite) -> None:
        message, client = action.message, self._own.state.records.peers[action.client]
        if action.until is not None:
            message = replace(message, wait_timeout=max(0.0, action.until - GRACE_S - self._own.now()))
        if action.site == self.state.own:
            guest = Guest(action.client, client.user, client.address, client.local)
            self._guests.ask(HOME, guest, message)
        else:
            asked = AskForGuest(message.id, action.client, client.who, client.address, message.to_json())
            self._links[action.site].send(asked.to_json())

    def _leave(self, action: Leave) -> None:
        if action.site == self.state.own:
            self._guests.left(HOME, action.client)
        else:
            self._links[action.site].send(GuestLeft(action.number, action.client).to_json())

    # Time.

    def _tick(self) -> None:
        self._timer = self._own.loop.call_later(TICK_S, self._tick)
        for link in self._links.values():
            link.tick()
        silent = self._own.loop.time() - SILENT_S - TICK_S
        for number in [number for number, heard in self._heard.items() if heard.at < silent]:
            self._own.connections[number].drop(f"site {self._heard[number].site} has fallen silent")
        self._carry_out(self.state.expired(self._own.now()))
        self._own.flush()

    def _note(self) -> None:
        """Have the tracker's state know which sites can be reached, for people."""
        self.counts.reached = {site: site not in self.state.cut_off for site in self.state.sites[1:]}
        texts = [f"{site} (cut off)" if site in self.state.cut_off else site for site in self.state.sites[1:]]
        text = f"site {self.state.own}; peers: {', '.join(texts) or 'none'}"
        self._own.perform(events.SitesChanged(self._own.now(), text))


def _numeric(address: tuple[str, int]) -> frozenset[str]:
    """The hosts of a peer's addresses that are no names."""
    found = set()
    for host, _ in each_address(address):
        with contextlib.suppress(ValueError):
            found.add(plain(str(ip_address(host))))
    return frozenset(found)
