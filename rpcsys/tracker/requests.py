"""Requests, from their arrival until they are granted or withdrawn, with the position events that they get meanwhile.

A ticket keeps the place of one of our requests for `TICKET_S` after its connection breaks or the tracker restarts. The
tracker itself keeps the tickets of TVM's requests, and looks for one after a restart alone, for `TVM_TICKET_S`.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from itertools import islice

from rpcsys.tracker.entities import Peer, Queue, QueuePlace, Sender, SlotOffer, WaitingRequest
from rpcsys.tracker.events import Action, HistoryEntry, Send
from rpcsys.tracker.labels import Wants, wants_of, wants_of_key
from rpcsys.tracker.permissions import longest, models_only, sees
from rpcsys.tracker.records import STEP_S, STEPS, TICKET_S, Records
from rpcsys.tracker.scheduler import Scheduler, least
from rpcsys.tracker.views import eta, hints
from rpcsys.tracker.views.obstacles import Obstacles
from rpcsys.wire import control, tracker

MAX_WAITING = 4096  # waiting requests of one connection
#: How long TVM's requests wait before the history has them: most are granted sooner, and need no entry.
RECORD_S = 0.5
TVM_TICKET_S = 10.0  # TVM's client tries again 5 s after it was refused
#: A label that all servers of rpcsys have, and none of TVM's: these would load any code.
OURS_ALONE = {"cores": ">=0"}
TOLD_AT_ONCE = 500  # requests that are told their position, or recorded, in one step of some 5 ms; others come between
_TOLD_EXACTLY = 100  # beyond this position, only a change of a tenth or more is sent


@dataclass(eq=False)
class Requests:
    """Handles the messages and deadlines of requests."""

    records: Records
    scheduler: Scheduler

    def tvm_request(self, peer: Peer, message: tracker.TvmRequest) -> list[Action]:
        """Grant a TVM client's request or queue it, even if no server has its key."""
        if len(peer.waiting) >= MAX_WAITING:
            return [Send(peer.conn, [tracker.FAIL, f"{MAX_WAITING} requests wait on this connection already"])]
        if message.user and peer.member is None:
            peer.user = self.records.claimed(message.user)
        records, wants = self.records, wants_of_key(message.key)
        offer = self.scheduler.find(message.priority, wants)
        full = records.memory.full(peer.address, wants) if offer is None else ""
        if full:
            return [Send(peer.conn, [tracker.FAIL, full])]
        place = self._tvm_place(peer, message) if records.places.of_senders else None
        actions = self._back(place)
        request = self._new(peer, None, wants, message.priority, place)
        if records.lab is not None:
            request.limit_s = longest(records, peer, wants.key)
        if offer is not None:
            granted = self.scheduler.grant(peer, request, [offer])
            actions += [*granted, *self.scheduler.waited(request, "granted")]
        else:
            records.add_request(peer, request)
            records.note_move(request.key)
            if place is None:
                self._record_later(request)
        return actions if place is None else [*actions, *self.scheduler.is_back(place.ticket)]

    def _record_later(self, request: WaitingRequest) -> None:
        if not self.records.unrecorded:
            self.records.deadlines.set(("record",), self.records.now + RECORD_S)
        self.records.unrecorded[request.arrival] = None

    def record_waits(self) -> list[Action]:
        """Record TVM's requests that still wait, some in each step."""
        records = self.records
        some = list(islice(records.unrecorded, TOLD_AT_ONCE))
        for arrival in some:
            del records.unrecorded[arrival]
        if records.unrecorded:
            records.deadlines.set(("record",), records.now)
        return [action for arrival in some for action in self._record(records.waiting[arrival])]

    def request(self, peer: Peer, message: control.Request) -> list[Action]:
        """Grant a request of our clients, queue or refuse it."""
        try:
            if message.id in peer.requests:
                raise ValueError(f"id {message.id} is in use by a request that waits")
            if len(peer.waiting) >= MAX_WAITING:
                raise ValueError(f"{MAX_WAITING} requests wait on this connection already")
            labels = message.labels
            if self.records.lab is not None and models_only(self.records, peer, message.key or ""):
                labels = {**OURS_ALONE, **labels}
            wants = wants_of(message.key or "", labels)
        except ValueError as problem:
            actions: list[Action] = [peer.refuse(message.id, str(problem))]
        else:
            actions = self._serve(peer, message, wants)
        if self.records.settling is None or message.ticket is None or message.ticket in self.records.places:
            return actions
        return [*actions, *self.scheduler.is_back(message.ticket)]

    def _serve(self, peer: Peer, message: control.Request, wants: Wants) -> list[Action]:
        actions: list[Action] = []
        place = None
        if message.ticket is not None:
            actions = self._take_over(peer, wants, message.ticket)
            place = self._place(peer, wants, message.ticket)
            actions += self._back(place)
        offer = self.scheduler.find(message.priority, wants) if message.count == 1 else None
        known_until = None
        if offer is None and place is None and not message.wait_for_key:
            known_until = self.records.known_until(wants)
            if known_until is not None and self.records.now >= known_until:
                return [peer.refuse(message.id, self._unknown(peer, wants), "UnknownKey")]
        request = self._new(peer, message.id, wants, message.priority, place)
        request.limit_s = message.session_timeout or None  # 0 is no limit, as in TVM
        if self.records.lab is not None:
            request.limit_s = least(request.limit_s, longest(self.records, peer, wants.key))
        request.count = message.count
        if offer is not None:
            granted = self.scheduler.grant(peer, request, [offer])
            return [*actions, *granted, *(self.scheduler.waited(request, "granted") if request.recorded else ())]
        full = self.scheduler.too_many(peer.address, request)
        if full:
            return [*actions, peer.refuse(message.id, full)]
        self.records.add_request(peer, request)
        if request.count > 1:
            actions += self.scheduler.gather(request)
            if request.arrival not in self.records.waiting:
                return actions
        if known_until is not None:
            self.records.remind(request, "unknown", known_until)
        if message.wait_timeout is not None:
            self.records.remind(request, "timeout", self.records.now + message.wait_timeout)
        return actions + self._wait(request)

    def _new(
        self, peer: Peer, id: int | None, wants: Wants, priority: float, place: QueuePlace | None
    ) -> WaitingRequest:
        """A new request at ``place``, or behind all others, also those of earlier runs."""
        records = self.records
        if place is None:
            arrival = records.arrivals = max(records.arrivals + 1, int(records.now * 1000))
            since, ticket = records.now, f"{arrival}@{records.instance}"
        else:
            arrival, since, ticket = place.arrival, place.since, place.ticket
        request = WaitingRequest(arrival, peer.conn, id, wants, priority, peer.user or peer.address, since)
        request.ticket, request.recorded = ticket, place is not None
        return request

    def _wait(self, request: WaitingRequest) -> list[Action]:
        queue = self.records.queues[request.key]
        if len(queue.waiting) > 1:
            self.records.note_move(request.key)
        obstacles = Obstacles(self.records, self.records.now)
        before = eta.ahead(self.records, self.records.now, request)
        return [*self._record(request), self._queued(request, before, self._estimate(queue), obstacles)]

    def _record(self, request: WaitingRequest) -> list[Action]:
        """The history entry for the beginning of a request's wait, if the history lacks it."""
        if request.recorded:
            return []
        request.recorded = True
        details = {
            "ticket": request.ticket,
            "arrival": request.arrival,
            "key": request.key,
            "labels": request.wants.labels,
            "count": request.count,
            "priority": request.priority,
            "user": request.user,
            "address": request.address,
            "since": request.since,
        }
        if request.id is None:
            details["tvm"] = True
        return [HistoryEntry(self.records.now, "waiting", details)]

    # Tickets.

    def _place(self, peer: Peer, wants: Wants, ticket: str) -> QueuePlace | None:
        place = self.records.places.get(ticket)
        if place is None:
            return self._lost_place(peer, wants, ticket)
        if place.sender is not None or (place.user, place.wants) != (peer.who, wants):
            return None
        return self._take(ticket)

    def _tvm_place(self, peer: Peer, message: tracker.TvmRequest) -> QueuePlace | None:
        """The first place that a request like this one of TVM's had in the last run."""
        sender = Sender(peer.address, peer.who, message.key, message.priority)
        place = self.records.places.first_of(sender)
        return None if place is None else self._take(place.ticket)

    def _take(self, ticket: str) -> QueuePlace:
        self.records.deadlines.drop(("ticket", ticket))
        return self.records.places.take(ticket)

    def _back(self, place: QueuePlace | None) -> list[Action]:
        """The history entries for a client that is back in its place."""
        if place is None:
            return []
        back: list[Action] = [HistoryEntry(self.records.now, "back", {"ticket": place.ticket})] if place.absent else []
        unheard = place.arrival in self.records.unheard
        return back + (self.records.forget_unheard(str(place.arrival)) if unheard else [])

    def _lost_place(self, peer: Peer, wants: Wants, ticket: str) -> QueuePlace | None:
        """A place that the last run's history lacks, or that of a grant of which its client has not heard."""
        records, digits = self.records, ticket.partition("@")[0]
        if not (digits.isascii() and digits.isdigit() and len(digits) < 16):
            return None
        arrival, settling = int(digits), records.settling
        user, at = records.unheard.get(arrival, ("", -math.inf))
        unheard = user == peer.who and records.now <= at + TICKET_S
        late = settling is not None and settling.arrival < arrival < int(records.started_at * 1000)
        if not (unheard or late) or arrival in records.waiting:
            return None
        return QueuePlace(ticket, arrival, min(records.now, arrival / 1000), peer.who, wants)

    def _take_over(self, peer: Peer, wants: Wants, ticket: str) -> list[Action]:
        """Cancel a ticket's request on an old connection, the end of which the tracker has not seen yet."""
        request = self.records.tickets.get(ticket)
        if request is None or (request.user, request.wants) != (peer.who, wants):
            return []
        text = "the request was sent again, with its ticket"
        cancelled = self.records.peers[request.conn].refuse(request.id or 0, text, "Cancelled")
        return [cancelled, *self.leave([request])]

    def leave(self, requests: Collection[WaitingRequest]) -> list[Action]:
        """Remove the requests of a connection; tickets keep their places. Then offer what all of them had gathered."""
        actions: list[Action] = []
        freed: list[SlotOffer] = []
        for request in requests:
            actions += self._leave_place(request)
            freed += self.scheduler.take_out(request)
        return actions + self.scheduler.give_away(freed)

    def _leave_place(self, request: WaitingRequest) -> list[Action]:
        if request.id is None:
            return self.scheduler.waited(request, "left")
        actions: list[Action] = []
        place = QueuePlace(request.ticket, request.arrival, request.since, request.user, request.wants)
        places = self.records.places
        while places and not places.has_room(place):
            first = next(iter(places))
            self.records.deadlines.drop(("ticket", first))
            actions += self.lose_place(first)
        places.keep(place)
        self.records.deadlines.set(("ticket", request.ticket), self.records.now + TICKET_S)
        return actions

    def lose_place(self, ticket: str) -> list[Action]:
        """Drop the place of a ticket that was not presented again."""
        place = self.records.places.take(ticket)
        details = {"ticket": ticket, "waited_s": round(self.records.now - place.since, 3), "why": "left"}
        return [HistoryEntry(self.records.now, "waited", details)]

    # Leaving without a device.

    def cancel(self, peer: Peer, message: control.Cancel) -> list[Action]:
        """Cancel a request for its client."""
        request = peer.requests.get(message.request)
        if request is None:
            return [peer.done(message.id, cancelled=False)]
        gone = self._give_up(request, "Cancelled", "the request was cancelled", "cancelled")
        return [*gone, peer.done(message.id, cancelled=True)]

    def shut_out(self, peer: Peer, why: str) -> list[Action]:
        """End what a peer waits for that may lease nothing any more."""
        actions: list[Action] = []
        for request in [*peer.waiting.values()]:
            if request.id is None:
                actions += [Send(peer.conn, [tracker.FAIL, why]), *self.leave([request])]
            else:
                actions += self._give_up(request, "Unauthorized", why, "cancelled")
        return actions

    def timed_out(self, arrival: int) -> list[Action]:
        """End a request whose ``wait_timeout`` is over."""
        request = self.records.waiting[arrival]
        message = f"no device of {request.wants} became free in the time allowed for waiting"
        shown = sees(self.records, self.records.peers[request.conn])
        why = Obstacles(self.records, self.records.now).why(request) if shown else ""
        return self._give_up(request, "WaitTimeout", f"{message}: {why}" if why else message, "timeout")

    def still_unknown(self, arrival: int) -> list[Action]:
        """End a request for a key whose servers have not come back in time."""
        request = self.records.waiting[arrival]
        if any(self.records.serving(request.wants)):
            return []
        why = self._unknown(self.records.peers[request.conn], request.wants)
        return self._give_up(request, "UnknownKey", why, "unknown")

    def _unknown(self, peer: Peer, wants: Wants) -> str:
        """Why no server fits, with the keys that there are for those who may see them."""
        return hints.unknown(self.records, wants) if sees(self.records, peer) else f"no server offers {wants} now"

    def _give_up(self, request: WaitingRequest, error: str, message: str, why: str) -> list[Action]:
        assert request.id is not None, "TVM's requests have no deadline"
        peer = self.records.peers[request.conn]
        freed = self.scheduler.give_away(self.scheduler.take_out(request))
        return [peer.refuse(request.id, message, error), *self.scheduler.waited(request, why), *freed]

    # Time.

    def age(self, arrival: int) -> list[Action]:
        """Raise a request's effective priority by a step."""
        request = self.records.waiting[arrival]
        if not request.parked:
            self.records.subqueues.remove(request)
        request.steps += 1
        if not request.parked:
            self.records.subqueues.add(request)
        if request.steps < STEPS:
            self.records.remind(request, "age", request.since + (request.steps + 1) * STEP_S)
        self.records.note_move(request.key)
        return []

    def tell_positions(self) -> list[Action]:
        """Send position events to the requests of some queues that have moved; the other queues follow soon."""
        actions: list[Action] = []
        checked = 0
        records = self.records
        obstacles = Obstacles(records, records.now)
        while records.moved and checked < TOLD_AT_ONCE and obstacles.room > 0:
            key = next(iter(records.moved))
            notes = records.moved.pop(key)
            queue = records.queues[key]
            checked += 1 + len(queue.waiting)
            estimate = self._estimate(queue)
            for index, request in self._places(queue, notes):
                if request.id is None:
                    continue
                news = notes and obstacles.note(request) != request.noted
                if news or _is_worth_sending(request.told, index + 1):
                    actions.append(self._queued(request, index, estimate, obstacles))
        if records.moved:
            records.deadlines.set(("positions",), records.now)
        return actions

    def _places(self, queue: Queue, parked: bool) -> Iterator[tuple[int, WaitingRequest]]:
        """The requests of a queue with how many are served before each; with the ``parked`` ones, or without."""
        records = self.records
        yield from enumerate(eta.in_order(records, records.now, queue))
        for request in records.gatherers.values() if parked else ():
            if request.parked and request.key == queue.key:
                yield eta.ahead(records, records.now, request), request

    def _estimate(self, queue: Queue) -> eta.Estimate:
        return eta.Estimate(queue, self.records.free(queue.key), self.records.now)

    def _queued(self, request: WaitingRequest, before: int, estimate: eta.Estimate, obstacles: Obstacles) -> Send:
        assert request.id is not None, "TVM's clients get no position events"
        request.told = before + 1
        request.noted = obstacles.note(request)
        event = {  # `control.Queued` as it is on the wire: to build it here saves time for each position
            "id": request.id,
            "event": "queued",
            "position": before + 1,
            "ahead": before,
            "eta_s": estimate.of(request, before),
            "ticket": request.ticket,
            "holders": obstacles.holders(request.wants),
            "note": request.noted,
        }
        if self.records.lab is not None and not sees(self.records, self.records.peers[request.conn]):
            event.update(holders=[], note="")
        return Send(request.conn, event)


def _is_worth_sending(last_sent: int, position: int) -> bool:
    change = abs(position - last_sent)
    return change > 0 if position <= _TOLD_EXACTLY else change >= position / 10
