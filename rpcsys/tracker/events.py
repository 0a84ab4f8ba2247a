"""What can happen to a tracker, and what it can do about it. Both turn into JSON and back.

A log of events, replayed, gives the identical state (:func:`replay`); messages in it are the wire's own.
``at`` is seconds on a clock that never runs backwards, ``conn`` the service's number for a connection,
never used twice.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from rpcsys.errors import ProtocolError
from rpcsys.wire.tracker import ToTracker, parse_to_tracker

if TYPE_CHECKING:
    from rpcsys.tracker.state import State


@dataclass(frozen=True, slots=True)
class Started:
    """The tracker begins. ``instance`` is random, for names that no other run has used."""

    at: float
    instance: str
    stop_key: str | None = None


@dataclass(frozen=True, slots=True)
class Connected:
    """Somebody at ``address`` said the magic; ``local`` is the address at which they reached the tracker."""

    at: float
    conn: int
    address: str
    local: str


@dataclass(frozen=True, slots=True)
class Received:
    """A whole, well-formed message."""

    at: float
    conn: int
    message: ToTracker


@dataclass(frozen=True, slots=True)
class Disconnected:
    """The connection is gone, for whatever reason."""

    at: float
    conn: int


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed; due after ``State.next_deadline``."""

    at: float


@dataclass(frozen=True, slots=True)
class Send:
    """Send ``message`` (plain JSON) to ``conn``."""

    conn: int
    message: Any


@dataclass(frozen=True, slots=True)
class Close:
    """Drop a connection. Its `Disconnected` follows."""

    conn: int
    reason: str


@dataclass(frozen=True, slots=True)
class StopTracker:
    """End the tracker, after what was to be sent."""


Event = Started | Connected | Received | Disconnected | Tick
Action = Send | Close | StopTracker

_KINDS: dict[str, type[Any]] = {
    kind.__name__: kind
    for kind in (Started, Connected, Received, Disconnected, Tick, Send, Close, StopTracker)
}


def to_json(item: Event | Action) -> dict[str, Any]:
    """The JSON object of an event or an action."""
    plain: dict[str, Any] = {"is": type(item).__name__}
    for field in fields(item):
        value = getattr(item, field.name)
        plain[field.name] = (
            value.to_json() if isinstance(item, Received) and field.name == "message" else value
        )
    return plain


def from_json(plain: dict[str, Any]) -> Any:
    """The event or action of a JSON object.

    Raises
    ------
    ProtocolError: it is neither.
    """
    values = dict(plain)
    kind = _KINDS.get(values.pop("is", ""))
    if kind is Received:
        values["message"] = parse_to_tracker(values.get("message"))
    try:
        if kind is not None:
            return kind(**values)
    except TypeError:
        pass
    raise ProtocolError(f"neither an event nor an action of a tracker: {plain!r:.100}")


def replay(log: Iterable[Event]) -> State:
    """The state after all events of a log, which begins with `Started`."""
    from rpcsys.tracker.state import State

    events = iter(log)
    started = next(events)
    assert isinstance(started, Started), "a log begins with the start"
    state = State(started)
    for event in events:
        state.apply(event)
    return state
