"""A board's page: its state, who holds it, its speed, what is on it, its last day, past leases and events."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from rpcsys.tracker.views import lab_page, rows, speeds
from rpcsys.tracker.views.day_strip import day_strip
from rpcsys.tracker.views.fragments import Fragment
from rpcsys.wire.labels import VERSIONS

if TYPE_CHECKING:
    from rpcsys.tracker.entities import Peer
    from rpcsys.tracker.events import HistoryEntry
    from rpcsys.tracker.records import Records
    from rpcsys.tracker.views.past import Past

SHOWN = 20  # past leases, and events
GROUP, ASIDE = "parts", "aside"  # the groups of pages without long tables
_KNOWN_BY_PAST = "only the history knows it"
_WORDS = {
    "joined": "registered", "gone": "left", "set_aside": "set aside", "trusted": "trusted again",
    "unhealthy": "unhealthy", "healthy": "healthy again", "slow": "slow", "well": "as fast as before",
    "drained": "drained", "enabled": "enabled", "forgotten": "forgotten",
}  # fmt: skip


def board_fragments(records: Records, at: float, name: str, past: Past) -> Iterator[Fragment]:
    """A board's page; nothing if neither the tracker nor the history knows the board."""
    conn = records.server_names.get(name)
    peer = None if conn is None else records.peers.get(conn)
    row = lab_page.gone(records, at).get(name) if peer is None else lab_page.board_row(records, at, peer)
    if row is None:
        if not past:
            return
        row = _of_the_past(name, past)
    yield Fragment(GROUP, "state", "board_state.html", {**row, "trace": None, "address": _address(peer)})
    speed = records.speeds.get(name)
    if speed is not None:
        found = speeds.of_board(speed)
        yield Fragment(GROUP, "speed", "board_speed.html", {**found, "trace": lab_page.trace(found)})
    running = [(lease["since"], None) for lease in row["leases"]]
    yield Fragment(GROUP, "day", "day.html", day_strip(at, past, running, out=row["state"] not in rows.IN_USE))
    if peer is not None:
        yield Fragment(ASIDE, "facts", "board_facts.html", _facts(peer))
    yield Fragment(GROUP, "past", "past_leases.html", {"leases": past.leases[:SHOWN], "problem": past.problem})
    events = [_event(entry) for entry in past.events[:SHOWN]]
    yield Fragment(ASIDE, "events", "events.html", {"events": events, "problem": past.problem})


def _of_the_past(name: str, past: Past) -> dict[str, Any]:
    """The row of a board that only the history knows."""
    keys = tuple(dict.fromkeys(str(lease["key"]) for lease in past.leases[:1]))
    return {
        "name": name, "keys": keys, "state": "not here", "reason": _KNOWN_BY_PAST, "slow": "", "trace": None,
        "since": None, "until": None, "facts": "", "leases": [],
    }  # fmt: skip


def _address(peer: Peer | None) -> str:
    if peer is None:
        return ""
    host = peer.address if peer.server is None else peer.server.host
    return host if peer.slots < 2 else f"{host}, {peer.slots} slots"


def _facts(peer: Peer) -> dict[str, Any]:
    """Versions, labels, devices, and deployed modules with their versions."""
    labels: Mapping[str, str] = {} if peer.server is None else peer.server.labels
    return {
        "versions": [(label, labels[label]) for label in VERSIONS if labels.get(label)],
        "labels": [(label, value) for label, value in labels.items() if label not in VERSIONS],
        "devices": [] if peer.server is None else list(peer.server.devices),
        "modules": [(module.name, module.version) for module in peer.deployed],
    }


def _event(entry: HistoryEntry) -> dict[str, Any]:
    """An event in words."""
    by = entry.details.get("by")
    details = [f"by {by}" if by else "", str(entry.details.get("reason") or "")]
    return {"at": entry.at, "what": _WORDS.get(entry.kind, entry.kind), "why": ": ".join(filter(None, details))}
