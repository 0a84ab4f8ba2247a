"""The summary of our own tools: queues, servers and leases at this moment.

TVM's is one frame, however long (`rpcsys.tracker.views.tvm_summary`): its client reads any. Ours comes in pages, so
that none outgrows a frame and the loop is free between them, whatever strangers call themselves. What comes or goes
between two pages may be missing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from rpcsys.tracker.entities import Peer, Queue
from rpcsys.tracker.views import leases, servers

if TYPE_CHECKING:
    from rpcsys.tracker.records import Records

ROOM = 512 << 10
"""About how many bytes a page may have: some 5 ms, and far from what a frame may hold."""

PARTS = ("queue_info", "server_info", "servers", "leases")

_ESCAPED = 6  # bytes of a character in JSON, at the most for nearly all
_QUEUE_BYTES, _SERVER_BYTES, _SLOT_BYTES, _LEASE_BYTES = 40, 320, 60, 200

Page = dict[str, Any]
Place = tuple[int, int]
"""Where a page begins: the section, and what in it comes before: queues by count, servers and leases by number."""


def page(records: Records, at: float, viewer: Peer, begin: Place) -> tuple[Page, Place | None]:
    """TVM's summary, with ``servers`` by name and the ``leases`` that are out, from ``begin`` on; where the next
    page begins, None if there is none.
    """
    found: Page = {part: {} if part == "queue_info" else [] for part in PARTS}
    section, after = begin
    taken = 0
    for number in range(section, len(_SECTIONS)):
        for place, size in _SECTIONS[number](records, at, viewer, after, found):
            if taken and taken + size > ROOM:
                return found, (number, after)
            taken, after = taken + size, place
        after = 0
    return found, None


Adding = Iterator[tuple[int, int]]
"""Before each entry is added to a page: its place in its section, and about how many bytes it takes."""


def _add_queues(records: Records, at: float, viewer: Peer, after: int, found: Page) -> Adding:
    for place, queue in enumerate(islice(records.queues.values(), after, None), after + 1):
        if shown(queue):
            yield place, _QUEUE_BYTES + _ESCAPED * len(queue.key)
            found["queue_info"][queue.key] = _queue(records, queue)


def _add_servers(records: Records, at: float, viewer: Peer, after: int, found: Page) -> Adding:
    for peer in records.peers.values():  # in the order of their numbers
        if peer.conn <= after:
            continue
        rows = servers.slots(peer, viewer)
        if not (rows or peer.name):
            continue
        size = sum(_SLOT_BYTES + _ESCAPED * len(slot["key"]) for slot in rows)
        yield peer.conn, size + _SERVER_BYTES + _ESCAPED * _label_length(peer)
        found["server_info"] += rows
        if peer.name:
            found["servers"].append(servers.row(records, at, peer, viewer))


def _add_leases(records: Records, at: float, viewer: Peer, after: int, found: Page) -> Adding:
    later = [lease for lease in records.leases.values() if lease.epoch > after]
    for lease in sorted(later, key=attrgetter("epoch")):
        yield lease.epoch, _LEASE_BYTES + _ESCAPED * (len(lease.user) + len(lease.key))
        found["leases"].append(leases.row(lease, at))


_SECTIONS: tuple[Callable[[Records, float, Peer, int, Page], Adding], ...] = (_add_queues, _add_servers, _add_leases)


def shown(queue: Queue) -> bool:
    """Whether a key's queue is part of a summary."""
    return bool(queue.key and (queue.servers or queue.waiting))


def _queue(records: Records, queue: Queue) -> dict[str, int]:
    return {"free": records.pool.count(queue.key), "pending": len(queue.waiting)}


def _label_length(peer: Peer) -> int:
    if peer.server is None:
        return sum(map(len, peer.serves))
    labels = peer.server.labels
    return sum(map(len, labels)) + sum(map(len, labels.values())) + sum(map(len, peer.server.loads))
