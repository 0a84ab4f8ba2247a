"""A request's place in the queue: an event that prints as a sentence, shown to people who wait.

Where a person waits, in a terminal or a notebook, the place is printed after `QUIET_S`, and a new note at once, unless
the caller takes the events. A request for a board that this process holds itself is reported at once: it may wait for
itself.
"""

from __future__ import annotations

import contextlib
import logging
import sys
import threading
import time
import weakref
from typing import TYPE_CHECKING, Any, Callable, Dict, Optional

from rpcsys.errors import printable, span

if TYPE_CHECKING:
    from rpcsys.client.session import Session

#: Seconds of waiting before the place is printed.
QUIET_S = 2.0
_log = logging.getLogger("rpcsys.tracker")
#: The leased sessions of this process, and when each was opened (monotonic clock).
_held: weakref.WeakKeyDictionary[Session, float] = weakref.WeakKeyDictionary()


class QueuedEvent(Dict[str, Any]):
    """An event of a waiting request: position, ahead, eta_s, holders, note. ``str()`` gives a sentence."""

    def __str__(self) -> str:
        text = "waiting for a device: place {} in the queue".format(self["position"])
        users = list(dict.fromkeys(holder["user"] for holder in self.get("holders") or ()))
        if users:
            text += ", taken by " + ", ".join(users)
        low, high = self.get("eta_s") or (0, 0)
        if high >= 1:
            text += f", {span(low)} to {span(high)} to go"
        if self.get("note"):
            text += f" ({self['note']})"
        return printable(text)


def hold(session: Session) -> None:
    """Note that this process holds the device of ``session``, until the session ends."""
    _held[session] = time.monotonic()


def held_here(place: Dict[str, Any], user: str) -> str:
    """A sentence about a device that this process holds as ``user``, among the holders of ``place``; "" for none."""
    servers = {holder.get("server") for holder in place.get("holders") or () if holder["user"] == user}
    for session, since in list(_held.items()):
        server = session.lease.get("server")
        if server in servers and session.closed is None:
            age = span(time.monotonic() - since)
            return printable(
                f"you hold {server} yourself, since {age}: close that session, or the request waits for it"
            )
    return ""


def watched() -> bool:
    """Whether a person watches this process: standard error is a terminal, or a notebook runs it."""
    with contextlib.suppress(AttributeError, ValueError):  # there is no standard error, it is no file, or it is closed
        return "ipykernel" in sys.modules or sys.stderr.isatty()
    return False


class PlaceWatcher:
    """Takes the events of one request; a context manager. Reports to ``on_queued``, or else prints for people."""

    def __init__(self, on_queued: Optional[Callable[[Any], Any]], user: str) -> None:
        self._on_queued = on_queued
        self._user = user
        self._prints = on_queued is None and watched()
        self._latest: Optional[QueuedEvent] = None
        self._quiet: Optional[threading.Timer] = None
        self._lock = threading.Lock()
        self._warned = False

    def __enter__(self) -> PlaceWatcher:
        return self

    def __call__(self, event: Dict[str, Any]) -> None:
        place = QueuedEvent(event)
        own = "" if self._warned else held_here(place, self._user)
        if own:
            self._warned = True
            _log.warning("%s", own)
        if self._on_queued is not None:
            self._on_queued(place)
        elif self._prints:
            self._show(place)

    def _show(self, place: QueuedEvent) -> None:
        with self._lock:
            news = place.get("note", "") != (self._latest or QueuedEvent()).get("note", "")
            self._latest = place
            if self._quiet is None:
                self._quiet = threading.Timer(QUIET_S, self._print)
                self._quiet.daemon = True
                self._quiet.start()
            if news:
                self._quiet.cancel()
            if not self._quiet.finished.is_set():
                return
        self._print()

    def _print(self) -> None:
        sys.stderr.write(f"{self._latest}\n")
        sys.stderr.flush()

    def __exit__(self, *exc: object) -> None:
        if self._quiet is not None:
            self._quiet.cancel()
