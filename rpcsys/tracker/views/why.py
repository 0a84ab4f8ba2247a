"""Why somebody waits, as an answer for programs with sentences for people."""

from __future__ import annotations

from collections import Counter
from itertools import islice
from typing import TYPE_CHECKING, Any

from rpcsys.tracker.entities import Peer, Queue, Waiting
from rpcsys.tracker.server_states import HEALTHY
from rpcsys.tracker.views import eta, leases, servers

if TYPE_CHECKING:
    from rpcsys.tracker.records import Records

MAX_ROWS = 100
"""Servers, holders and requests listed; an answer has to fit a frame."""


def why(records: Records, at: float, key: str, request: Waiting | None) -> dict[str, Any]:
    """How things stand with a key, and with a request for it; ``reasons`` are sentences."""
    queue = records.queues[key]
    peers = [records.peers[conn] for conn in queue.servers]
    before = len(queue.waiting) if request is None else eta.ahead(records, at, request)
    estimate = eta.Estimate(queue, records.pool.count(key), at)
    waiting = list(islice(eta.in_order(records, at, queue), MAX_ROWS))
    answer = {
        "key": key,
        "waiting": len(queue.waiting),
        "free": records.pool.count(key),
        "devices": sum(peer.slots for peer in peers),
        "servers": [servers.brief(records, at, peer) for peer in peers[:MAX_ROWS]],
        "holders": [leases.holder(lease, at) for lease in islice(queue.leases.values(), MAX_ROWS)],
        "queue": [_waiting(records, at, other) for other in waiting],
        "position": None if request is None else before + 1,
        "ahead": before,
        "eta_s": None if request is None else estimate.of(request, before),
    }
    return {**answer, "reasons": _reasons(records, at, queue, peers, request)}


def _waiting(records: Records, at: float, request: Waiting) -> dict[str, Any]:
    return {
        "user": request.user,
        "address": records.peers[request.conn].address,
        "priority": request.priority,
        "risen": request.steps,
        "waited_s": round(at - request.since, 3),
        "spent_s": round(records.shares.spent(at, request.user), 1),
        "labels": request.wants.labels,
        "count": request.count,
    }


def _reasons(records: Records, at: float, queue: Queue, peers: list[Peer], request: Waiting | None) -> list[str]:
    reasons = []
    if records.settling is not None:
        reasons.append("the tracker has just started again and waits a moment for servers and requests to come back")
    if not peers and queue.key:
        reasons.append(f"no server offers {queue.key!r} now")
    taken = len(queue.leases)
    if peers:
        reasons.append(f"{taken} of {sum(peer.slots for peer in peers)} devices are taken")
    states = Counter(servers.health(records, at, peer)["state"] for peer in peers)
    reasons += [
        f"{count} of the servers {'is' if count == 1 else 'are'} {word}"
        for word, count in sorted(states.items())
        if word not in HEALTHY
    ]
    silent = [peer for peer in peers if peer.server is None]
    if silent and queue.key in records.limits:
        reasons.append(f"{len(silent)} of the servers are TVM's own: no limit holds there")
    gathering = [other for other in records.gathering.values() if other.key == queue.key and other.gathered]
    reasons += [
        f"{other.user} is next and wants {other.count} devices at once: {len(other.gathered)} are kept for that"
        for other in gathering
    ]
    if request is not None and request.parked:
        reasons.append(f"the request is passed over: {request.parked}")
    elif request is not None and request.wants.labels and not records.servers(request.wants):
        reasons.append(f"no server is {request.wants}")
    return reasons
