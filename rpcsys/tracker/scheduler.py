"""Which request gets which offer. An offer that fits a waiting request is granted, or claimed, in the same event.

A request for several devices gathers: once it is the first that fits an offer, it claims before all others of its
effective priority, so two never wait for each other. One that cannot be served, or gathers for too long, is *parked*.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rpcsys.tracker import permissions
from rpcsys.tracker.entities import LeaseRecord, Peer, SlotOffer, WaitingRequest
from rpcsys.tracker.events import Action, HistoryEntry, Send
from rpcsys.tracker.labels import Wants
from rpcsys.tracker.records import Records
from rpcsys.tracker.transitions import INFERRED, SILENT
from rpcsys.wire import control, tracker

GATHER_S = 600.0
#: The most waiting requests for several devices, in all and of each address: each is compared with the devices that it
#: wants whenever one comes or leaves.
MAX_GATHERERS = 256
MAX_GATHERERS_OF_ADDRESS = 32
#: Why a request is parked.
TOO_FEW, RESTS = "there are not so many devices", "it gave back what it had gathered for too long"
_NOTHING = permissions.LeaseFields({}, {})


@dataclass(eq=False)
class Scheduler:
    """Matches requests with offers."""

    records: Records

    # From an offer to a request.

    def offer(self, offer: SlotOffer) -> list[Action]:
        """Grant an offer to the first request that fits, or let that claim it; else it is free, or reserved."""
        records = self.records
        condition = records.condition(records.peers[offer.conn])
        if condition is not None and not condition.open:
            return []
        if records.settling is not None and records.settling.reserves(offer.facts):
            records.settling.reserved.add(offer)
            return []
        taker = self._taker(offer) if records.waiting else None
        if taker is None:
            records.free_offers.add(offer)
            return []
        if taker.count > 1:
            return [*self._claim(taker, offer), *self._gather(taker)]
        return self._serve(taker, [offer])

    def _taker(self, offer: SlotOffer) -> WaitingRequest | None:
        records = self.records
        x = records.shares.clock(records.now)
        best = min([subqueue.best(x) for subqueue in records.subqueues.index.fitting(offer.facts)], default=None)
        if best is None:
            return None
        for gatherer in records.gathering.values():  # in the order in which they began
            if gatherer.standing >= -best[0] and gatherer.wants.fit(offer.facts):
                return gatherer
        return records.waiting[best[2]]

    def _serve(self, request: WaitingRequest, offers: list[SlotOffer]) -> list[Action]:
        peer = self.records.peers[request.conn]
        self.take_out(request)
        waited = self.waited(request, "granted")
        return [*self.grant(peer, request, offers), *waited]

    def take_out(self, request: WaitingRequest) -> list[SlotOffer]:
        """Remove a request from its queue; return its gathered offers, which the caller offers again."""
        gathered = self._let_go(request)
        self.records.remove_request(request)
        return gathered

    def waited(self, request: WaitingRequest, why: str) -> list[Action]:
        """The history entry for the end of a request's wait, if the history has its beginning."""
        if not request.recorded:
            return []
        now = self.records.now
        details = {"ticket": request.ticket, "waited_s": round(now - request.since, 3), "why": why}
        return [HistoryEntry(now, "waited", details)]

    # From a request to offers.

    def find(self, standing: float, wants: Wants) -> SlotOffer | None:
        """An offer for a new request: a free one, or one that a request of lower priority has claimed."""
        records = self.records
        offer = records.free_offers.find(wants)
        if offer is None and records.gathering:
            lower = (other for other in records.gathering.values() if other.standing < standing)
            fitting = (offer for other in lower for offer in other.gathered if wants.fit(offer.facts))
            offer = next(fitting, None)
        return offer

    def grant(self, peer: Peer, request: WaitingRequest, offers: list[SlotOffer]) -> list[Action]:
        """Grant offers to a request. The message to the server goes out before the one to the client."""
        actions: list[Action] = []
        granted = []
        records = self.records
        if request.recorded and request.id is not None:
            records.note_unheard(request.arrival, request.user)
        for offer in offers:
            records.withdraw(offer)
            server = records.peers[offer.conn]
            del server.offers[offer.match_key]
            lease = self._lease(peer, request, offer, server)
            host = peer.sees(offer.host)
            in_lab = _NOTHING if records.lab is None else permissions.of_lease(records.lab, peer, server, offer)
            if server.server is not None:
                actions.append(_taken(server, lease, offer, records.limits.get(offer.key), in_lab.taken))
            if request.id is None:
                # A member that speaks TVM's protocol is behind `rpcsys connect`; others get what TVM's tracker sends.
                more = [dict(in_lab.granted)] if peer.member is not None and in_lab.granted else []
                actions.append(Send(peer.conn, [tracker.SUCCESS, [host, offer.port, offer.match_key], *more]))
            else:
                granted.append(_granted(lease, offer, host, in_lab.granted))
            details = {
                **lease.identified(),
                "limit_s": lease.limit_s,
                "waited_s": round(records.now - request.since, 6),
                "priority": request.priority,
                "arrival": request.arrival,
                "how": lease.how,
                "identity": lease.identity,
            }
            actions.append(HistoryEntry(records.now, "granted", details))
        if request.id is not None:
            actions.append(peer.done(request.id, leases=granted))
        return actions

    def _lease(self, peer: Peer, request: WaitingRequest, offer: SlotOffer, server: Peer) -> LeaseRecord:
        """Add a lease, with an epoch above all others, also those of earlier runs."""
        records, registered = self.records, server.server
        epoch = records.epoch = max(records.epoch + 1, int(records.now * 1000))
        lease = LeaseRecord(
            f"{records.instance}-{epoch}",
            epoch,
            offer.key,
            offer.conn,
            server.name or f"{offer.host}:{offer.port}",
            peer.conn,
            request.user,
            peer.address,
            records.now,
            None if registered is None else request.limit_s,
        )
        if registered is not None:
            lease.identity = registered.identity
            if records.limits:
                lease.limit_s = least(lease.limit_s, records.limits.get(offer.key))
        else:
            lease.how = INFERRED if server.is_tvm_proxy else SILENT
        lease.arrival = request.arrival
        records.add_lease(lease)
        return lease

    # After a restart.

    def is_back(self, ticket: str) -> list[Action]:
        """Wait for an absent ticket no more, and offer again what was reserved for it alone."""
        settling = self.records.settling
        if settling is None:
            return []
        wants = settling.is_back(ticket)
        freed = [] if wants is None else list(settling.reserved.fitting(wants))
        return [*self._offer_again(freed), *self.settle_if_complete()]

    def settle_if_complete(self) -> list[Action]:
        """End the settling when all servers and tickets of the last run are back."""
        settling = self.records.settling
        return self.settle() if settling is not None and settling.over else []

    def settle(self) -> list[Action]:
        """End the settling, and offer again all that is reserved."""
        records = self.records
        settling, records.settling = records.settling, None
        assert settling is not None
        records.deadlines.drop(("settle",))
        records.note_devices(records.queues)
        return [*self._note_absent(settling.absent), *self._offer_again(settling.reserved.all())]

    def _note_absent(self, tickets: list[str]) -> list[Action]:
        """Reserve nothing for these after the next restart: some clients have never heard of their ticket."""
        places = [self.records.places[ticket] for ticket in tickets if ticket in self.records.places]
        for place in places:
            place.absent = True
        return [HistoryEntry(self.records.now, "absent", {"ticket": place.ticket}) for place in places]

    def _offer_again(self, reserved: list[SlotOffer]) -> list[Action]:
        for offer in reserved:
            self.records.withdraw(offer)
        return self.give_away(reserved)

    # Several at once.

    def gather(self, request: WaitingRequest) -> list[Action]:
        """Let a request for several devices, which is in its queue, claim what is free."""
        few = self._capacity(request.wants) < request.count
        return [*(self._park(request, TOO_FEW) if few else ()), *self._gather(request)]

    def _gather(self, request: WaitingRequest) -> list[Action]:
        actions: list[Action] = []
        while not request.parked and request.arrival in self.records.waiting:
            offer = self.find(request.standing, request.wants)
            if offer is None:
                break
            self.records.withdraw(offer)
            actions += self._claim(request, offer)
        return actions

    def _claim(self, request: WaitingRequest, offer: SlotOffer) -> list[Action]:
        if not request.gathered:
            self.records.remind(request, "rest", self.records.now + GATHER_S)
            self.records.gathering[request.arrival] = request
        request.gathered.append(offer)
        offer.claimed = request.arrival
        return [] if len(request.gathered) < request.count else self._serve(request, list(request.gathered))

    def rest(self, arrival: int) -> list[Action]:
        """Park a request that has gathered for too long."""
        request = self.records.waiting[arrival]
        if request.parked or not request.gathered:
            return []
        self.records.remind(request, "wake", self.records.now + GATHER_S)
        return self._park(request, RESTS)

    def wake(self, arrival: int) -> list[Action]:
        """Let a parked request gather again."""
        request = self.records.waiting[arrival]
        self._unpark(request)
        return self.gather(request)

    def weigh_all(self) -> list[Action]:
        """Park or unpark the requests for several devices, after devices have come or left."""
        actions: list[Action] = []
        known: dict[Wants, int] = {}
        for request in list(self.records.gatherers.values()):
            if request.parked not in ("", TOO_FEW) or request.arrival not in self.records.waiting:
                continue
            if request.wants not in known:
                known[request.wants] = self._capacity(request.wants)
            too_few = known[request.wants] < request.count
            if too_few and not request.parked:
                actions += self._park(request, TOO_FEW)
            elif request.parked and not too_few:
                self._unpark(request)
                actions += self._gather(request)
        return actions

    def _capacity(self, wants: Wants) -> int:
        return sum(peer.slots_for(wants) for peer in self.records.serving(wants) if self.records.is_open(peer))

    def too_many(self, address: str, request: WaitingRequest) -> str:
        """Why a request cannot wait, as a sentence for its client; "" if it can."""
        records = self.records
        problem = records.memory.full(address, request.wants) or records.subqueues.full(address, request.wants)
        if problem or request.count == 1:
            return problem
        if records.gatherers_of[address] >= MAX_GATHERERS_OF_ADDRESS:
            return f"{MAX_GATHERERS_OF_ADDRESS} requests of {address} for several devices wait already: cancel some"
        if len(records.gatherers) >= MAX_GATHERERS:
            return f"{MAX_GATHERERS} requests for several devices wait already: try again later"
        return ""

    def _park(self, request: WaitingRequest, why: str) -> list[Action]:
        """Let all others pass the request, and offer them what it has gathered."""
        request.parked = why
        self.records.note_move(request.key, notes=True)
        self.records.subqueues.remove(request)
        return self.give_away(self._let_go(request))

    def _unpark(self, request: WaitingRequest) -> None:
        request.parked = ""
        self.records.note_move(request.key, notes=True)
        self.records.subqueues.add(request)

    def give_away(self, offers: list[SlotOffer]) -> list[Action]:
        """Offer again what was claimed."""
        return [action for offer in offers for action in self.offer(offer)]

    def _let_go(self, request: WaitingRequest) -> list[SlotOffer]:
        gathered, request.gathered = request.gathered, []
        self.records.gathering.pop(request.arrival, None)
        for offer in gathered:
            offer.claimed = 0
        return gathered


