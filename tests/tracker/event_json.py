"""Events and actions to JSON and back, and the state after a log of them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields
from typing import Any

from rpcsys.tracker import events
from rpcsys.tracker.state import TrackerState
from rpcsys.wire.tracker import parse_to_tracker

KINDS: dict[str, type[Any]] = {
    kind.__name__: kind
    for kind in (
        *(events.TrackerStarted, events.Restored, events.Connected, events.Received, events.Disconnected),
        *(events.TimePassed, events.Send, events.Close, events.StopTracker, events.HistoryEntry),
        *(events.ReplicasChanged, events.SitesChanged),
    )
}


def to_json(item: events.Event | events.Action) -> dict[str, Any]:
    """The JSON object of an event or an action."""
    plain: dict[str, Any] = {"is": type(item).__name__}
    for part in fields(item):
        plain[part.name] = getattr(item, part.name)
    if isinstance(item, events.Received):
        plain["message"] = item.message.to_json()
    elif isinstance(item, events.Restored):
        plain["entries"] = [to_json(entry) for entry in item.entries]
    return plain


def from_json(plain: dict[str, Any]) -> Any:
    """The event or action of a JSON object."""
    values = dict(plain)
    kind = KINDS[values.pop("is")]
    if kind is events.Received:
        values["message"] = parse_to_tracker(values["message"])
    elif kind is events.TrackerStarted:
        values["proxy_from"] = tuple(values["proxy_from"])
    elif kind is events.ReplicasChanged:
        values["addresses"] = tuple(values["addresses"])
    elif kind is events.Restored:
        values["entries"] = tuple(from_json(entry) for entry in values["entries"])
    return kind(**values)


def replay(log: Iterable[events.Event]) -> TrackerState:
    """The state after all events of a log, which begins with `TrackerStarted`."""
    started, *later = log
    assert isinstance(started, events.TrackerStarted), "a log begins with the start"
    state = TrackerState(started)
    for event in later:
        state.apply(event)
    return state
