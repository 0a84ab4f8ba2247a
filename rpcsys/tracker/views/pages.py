"""The tracker's HTTP pages: the lab for people, and as JSON for programs."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from importlib import resources
from itertools import islice
from typing import TYPE_CHECKING, Any

from rpcsys import __version__
from rpcsys.daemon.http import Content, Page, health_page, metrics_page, shared
from rpcsys.tracker.entities import Peer, Queue, WaitingRequest
from rpcsys.tracker.transitions import AWAY
from rpcsys.tracker.views import eta, lab_page, rows, speeds, summary
from rpcsys.tracker.views.live_pages import LivePages

if TYPE_CHECKING:
    from rpcsys.tracker.records import Records
    from rpcsys.tracker.views.metrics import Metrics
    from rpcsys.tracker.views.past import PastReader
    from rpcsys.tracker.views.utilisation import Utilisation

#: The peer for which addresses are shown: HTTP clients see the same as a client on the tracker's machine.
VIEWER = Peer(0, "127.0.0.1", "127.0.0.1")
FRESH_S = 1.0  # how long a rendered page is served again
MAX_SERVERS, MAX_KEYS, MAX_WAITING = 1000, 200, 20  # listed at most; the others are counted

#: Files that show nothing of the lab.
FILES = {
    "/page.css": ("page.css", "text/css; charset=utf-8"),
    "/page.js": ("page.js", "text/javascript; charset=utf-8"),
    "/picture.js": ("picture.js", "text/javascript; charset=utf-8"),
    "/speed.js": ("speed.js", "text/javascript; charset=utf-8"),
    "/icon.svg": ("icon.svg", "image/svg+xml"),
}


class TrackerPages(dict[str, Page]):
    """All pages of a tracker, by path. Those of boards, keys and leases are found when they are asked for."""

    def __init__(
        self, records: Records, metrics: Metrics, utilisation: Utilisation, past: PastReader, now: Callable[[], float]
    ) -> None:
        self._live = LivePages(records, past, now)
        super().__init__(
            {
                "/healthz": health_page,
                "/metrics": metrics_page(metrics),
                "/api/summary": shared(lambda: _summary(records, now)),
                "/api/lab": _fresh_enough(lambda: lab(records, now()), now),
                "/api/speeds": _fresh_enough(lambda: speeds.speeds(records, now()), now),
                "/api/day": _fresh_enough(lambda: utilisation.day(now()), now),
                **{path: _file(name, kind) for path, (name, kind) in FILES.items()},
            }
        )

    def __contains__(self, path: object) -> bool:
        return super().__contains__(path) or (isinstance(path, str) and self._live.at(path) is not None)

    def __missing__(self, path: str) -> Page:
        page = self._live.at(path)
        if page is None:
            raise KeyError(path)
        return page


async def _summary(records: Records, now: Callable[[], float]) -> Content:
    """The whole summary; the loop runs between its pages."""
    texts: dict[str, list[str]] = {}
    begin: summary.PageStart | None = (0, 0)
    while begin is not None:
        found, begin = summary.page(records, now(), VIEWER, begin)
        for part, entries in found.items():
            if entries:
                texts.setdefault(part, []).append(_dense(entries)[1:-1])
        await asyncio.sleep(0)
    joined = {part: ",".join(texts.get(part, ())) for part in (*summary.PARTS, *texts)}
    parts = [f'"{part}":' + (f"{{{text}}}" if part == "queue_info" else f"[{text}]") for part, text in joined.items()]
    return "application/json", f"{{{','.join(parts)}}}".encode()


def _file(name: str, kind: str) -> Page:
    body = resources.files("rpcsys.tracker").joinpath("page").joinpath(name).read_bytes()
    return lambda: (kind, body)


_dense = json.JSONEncoder(separators=(",", ":")).encode


def _fresh_enough(make: Callable[[], Any], now: Callable[[], float]) -> Page:
    """What ``make`` returns, as JSON that is at most `FRESH_S` old."""
    made: tuple[float, Content] | None = None

    def fresh() -> Content:
        nonlocal made
        at = now()
        if made is None or at - made[0] >= FRESH_S:
            made = at, ("application/json", _dense(make()).encode())
        return made[1]

    return fresh


def lab(records: Records, at: float) -> dict[str, Any]:
    """``totals`` of all, ``keys`` with their queues, and ``servers`` with their leases; ``gone`` ones, and ``away``
    leases, which are of those; ``more_…`` count servers and keys that are not listed. Times are seconds since 1970.
    """
    named = (peer for peer in records.peers.values() if peer.name)
    peers = sorted(named, key=lambda peer: (",".join(peer.serves), peer.name))
    used = (queue for queue in records.queues.values() if queue.servers or queue.waiting or queue.leases)
    queues = sorted(used, key=lambda queue: queue.key)
    away = [lease for lease in records.leases.values() if lease.state in AWAY]
    gone = records.gone_lately(at)
    return {
        "version": __version__,
        "now": at,
        "started": records.started_at,
        "settling": records.settling is not None,
        "replicas": records.replicas_text,
        "sites": records.sites_text,
        "totals": lab_page.totals(records),
        "keys": [_queue(records, at, queue) for queue in queues[:MAX_KEYS]],
        "servers": [rows.server_on_page(records, at, peer) for peer in peers[:MAX_SERVERS]],
        "away": [{"server": lease.server_name, **rows.lease_on_page(lease)} for lease in away[:MAX_SERVERS]],
        "gone": [rows.gone_on_page(name, server) for name, server in islice(gone.items(), MAX_SERVERS)],
        "more_keys": max(0, len(queues) - MAX_KEYS),
        "more_servers": max(0, len(peers) - MAX_SERVERS),
    }


def _queue(records: Records, at: float, queue: Queue) -> dict[str, Any]:
    return {
        **lab_page.counts(records, queue),
        "queue": [_waiting(request) for request in islice(eta.in_order(records, at, queue), MAX_WAITING)],
    }


def _waiting(request: WaitingRequest) -> dict[str, Any]:
    return {
        "user": request.user,
        "address": request.address,
        "since": request.since,
        "priority": request.priority,
        "count": request.count,
        "labels": request.wants.labels,
        "parked": request.parked,
    }
