"""Why somebody waits, as an answer for programs with sentences for people."""

from __future__ import annotations

from collections import Counter
from itertools import islice
from typing import TYPE_CHECKING, Any

from rpcsys.tracker import outlook
from rpcsys.tracker.records import Peer, Queue, Waiting

if TYPE_CHECKING:
    from rpcsys.tracker.granting import Granting

MAX_ROWS = 100
"""Servers, holders and requests listed; an answer has to fit a frame."""


def why(book: Granting, at: float, key: str, request: Waiting | None) -> dict[str, Any]:
    """How things stand with a key, and with a request for it; ``reasons`` are sentences."""
    queue = book.queues[key]
    peers = [book.peers[conn] for conn in queue.servers]
    before = len(queue.waiting) if request is None else outlook.ahead(book, at, request)
    estimate = outlook.Estimate(queue, book.pool.count(key), at)
    waiting = list(islice(outlook.in_order(book, at, queue), MAX_ROWS))
    answer = {
        "key": key,
        "waiting": len(queue.waiting),
        "free": book.pool.count(key),
        "devices": sum(peer.slots for peer in peers),
        "servers": [_server(book, at, peer) for peer in peers[:MAX_ROWS]],
        "holders": [outlook.holder(lease, at) for lease in islice(queue.leases.values(), MAX_ROWS)],
        "queue": [_waiting(book, at, other) for other in waiting],
        "position": None if request is None else before + 1,
        "ahead": before,
        "eta_s": None if request is None else estimate.of(request, before),
    }
    return {**answer, "reasons": _reasons(book, at, queue, peers, request)}


def _server(book: Granting, at: float, peer: Peer) -> dict[str, Any]:
    return {"server": peer.name, "slots": peer.slots, "free": _free(peer), **state(book, at, peer)}


def _free(peer: Peer) -> int:
    return sum(offer.free for offer in peer.offers.values())


def state(book: Granting, at: float, peer: Peer) -> dict[str, Any]:
    """What is wrong with a server: ``state``, ``reason`` and ``until_s`` of it."""
    condition = book.condition(peer)
    if condition is None:
        return {"state": "ok", "reason": "", "until_s": None}
    until_s = None if condition.until is None else round(max(0.0, condition.until - at), 3)
    reason = condition.problem if condition.state == "unhealthy" else condition.reason
    return {"state": condition.state, "reason": reason, "until_s": until_s}


def _waiting(book: Granting, at: float, request: Waiting) -> dict[str, Any]:
    return {
        "user": request.user,
        "address": book.peers[request.conn].address,
        "priority": request.priority,
        "risen": request.steps,
        "waited_s": round(at - request.since, 3),
        "spent_s": round(book.shares.spent(at, request.user), 1),
        "labels": request.wants.labels,
        "count": request.count,
    }


def _reasons(
    book: Granting, at: float, queue: Queue, peers: list[Peer], request: Waiting | None
) -> list[str]:
    reasons = []
    if book.settling is not None:
        reasons.append(
            "the tracker has just started again and waits a moment for servers and requests to come back"
        )
    if not peers and queue.key:
        reasons.append(f"no server offers {queue.key!r} now")
    taken = len(queue.leases)
    if peers:
        reasons.append(f"{taken} of {sum(peer.slots for peer in peers)} devices are taken")
    states = Counter(state(book, at, peer)["state"] for peer in peers)
    reasons += [
        f"{count} of the servers {'is' if count == 1 else 'are'} {word}"
        for word, count in sorted(states.items())
        if word not in ("ok", "on trial")
    ]
    silent = [peer for peer in peers if peer.server is None]
    if silent and queue.key in book.limits:
        reasons.append(f"{len(silent)} of the servers are TVM's own: no limit holds there")
    gathering = [other for other in book.gathering.values() if other.key == queue.key and other.gathered]
    reasons += [
        f"{other.user} is next and wants {other.count} devices at once: {len(other.gathered)} are kept for that"
        for other in gathering
    ]
    if request is not None and request.parked:
        reasons.append(f"the request is passed over: {request.parked}")
    elif request is not None and request.wants.labels and not book.servers(request.wants):
        reasons.append(f"no server is {request.wants}")
    return reasons
