"""Restarts of a tracker without sockets, with what its history has kept."""

from __future__ import annotations

import json

from rpcsys.tracker import events
from tests.tracker import event_json
from tests.tracker.transcripts import Scene

_BEGINS = {
    "granted": "lease",
    "waiting": "ticket",
    "absent": "ticket",
    "unheard": "request",
    "joined": "server",
    "set_aside": "server",
    "drained": "server",
}
_ENDS = {
    "over": [("granted", "lease")],
    "waited": [("waiting", "ticket"), ("absent", "ticket")],
    "back": [("absent", "ticket")],
    "heard": [("unheard", "request")],
    "gone": [("joined", "server")],
    "trusted": [("set_aside", "server")],
    "enabled": [("set_aside", "server"), ("drained", "server")],
}


def remembered(records):
    """The entries of `rpcsys.tracker.events.Restored`."""
    open_: dict[tuple, events.HistoryEntry] = {}
    for number, record in enumerate(records):
        for kind, field in _ENDS.get(record.kind, ()):
            open_.pop((kind, record.details[field]), None)
        if record.kind in _BEGINS:
            open_[record.kind, record.details[_BEGINS[record.kind]]] = record
        elif record.kind in ("begun", "limited", "over"):
            open_[record.kind, number] = record
    return [record for record in records if any(record is kept for kept in open_.values())]


def again(scene: Scene, after_s: float = 1.0) -> Scene:
    """The next run, `after_s` after the last one was killed."""
    following = Scene(now=scene.now + after_s)
    following.past = remembered([*scene.past, *scene.entries])
    records = json.loads(json.dumps([event_json.to_json(record) for record in following.past]))
    following.apply(events.Restored(following.now, tuple(map(event_json.from_json, records))))
    return following
