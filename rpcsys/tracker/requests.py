"""Requests: they come, wait, are told how things stand, and leave with a device or without.

A request of ours that has to wait gets a ticket. The ticket keeps its place for `TICKET_S` when its client's
connection breaks, and over a restart of the tracker; the request itself waits only while its client is there.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from rpcsys.tracker.entities import Offer, Peer, Place, Queue, Waiting
from rpcsys.tracker.events import Action, Record, Send
from rpcsys.tracker.keepalive import Keepalive
from rpcsys.tracker.labels import Wants, wants_of, wants_of_key
from rpcsys.tracker.records import STEP_S, STEPS
from rpcsys.tracker.views import eta, hints, leases, why
from rpcsys.wire import control, tracker
from rpcsys.wire.control import Answer

Holders = list[dict[str, Any]]

MAX_WAITING = 4096
"""Requests that one connection may have waiting at a time."""

MAX_LABELS = 16
"""Labels of a request. A device has about ten."""

TICKET_S = 60.0

TOLD_AT_ONCE = 500
"""Requests looked at in one step, some 5 ms, when queues have moved; whoever else comes has a turn before the next."""

_TOLD_EXACTLY = 100
"""Beyond this place, a client is told of a change of a tenth or more: it would not notice less."""


class Requests(Keepalive):
    """A book that people wait in."""

    def tvm_request(self, at: float, peer: Peer, message: tracker.TvmRequest) -> list[Action]:
        """A TVM client wants a device. It waits, whatever there is."""
        if len(peer.waiting) >= MAX_WAITING:
            return [
                Send(peer.conn, [tracker.FAIL, f"{MAX_WAITING} requests wait on this connection already"])
            ]
        if message.user:
            peer.user = message.user
        wants, arrival = wants_of_key(message.key), self._arrival(at)
        request = Waiting(arrival, peer.conn, None, wants, message.priority, peer.who, at)
        offer = self.find(message.priority, wants)
        if offer is not None:
            return self.grant(at, peer, request, [offer])
        full = self.held.full(peer.address, wants)
        if full:
            return [Send(peer.conn, [tracker.FAIL, full])]
        self.add_request(at, peer, request)
        self.note_move(at, request.key)
        return []

    def request(self, at: float, peer: Peer, message: control.Request) -> list[Action]:
        """One of our clients wants devices."""
        try:
            wants = _wants(peer, message)
        except ValueError as problem:
            return [refusal(peer, message.id, "BadRequest", str(problem))]
        taken_over = self._take_over(at, peer, wants, message.ticket)
        place = None if message.ticket is None else self._place(at, peer, wants, message.ticket)
        known_until = None if message.wait_for_key or place is not None else self._known_until(wants)
        if known_until is not None and at >= known_until:
            return [refusal(peer, message.id, "UnknownKey", hints.unknown(self, wants))]
        request = self._new(at, peer, message, wants, place)
        actions = taken_over
        if request.count == 1:
            offer = self.find(request.priority, wants)
            if offer is not None:
                return [
                    *actions,
                    *self.grant(at, peer, request, [offer]),
                    *self._waited(at, request, "granted"),
                ]
        full = self.too_many(peer.address, request)
        if full:
            return [*actions, refusal(peer, message.id, "BadRequest", full)]
        self.add_request(at, peer, request)
        if request.count > 1:
            actions = actions + self.gather(at, request)
            if request.arrival not in self.waiting:
                return actions
        if known_until is not None:
            self.remind(request, "unknown", known_until)
        if message.wait_timeout is not None:
            self.remind(request, "timeout", at + message.wait_timeout)
        return actions + self._wait(at, request)

    def _new(
        self, at: float, peer: Peer, message: control.Request, wants: Wants, place: Place | None
    ) -> Waiting:
        if place is None:
            arrival = self._arrival(at)
            ticket, since = f"{arrival}@{self.instance}", at
        else:
            assert message.ticket is not None
            arrival, ticket, since = place.arrival, message.ticket, place.since
        return Waiting(
            arrival=arrival,
            conn=peer.conn,
            id=message.id,
            wants=wants,
            priority=message.priority,
            user=peer.who,
            since=since,
            limit_s=message.session_timeout or None,  # 0 is TVM's way to say: no limit
            count=message.count,
            ticket=ticket,
            recorded=place is not None,
        )

    def _arrival(self, at: float) -> int:
        """A number above all others, those of runs before this one too."""
        self.arrivals = max(self.arrivals + 1, int(at * 1000))
        return self.arrivals

    def _wait(self, at: float, request: Waiting) -> list[Action]:
        """Tell whoever has to wait, and those whose place changes by it."""
        queue = self.queues[request.key]
        if len(queue.waiting) > 1:
            self.note_move(at, request.key)
        told = _told(request, eta.ahead(self, at, request), *self._eta(at, queue))
        if request.recorded:
            return [told]
        request.recorded = True
        details = {
            "ticket": request.ticket,
            "arrival": request.arrival,
            "key": request.key,
            "labels": request.wants.labels,
            "count": request.count,
            "priority": request.priority,
            "user": request.user,
            "address": self.peers[request.conn].address,
            "since": request.since,
        }
        return [Record(at, "waiting", details), told]

    def _known_until(self, wants: Wants) -> float | None:
        """Until when something that nobody serves is taken for known; None while somebody does."""
        if wants.bare:
            return self.known_until(wants.key)
        if self.servers(wants):
            return None
        queue = self.queues.get(wants.key) if wants.key else None
        return self.known_after(self.left_at if queue is None else queue.left_at)

    # Tickets.

    def _place(self, at: float, peer: Peer, wants: Wants, ticket: str) -> Place | None:
        """The place that a ticket keeps, which the client takes again; None if it keeps none."""
        place = self.places.get(ticket)
        if place is None:
            place = self._lost_place(at, peer, wants, ticket)
        elif (place.user, place.wants) != (peer.who, wants):
            return None
        else:
            self.take_place(ticket)
            self.deadlines.drop(("ticket", ticket))
        if self.settling is not None:
            self.settling.tickets.pop(ticket, None)
        return place

    def _lost_place(self, at: float, peer: Peer, wants: Wants, ticket: str) -> Place | None:
        """A place that the last run gave in its last second, which its records may lack."""
        digits = ticket.partition("@")[0]
        if self.settling is None or not (digits.isascii() and digits.isdigit() and len(digits) < 16):
            return None
        arrival = int(digits)
        if not self.settling.arrival < arrival < int(self.started_at * 1000) or arrival in self.waiting:
            return None
        return Place(arrival, min(at, arrival / 1000), peer.who, wants)

    def _take_over(self, at: float, peer: Peer, wants: Wants, ticket: str | None) -> list[Action]:
        """A ticket is presented again before its old connection is known to be dead."""
        request = None if ticket is None else self.tickets.get(ticket)
        if request is None or (request.user, request.wants) != (peer.who, wants):
            return []
        text = "the request was asked again, with its ticket"
        again = refusal(self.peers[request.conn], request.id or 0, "Cancelled", text)
        return [again, *self.leave(at, [request])]

    def leave(self, at: float, requests: Collection[Waiting]) -> list[Action]:
        """Requests wait no longer; the tickets that they have keep their places for a while.

        All are gone before what they had gathered is given away: none of them is served any more.
        """
        actions: list[Action] = []
        freed: list[Offer] = []
        for request in requests:
            actions += self._leave_place(at, request)
            freed += self._take_out(at, request)
        return actions + self.give_away(at, freed)

    def _leave_place(self, at: float, request: Waiting) -> list[Action]:
        if request.ticket is None:
            return []
        actions: list[Action] = []
        place = Place(request.arrival, request.since, request.user, request.wants)
        while self.places and not self.room_for(place):
            first = next(iter(self.places))
            self.deadlines.drop(("ticket", first))
            actions += self.lose_place(at, first)
        self.keep_place(request.ticket, place)
        self.deadlines.set(("ticket", request.ticket), at + TICKET_S)
        return actions

    def _take_out(self, at: float, request: Waiting) -> list[Offer]:
        """A request leaves its queue; what it had gathered is still to be given away."""
        offers = self._let_go(request)
        self.remove_request(at, request)
        return offers

    def lose_place(self, at: float, ticket: str) -> list[Action]:
        """A ticket was not presented again."""
        place = self.take_place(ticket)
        details = {"ticket": ticket, "waited_s": round(at - place.since, 3), "why": "left"}
        return [Record(at, "waited", details)]

    # Leaving without a device.

    def cancel(self, at: float, peer: Peer, message: control.Cancel) -> list[Action]:
        """A client takes a request back."""
        request = peer.requests.get(message.request)
        if request is None:
            return [done(peer, message.id, cancelled=False)]
        gone = self._give_up(at, request, "Cancelled", "the request was taken back", "cancelled")
        return [*gone, done(peer, message.id, cancelled=True)]

    def timed_out(self, at: float, arrival: int) -> list[Action]:
        """The time is over that a client wanted to wait."""
        request = self.waiting[arrival]
        message = f"no device of {request.wants} became free in the time allowed for waiting"
        return self._give_up(at, request, "WaitTimeout", message, "timeout")

    def still_unknown(self, at: float, arrival: int) -> list[Action]:
        """The time is over in which servers come back."""
        request = self.waiting[arrival]
        if self.servers(request.wants):
            return []
        return self._give_up(at, request, "UnknownKey", hints.unknown(self, request.wants), "unknown")

    def _give_up(self, at: float, request: Waiting, error: str, message: str, why: str) -> list[Action]:
        assert request.id is not None, "TVM's requests have no deadline"
        peer = self.peers[request.conn]
        freed = self.give_away(at, self._take_out(at, request))
        return [refusal(peer, request.id, error, message), *self._waited(at, request, why), *freed]

    # Time.

    def age(self, at: float, arrival: int) -> list[Action]:
        """A request has waited for another step."""
        request = self.waiting[arrival]
        if not request.parked:
            self.lines.remove(request)
        request.steps += 1
        if not request.parked:
            self.lines.add(request)
        if request.steps < STEPS:
            self.remind(request, "age", request.since + (request.steps + 1) * STEP_S)
        self.note_move(at, request.key)
        return []

    def tell_positions(self, at: float) -> list[Action]:
        """Tell those who wait in queues that have moved where they stand: some queues, and soon the next ones."""
        actions: list[Action] = []
        told = 0
        while self.moved and told < TOLD_AT_ONCE:
            key = next(iter(self.moved))
            del self.moved[key]
            queue = self.queues[key]
            told += 1 + len(queue.waiting)
            estimate, holders = self._eta(at, queue)
            for index, request in enumerate(eta.in_order(self, at, queue)):
                if request.id is not None and _worth_telling(request.told, index + 1):
                    actions.append(_told(request, index, estimate, holders))
        if self.moved:
            self.deadlines.set(("positions",), at)
        return actions

    def _eta(self, at: float, queue: Queue) -> tuple[eta.Estimate, Holders]:
        return eta.Estimate(queue, self.pool.count(queue.key), at), leases.holders(queue, at)

    def why(self, at: float, peer: Peer, message: control.Why) -> list[Action]:
        """Why somebody waits."""
        request = None if message.request is None else peer.requests.get(message.request)
        key = request.key if request is not None else message.key
        if key is None:
            problem = "say which: a request of this connection that waits, or a key"
            return [refusal(peer, message.id, "BadRequest", problem)]
        if request is None and key not in self.queues:
            return [refusal(peer, message.id, "UnknownKey", hints.unknown(self, wants_of_key(key)))]
        return [done(peer, message.id, why=why.why(self, at, key, request))]


def _wants(peer: Peer, message: control.Request) -> Wants:
    """What a request wants; a ValueError says in a sentence why it cannot be taken."""
    if message.id in peer.requests:
        raise ValueError(f"id {message.id} is in use by a request that waits")
    if len(peer.waiting) >= MAX_WAITING:
        raise ValueError(f"{MAX_WAITING} requests wait on this connection already")
    if len(message.labels) > MAX_LABELS:
        raise ValueError(f"more than {MAX_LABELS} labels")
    return wants_of(message.key or "", message.labels)


def _told(request: Waiting, before: int, estimate: eta.Estimate, holders: Holders) -> Send:
    """Tell a client of ours where its request stands."""
    assert request.id is not None, "TVM's clients are not told"
    request.told = before + 1
    event = {  # what control.Queued is on the wire; made so often that the short way counts
        "id": request.id,
        "event": "queued",
        "position": before + 1,
        "ahead": before,
        "eta_s": estimate.of(request, before),
        "ticket": request.ticket,
        "holders": holders,
        "note": request.parked,
    }
    return Send(request.conn, event)


def _worth_telling(told: int, position: int) -> bool:
    change = abs(position - told)
    return change > 0 if position <= _TOLD_EXACTLY else change >= position / 10


def done(peer: Peer, asked: int, **fields: Any) -> Send:
    """The final answer to what was asked."""
    return Send(peer.conn, Answer(asked, True, fields=fields).to_json())


def refusal(peer: Peer, asked: int, error: str, message: str) -> Send:
    """The final answer to what cannot be."""
    return Send(peer.conn, Answer(asked, False, error, message).to_json())
