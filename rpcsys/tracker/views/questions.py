"""Questions that are answered from the records: summaries, and why a request waits."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

from rpcsys.tracker.entities import Peer, Queue, WaitingRequest
from rpcsys.tracker.events import Action, Send
from rpcsys.tracker.labels import wants_of_key
from rpcsys.tracker.records import Records
from rpcsys.tracker.views import eta, hints, rows, summary
from rpcsys.tracker.views.obstacles import Obstacles, out_of_use
from rpcsys.wire import control, tracker

_IS = ("are", "is")
MAX_SETS = 8  # sets of wants of which an answer says whether they can be met
MAX_ROWS = 100  # servers, holders and requests listed: an answer must fit a frame


@dataclass(eq=False)
class Questions:
    """Answers the questions of clients."""

    records: Records

    def tvm_summary(self, peer: Peer, message: tracker.TvmSummary) -> list[Action]:
        """Send TVM's summary."""
        return [Send(peer.conn, json.loads(summary.SummaryText().text(self.records, self.records.now, peer)))]

    def summary(self, peer: Peer, message: control.Summary) -> list[Action]:
        """Send a page of our summary."""
        found, following = summary.page(self.records, self.records.now, peer, message.after or (0, 0))
        return [peer.done(message.id, summary=found, next=following and list(following))]

    def why(self, peer: Peer, message: control.Why) -> list[Action]:
        """Send why a request, or all requests for a key, wait."""
        request = None if message.request is None else peer.requests.get(message.request)
        key = request.key if request is not None else message.key
        if key is None:
            return [peer.refuse(message.id, "name a waiting request of this connection, or a key")]
        if request is None and key not in self.records.queues:
            return [peer.refuse(message.id, hints.unknown(self.records, wants_of_key(key)), "UnknownKey")]
        return [peer.done(message.id, why=why(self.records, self.records.now, key, request))]

    def unsupported(self, peer: Peer, message: control.Ask) -> list[Action]:
        """Refuse a question that this tracker does not support."""
        return [peer.refuse(message.id, f"this tracker does not support {message.op!r}")]

    def no_lab(self, peer: Peer, message: control.Ask) -> list[Action]:
        """Refuse a question about the members of a lab; the service answers them where there is one."""
        return [peer.refuse(message.id, "this tracker has no lab: rpcsys lab init makes one")]


def why(records: Records, at: float, key: str, request: WaitingRequest | None) -> dict[str, Any]:
    """The state of a key and of a request for it; ``reasons`` are sentences for people."""
    queue = records.queues[key]
    peers = [records.peers[conn] for conn in queue.servers]
    before = len(queue.waiting) if request is None else eta.ahead(records, at, request)
    estimate = eta.Estimate(queue, records.free(key), at)
    obstacles = Obstacles(records, at)
    reasons = [*_reasons(records, obstacles, queue, peers), *_unmet(records, obstacles, queue, request)]
    wants = wants_of_key(key) if request is None else request.wants
    return {
        "key": key,
        "waiting": len(queue.waiting),
        "free": records.free(key),
        "devices": sum(peer.slots for peer in peers),
        "servers": [rows.server_brief(records, at, peer) for peer in peers[:MAX_ROWS]],
        "holders": obstacles.holders(wants, MAX_ROWS),
        "queue": [_waiting(records, at, other) for other in islice(eta.in_order(records, at, queue), MAX_ROWS)],
        "position": None if request is None else before + 1,
        "ahead": before,
        "eta_s": None if request is None else estimate.of(request, before),
        "reasons": list(dict.fromkeys(reasons)),
    }


def _waiting(records: Records, at: float, request: WaitingRequest) -> dict[str, Any]:
    return {
        "user": request.user,
        "address": request.address,
        "priority": request.priority,
        "risen": request.steps,
        "waited_s": round(at - request.since, 3),
        "spent_s": round(records.shares.spent(at, request.user), 1),
        "labels": request.wants.labels,
        "count": request.count,
    }


def _reasons(records: Records, obstacles: Obstacles, queue: Queue, peers: list[Peer]) -> list[str]:
    """Why requests for a key wait, whatever else they want."""
    reasons = []
    if records.settling is not None:
        reasons.append("the tracker has just started again: servers and requests are still coming back")
    away = sum(lease.server is None for lease in queue.leases.values())
    if peers:
        reasons.append(f"{len(queue.leases) - away} of {sum(peer.slots for peer in peers)} devices are taken")
    elif queue.key:
        reasons.append(str(obstacles.of(wants_of_key(queue.key))) or f"no server offers {queue.key!r} now")
    reasons += out_of_use(records, records.now, peers)
    if away:
        reasons.append(f"{away} of the leases {_IS[away == 1]} of servers that are gone: they end if these stay away")
    silent = sum(peer.server is None for peer in peers)
    if silent and queue.key in records.limits:
        reasons.append(f"{silent} of the servers {_IS[silent == 1]} TVM's own: no limit holds there")
    reasons += [
        f"{other.user} is next and wants {other.count} devices at once: {len(other.gathered)} are kept for that"
        for other in records.gathering.values()
        if other.key == queue.key and other.gathered
    ]
    return reasons


def _unmet(records: Records, obstacles: Obstacles, queue: Queue, request: WaitingRequest | None) -> Iterator[str]:
    """Why some of the requests of a queue, or this one, cannot be met; for each set of what they want.

    What is wrong with servers is among the other reasons.
    """
    if request is not None and request.parked:
        yield f"the request is passed over: {obstacles.of(request.wants, request.count).what or request.parked}"
        return
    waiting = islice(queue.waiting.values(), MAX_ROWS) if request is None else (request,)
    wanted = {(each.wants, each.count): None for each in waiting if each.count > 1 or not each.wants.bare}
    for wants, count in islice(wanted, MAX_SETS):
        what = obstacles.of(wants, count).what
        if what:
            yield what
        elif records.free_offers.count(queue.key) and records.free_offers.find(wants) is None:
            yield f"no free device is {wants}"