def least(one: float | None, other: float | None) -> float | None:
    """The lower of two limits; None is no limit."""
    return min((limit for limit in (one, other) if limit is not None), default=None)


# `control.Lease` and `control.Taken` as they are on the wire. To build the dictionaries here saves time in each grant.


def _granted(lease: LeaseRecord, offer: SlotOffer, host: str, in_lab: Mapping[str, bool]) -> dict[str, Any]:
    return {
        "lease": lease.lease,
        "epoch": lease.epoch,
        "key": lease.key,
        "host": host,
        "port": offer.port,
        "matchkey": offer.match_key,
        "server": lease.server_name,
        "limit_s": lease.limit_s,
        **in_lab,
    }


def _taken(
    server: Peer, lease: LeaseRecord, offer: SlotOffer, longest_s: float | None, in_lab: Mapping[str, bool]
) -> Send:
    server.asked += 1
    lease.told = server.asked
    message = {
        "op": control.Taken.op,
        "id": lease.told,
        "lease": lease.lease,
        "epoch": lease.epoch,
        "matchkey": offer.match_key,
        "user": lease.user,
        "address": lease.address,
        "limit_s": lease.limit_s,
        **in_lab,
    }
    if longest_s is not None:
        message["longest_s"] = longest_s
    return Send(server.conn, message)
