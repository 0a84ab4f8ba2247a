"""The summary: the current queues, servers and leases. Ours has pages, each of which fits a frame.

What comes or ends between two pages may be missing. TVM's summary is one text: its client reads any length. A key stays
in it after its last server left, because programs for TVM's tracker, which keeps every key, look it up without a check.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from rpcsys.tracker.addresses import is_loopback
from rpcsys.tracker.entities import Peer, Queue
from rpcsys.tracker.views import rows

if TYPE_CHECKING:
    from rpcsys.tracker.records import Records

ROOM = 512 << 10  # about how many bytes a page has: some 5 ms, and well below a frame's limit
PARTS = ("queue_info", "server_info", "servers", "leases")
_ESCAPED = 6  # the most bytes of nearly any character in JSON
_QUEUE_BYTES, _SERVER_BYTES, _SLOT_BYTES, _LEASE_BYTES = 40, 320, 60, 200
#: Characters of TVM's summary: fifty thousand devices, and below the unsent bytes that end a connection
#: (`rpcsys.tracker.connection.MAX_UNSENT`). What does not fit is left out.
MAX_CHARACTERS = 3 << 20
FRESH_S = 1.0
LARGE = 64 << 10  # a summary of TVM's with so many characters is kept for `FRESH_S`; a smaller one takes 1 ms
#: The rows of a server with so many characters come last and are left out first: TVM's proxies have hundreds of keys.
_LONG = 32 << 10
_SPARE = 64
#: Addresses of this machine for which TVM's summary is kept: a client sees this machine's servers at its own one.
_VIEWS = 8

Page = dict[str, Any]
#: Where a page begins: the section, and the last entry before it: a count of queues, a connection or an epoch.
PageStart = tuple[int, int]

_dense = json.JSONEncoder(separators=(",", ":")).encode


def page(records: Records, at: float, viewer: Peer, begin: PageStart) -> tuple[Page, PageStart | None]:
    """A page from ``begin`` on, and where the next page begins, None after the last. A page is TVM's summary with the
    ``servers`` by name, the running ``leases``, the servers that are ``gone``, if there are any, in an open lab who has
    come in the ``clear``, and ``replicas`` and ``sites``, lines about the tracker's own, if it has any.
    """
    found: Page = {part: {} if part == "queue_info" else [] for part in PARTS}
    if records.replicas_text:
        found["replicas"] = records.replicas_text
    if records.sites_text:
        found["sites"] = records.sites_text
    section, after = begin
    taken = 0
    for number in range(section, len(_SECTIONS)):
        for place, size in _SECTIONS[number](records, at, viewer, after, found):
            if taken and taken + size > ROOM:
                return found, (number, after)
            taken, after = taken + size, place
        after = 0
    return found, None


#: Yields each entry's place in its section, and about how many bytes it takes, before it is added to the page.
Adding = Iterator[tuple[int, int]]


def _add_queues(records: Records, at: float, viewer: Peer, after: int, found: Page) -> Adding:
    for place, queue in enumerate(islice(records.queues.values(), after, None), after + 1):
        if shown(queue):
            yield place, _QUEUE_BYTES + _ESCAPED * len(queue.key)
            free = records.free(queue.key)
            found["queue_info"][queue.key] = {"free": free, "pending": len(queue.waiting)}


def _add_servers(records: Records, at: float, viewer: Peer, after: int, found: Page) -> Adding:
    for peer in records.peers.values():  # in the order of their numbers
        if peer.conn <= after:
            continue
        slots = rows.slots(peer, viewer)
        if not (slots or peer.name):
            continue
        size = sum(_SLOT_BYTES + _ESCAPED * len(slot["key"]) for slot in slots)
        labels = {} if peer.server is None else peer.server.labels
        texts = [*labels, *labels.values()]
        texts += rows.speed(records, peer).values()
        texts += peer.serves if peer.server is None else (*peer.server.loads, *peer.server.devices)
        yield peer.conn, size + _SERVER_BYTES + _ESCAPED * sum(map(len, texts))
        found["server_info"] += slots
        if peer.name:
            found["servers"].append(rows.server_row(records, at, peer, viewer))


def _add_leases(records: Records, at: float, viewer: Peer, after: int, found: Page) -> Adding:
    later = [lease for lease in records.leases.values() if lease.epoch > after]
    for lease in sorted(later, key=attrgetter("epoch")):
        yield lease.epoch, _LEASE_BYTES + _ESCAPED * (len(lease.user) + len(lease.key))
        found["leases"].append(rows.lease_row(lease, at))


def _add_gone(records: Records, at: float, viewer: Peer, after: int, found: Page) -> Adding:
    for place, (name, gone) in enumerate(islice(records.gone_lately(at).items(), after, None), after + 1):
        yield place, _LEASE_BYTES + _ESCAPED * (len(name) + len(gone.key))
        found.setdefault("gone", []).append(rows.gone_row(name, gone, at))


def _add_clear(records: Records, at: float, viewer: Peer, after: int, found: Page) -> Adding:
    lab = records.lab
    if lab is None or not lab.open:
        return
    for peer in records.peers.values():
        if peer.conn > after and peer.member is None:
            yield peer.conn, _LEASE_BYTES + _ESCAPED * (len(peer.user) + len(peer.name))
            found.setdefault("clear", []).append(rows.clear_row(lab, peer))


_SECTIONS: tuple[Callable[[Records, float, Peer, int, Page], Adding], ...] = (
    _add_queues, _add_servers, _add_leases, _add_gone, _add_clear,
)  # fmt: skip


def shown(queue: Queue) -> bool:
    """Whether a queue is part of a summary."""
    return bool(queue.key and (queue.servers or queue.waiting))


# TVM's.


@dataclass
class _View:
    made_at: float = float("-inf")
    text: str = ""
    #: By connection: the registration from which its rows were made, and their text.
    rows: dict[int, tuple[object, str]] = field(default_factory=dict)


class SummaryText:
    """TVM's summary: free and pending by key (``queue_info``), a row for each slot of each server (``server_info``).

    A row's text is made once for each server, and a large summary is kept for a moment, as each blocks the loop.
    """

    def __init__(self) -> None:
        self._views: dict[str, _View] = {}

    def text(self, records: Records, at: float, viewer: Peer) -> str:
        """The reply's JSON: a code and the summary."""
        place = "" if is_loopback(viewer.address) else viewer.local
        view = self._views.get(place)
        if view is None:
            if len(self._views) >= _VIEWS:
                del self._views[next(iter(self._views))]
            view = self._views[place] = _View()
        if at - view.made_at < FRESH_S:
            return view.text
        text = _make(records, at, viewer, view)
        if len(text) >= LARGE:
            view.made_at, view.text = at, text
        return text


