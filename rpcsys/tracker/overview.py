"""The lab at a glance, for the page that shows it: times are seconds since 1970, so that ages can be counted there."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Any

from rpcsys import __version__
from rpcsys.tracker import explain, outlook
from rpcsys.tracker.figures import condition_of
from rpcsys.tracker.records import Lease, Peer, Queue, Waiting

if TYPE_CHECKING:
    from rpcsys.tracker.granting import Granting

MAX_SERVERS = 1000
MAX_KEYS = 200
MAX_WAITING = 20
"""What is listed, for a page that a phone can show; all are counted."""


def lab(book: Granting, at: float) -> dict[str, Any]:
    """``keys``, each with its queue, and ``servers``, each with its leases; ``more_servers`` and ``more_keys`` count
    what is not listed.
    """
    named = [peer for peer in book.peers.values() if peer.name]
    named.sort(key=lambda peer: (",".join(peer.serves), peer.name))
    queues = sorted((queue for queue in book.queues.values() if _in_use(queue)), key=lambda queue: queue.key)
    away = [lease for lease in book.leases.values() if lease.server is None]
    return {
        "version": __version__,
        "now": at,
        "started": book.started_at,
        "settling": book.settling is not None,
        "keys": [_key(book, at, queue) for queue in queues[:MAX_KEYS]],
        "servers": [_server(book, at, peer) for peer in named[:MAX_SERVERS]],
        "away": [{"server": lease.server_name, **_lease(lease)} for lease in away[:MAX_SERVERS]],
        "more_keys": max(0, len(queues) - MAX_KEYS),
        "more_servers": max(0, len(named) - MAX_SERVERS),
    }


def _in_use(queue: Queue) -> bool:
    return bool(queue.servers or queue.waiting or queue.leases)


def _key(book: Granting, at: float, queue: Queue) -> dict[str, Any]:
    waiting = islice(outlook.in_order(book, at, queue), MAX_WAITING)
    return {
        "key": queue.key,
        "slots": sum(book.peers[conn].slots for conn in queue.servers),
        "free": book.pool.count(queue.key),
        "leased": len(queue.leases),
        "waiting": len(queue.waiting),
        "queue": [_waiting(book, request) for request in waiting],
    }


def _waiting(book: Granting, request: Waiting) -> dict[str, Any]:
    return {
        "user": request.user,
        "address": book.peers[request.conn].address,
        "since": request.since,
        "priority": request.priority,
        "count": request.count,
        "labels": request.wants.labels,
        "parked": request.parked,
    }


def _server(book: Granting, at: float, peer: Peer) -> dict[str, Any]:
    known = explain.state(book, at, peer)
    until_s = known["until_s"]
    return {
        "name": peer.name,
        "key": ",".join(peer.serves),
        "state": condition_of(peer, known["state"]),
        "reason": known["reason"],
        "until": None if until_s is None else at + until_s,
        "slots": peer.slots,
        "address": peer.address if peer.server is None else peer.server.host,
        "labels": {} if peer.server is None else peer.server.labels,
        "leases": [_lease(lease) for lease in peer.serving.values()],
    }


def _lease(lease: Lease) -> dict[str, Any]:
    return {
        "lease": lease.lease,
        "key": lease.key,
        "user": lease.user,
        "address": lease.address,
        "since": lease.since,
        "until": lease.until,
        "how": lease.how,
        "running": lease.started,
    }
