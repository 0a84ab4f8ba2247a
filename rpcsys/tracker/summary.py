"""The summary of our own tools: queues, servers and leases at this moment.

TVM's is one frame, however long (`rpcsys.tracker.tvmsummary`): its client reads any. Ours comes in pages, so that none
outgrows a frame and the loop is free between them, whatever strangers call themselves. What comes or goes between two
pages may be missing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from rpcsys.tracker import explain, outlook
from rpcsys.tracker.records import OURS, Lease, Peer, Queue
from rpcsys.tracker.views import reachable
from rpcsys.wire.keys import SERVER_PREFIX

if TYPE_CHECKING:
    from rpcsys.tracker.book import Book
    from rpcsys.tracker.granting import Granting

ROOM = 512 << 10
"""About how many bytes a page may have: some 5 ms, and far from what a frame may hold."""

PARTS = ("queue_info", "server_info", "servers", "leases")

_ESCAPED = 6  # bytes of a character in JSON, at the most for nearly all
_QUEUE_BYTES, _SERVER_BYTES, _SLOT_BYTES, _LEASE_BYTES = 40, 320, 60, 200

Page = dict[str, Any]
Place = tuple[int, int]
"""Where a page begins: the section, and what in it comes before: queues by count, servers and leases by number."""


def page(book: Granting, at: float, viewer: Peer, begin: Place) -> tuple[Page, Place | None]:
    """TVM's summary, with ``servers`` by name and the ``leases`` that are out, from ``begin`` on; where the next
    page begins, None if there is none.
    """
    found: Page = {part: {} if part == "queue_info" else [] for part in PARTS}
    section, after = begin
    taken = 0
    for number in range(section, len(_SECTIONS)):
        for place, size in _SECTIONS[number](book, at, viewer, after, found):
            if taken and taken + size > ROOM:
                return found, (number, after)
            taken, after = taken + size, place
        after = 0
    return found, None


Adding = Iterator[tuple[int, int]]
"""Before each entry is added to a page: its place in its section, and about how many bytes it takes."""


def _add_queues(book: Granting, at: float, viewer: Peer, after: int, found: Page) -> Adding:
    for place, queue in enumerate(islice(book.queues.values(), after, None), after + 1):
        if shown(queue):
            yield place, _QUEUE_BYTES + _ESCAPED * len(queue.key)
            found["queue_info"][queue.key] = _queue(book, queue)


def _add_servers(book: Granting, at: float, viewer: Peer, after: int, found: Page) -> Adding:
    for peer in book.peers.values():  # in the order of their numbers
        if peer.conn <= after:
            continue
        rows = slots(peer, viewer)
        if not (rows or peer.name):
            continue
        size = sum(_SLOT_BYTES + _ESCAPED * len(slot["key"]) for slot in rows)
        yield peer.conn, size + _SERVER_BYTES + _ESCAPED * _label_length(peer)
        found["server_info"] += rows
        if peer.name:
            found["servers"].append(_server(book, at, peer, viewer))


def _add_leases(book: Granting, at: float, viewer: Peer, after: int, found: Page) -> Adding:
    later = [lease for lease in book.leases.values() if lease.epoch > after]
    for lease in sorted(later, key=attrgetter("epoch")):
        yield lease.epoch, _LEASE_BYTES + _ESCAPED * (len(lease.user) + len(lease.key))
        found["leases"].append(_lease(lease, at))


_SECTIONS: tuple[Callable[[Granting, float, Peer, int, Page], Adding], ...] = (
    _add_queues,
    _add_servers,
    _add_leases,
)


def shown(queue: Queue) -> bool:
    """Whether a key's queue is part of a summary."""
    return bool(queue.key and (queue.servers or queue.waiting))


def _queue(book: Book, queue: Queue) -> dict[str, int]:
    return {"free": book.pool.count(queue.key), "pending": len(queue.waiting)}


def slots(peer: Peer, viewer: Peer) -> list[dict[str, Any]]:
    """A server's rows: one for each slot, as far as it is known."""
    if peer.server is not None:
        place = [reachable(peer.server.host, viewer), peer.server.port]
        return [{"key": SERVER_PREFIX + peer.server.key, "addr": place}] * peer.server.slots
    if peer.report is not None and peer.report[0].startswith("server"):
        name, host, port = peer.report
        return [{"key": name, "addr": [reachable(host, viewer), port]}]
    return []


def _label_length(peer: Peer) -> int:
    if peer.server is None:
        return sum(map(len, peer.serves))
    labels = peer.server.labels
    return sum(map(len, labels)) + sum(map(len, labels.values())) + sum(map(len, peer.server.loads))


def _lease(lease: Lease, at: float) -> dict[str, Any]:
    """Who holds what, since when, and until when at the latest."""
    if lease.server is None:
        state = "server away"
    elif lease.how != OURS:
        state = lease.how
    else:
        state = "running" if lease.started else "granted"
    held = outlook.holder(lease, at)
    return {
        "lease": lease.lease,
        "key": lease.key,
        "server": lease.server_name,
        "holder": lease.user,
        "address": lease.address,
        "since_s": held["since_s"],
        "until_s": held["until_s"],
        "limit_s": lease.limit_s,
        "state": state,
    }


def _server(book: Granting, at: float, peer: Peer, viewer: Peer) -> dict[str, Any]:
    row: dict[str, Any] = {
        "name": peer.name,
        "free": sum(offer.free for offer in peer.offers.values()),
        **explain.state(book, at, peer),
    }
    server = peer.server
    if server is None:
        assert peer.report is not None
        _, host, port = peer.report
        return {
            **row,
            "key": ",".join(peer.serves),
            "address": reachable(host, viewer),
            "port": port,
            "slots": peer.slots,
            "running": len(peer.serving),
            "labels": {},
            "loads": [],
            "limits": False,
        }
    return {
        **row,
        "key": server.key,
        "address": reachable(server.host, viewer),
        "port": server.port,
        "slots": server.slots,
        "running": sum(lease.started for lease in peer.serving.values()),
        "labels": server.labels,
        "loads": list(server.loads),
        "limits": True,
    }
