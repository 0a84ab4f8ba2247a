"""TVM's summary as text: one reply, however large the lab is, asked for as often as people like.

A row's text is made once for each server, and a large summary is remembered for a second, so that those who look at
a lab do not keep those waiting who want a device.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from rpcsys.tracker.addresses import is_loopback
from rpcsys.tracker.entities import Peer
from rpcsys.tracker.views.servers import slots
from rpcsys.tracker.views.summary import shown

if TYPE_CHECKING:
    from rpcsys.tracker.records import Records

MAX_CHARACTERS = 3 << 20
"""Of a summary, with a little room to spare: a lab of fifty thousand devices, and less than what makes a connection one
that does not read (`rpcsys.tracker.connection.MAX_UNSENT`). What does not fit is left out."""

FRESH_S = 1.0
LARGE = 64 << 10
"""A summary of so many characters is remembered for `FRESH_S`; to make a smaller one takes less than a millisecond."""

_LONG = 32 << 10
"""Rows of one server with so many characters, of a proxy of TVM's with hundreds of keys, come after all others:
they are the first to be left out."""

_SPARE = 64
_VIEWS = 8
"""Addresses of this machine for which summaries are remembered: servers on it are shown at the one that was reached."""

_json = json.JSONEncoder(separators=(",", ":")).encode


@dataclass
class _View:
    """What is shown to those who reached the tracker at one address; ``rows`` by server: what it was made of, and
    the text.
    """

    made_at: float = float("-inf")
    text: str = ""
    rows: dict[int, tuple[object, str]] = field(default_factory=dict)


class SummaryText:
    """Free and pending by key (``queue_info``), and a row for each slot of each server (``server_info``)."""

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
        text = _make(records, viewer, view)
        if len(text) >= LARGE:
            view.made_at, view.text = at, text
        return text


def _make(records: Records, viewer: Peer, view: _View) -> str:
    room = MAX_CHARACTERS - _SPARE
    view.rows = dict(_rows(records, viewer, view.rows))
    rows = [text for _, text in view.rows.values() if text]
    in_order = sorted(rows, key=_is_long) if any(map(_is_long, rows)) else rows
    served, room = _fit(_queues(records, served=True), room)
    servers, room = _fit(in_order, room)
    waited_for, _ = _fit(_queues(records, served=False), room)
    return f'[0,{{"queue_info":{{{",".join(served + waited_for)}}},"server_info":[{",".join(servers)}]}}]'


def _rows(
    records: Records, viewer: Peer, before: dict[int, tuple[object, str]]
) -> Iterator[tuple[int, tuple[object, str]]]:
    """The rows of each server, as one text, made anew only for what has changed."""
    for conn, peer in records.peers.items():
        source = peer.server or peer.report
        if source is not None:
            known = before.get(conn)
            if known is None or known[0] is not source:
                known = source, _json(slots(peer, viewer))[1:-1]
            yield conn, known


def _is_long(row: str) -> bool:
    return len(row) >= _LONG


def _queues(records: Records, *, served: bool) -> Iterator[str]:
    """Entries of keys that somebody serves, or of those that are only waited for."""
    for key, queue in records.queues.items():
        if bool(queue.servers) == served and shown(queue):
            yield f'{_json(key)}:{{"free":{records.pool.count(key)},"pending":{len(queue.waiting)}}}'


def _fit(texts: Iterable[str], room: int) -> tuple[list[str], int]:
    """As many of the texts as have room, and the room that is left."""
    fitting = []
    for text in texts:
        room -= len(text) + 1
        if room < 0:
            break
        fitting.append(text)
    return fitting, max(room, 0)
