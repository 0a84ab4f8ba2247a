"""The lab at a glance, for the page that shows it: times are seconds since 1970, so that ages can be counted there."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Any

from rpcsys import __version__
from rpcsys.tracker.entities import Queue, Waiting
from rpcsys.tracker.lease_states import AWAY
from rpcsys.tracker.views import eta, leases, servers

if TYPE_CHECKING:
    from rpcsys.tracker.records import Records

MAX_SERVERS = 1000
MAX_KEYS = 200
MAX_WAITING = 20
"""What is listed, for a page that a phone can show; all are counted."""


def lab(records: Records, at: float) -> dict[str, Any]:
    """``keys``, each with its queue, and ``servers``, each with its leases; ``more_servers`` and ``more_keys`` count
    what is not listed.
    """
    named = [peer for peer in records.peers.values() if peer.name]
    named.sort(key=lambda peer: (",".join(peer.serves), peer.name))
    queues = sorted((queue for queue in records.queues.values() if _in_use(queue)), key=lambda queue: queue.key)
    away = [lease for lease in records.leases.values() if lease.state in AWAY]
    return {
        "version": __version__,
        "now": at,
        "started": records.started_at,
        "settling": records.settling is not None,
        "keys": [_key(records, at, queue) for queue in queues[:MAX_KEYS]],
        "servers": [servers.on_page(records, at, peer) for peer in named[:MAX_SERVERS]],
        "away": [{"server": lease.server_name, **leases.on_page(lease)} for lease in away[:MAX_SERVERS]],
        "more_keys": max(0, len(queues) - MAX_KEYS),
        "more_servers": max(0, len(named) - MAX_SERVERS),
    }


def _in_use(queue: Queue) -> bool:
    return bool(queue.servers or queue.waiting or queue.leases)


def _key(records: Records, at: float, queue: Queue) -> dict[str, Any]:
    waiting = islice(eta.in_order(records, at, queue), MAX_WAITING)
    return {
        "key": queue.key,
        "slots": sum(records.peers[conn].slots for conn in queue.servers),
        "free": records.pool.count(queue.key),
        "leased": len(queue.leases),
        "waiting": len(queue.waiting),
        "queue": [_waiting(records, request) for request in waiting],
    }


def _waiting(records: Records, request: Waiting) -> dict[str, Any]:
    return {
        "user": request.user,
        "address": records.peers[request.conn].address,
        "since": request.since,
        "priority": request.priority,
        "count": request.count,
        "labels": request.wants.labels,
        "parked": request.parked,
    }