def _make(records: Records, at: float, viewer: Peer, view: _View) -> str:
    room = MAX_CHARACTERS - _SPARE
    view.rows = dict(_rows(records, viewer, view.rows))
    texts = sorted((text for _, text in view.rows.values() if text), key=lambda row: len(row) >= _LONG)
    served, room = _fit(_queues(records, served=True), room)
    servers, room = _fit(texts, room)
    waited_for, room = _fit(_queues(records, served=False), room)
    unserved, _ = _fit(_unserved(records, at), room)
    return f'[0,{{"queue_info":{{{",".join(served + waited_for + unserved)}}},"server_info":[{",".join(servers)}]}}]'


def _rows(
    records: Records, viewer: Peer, before: dict[int, tuple[object, str]]
) -> Iterator[tuple[int, tuple[object, str]]]:
    for conn, peer in records.peers.items():
        source = peer.server or peer.report
        if source is not None:
            known = before.get(conn)
            if known is None or known[0] is not source:
                known = source, _dense(rows.slots(peer, viewer))[1:-1]
            yield conn, known


def _queues(records: Records, *, served: bool) -> Iterator[str]:
    for key, queue in records.queues.items():
        if bool(queue.servers) == served and shown(queue):
            yield f'{_dense(key)}:{{"free":{records.free(key)},"pending":{len(queue.waiting)}}}'


def _unserved(records: Records, at: float) -> Iterator[str]:
    for key in records.unserved_lately(at):
        queue = records.queues.get(key)
        if key and (queue is None or not shown(queue)):
            yield f'{_dense(key)}:{{"free":0,"pending":0}}'


def _fit(texts: Iterable[str], room: int) -> tuple[list[str], int]:
    fitting = []
    for text in texts:
        room -= len(text) + 1
        if room < 0:
            break
        fitting.append(text)
    return fitting, max(room, 0)
