"""Leases of boards for a measurement: some of a key, or all."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from rpcsys.client import Session
from rpcsys.client.tracker import Tracker
from rpcsys.errors import UnknownKey

ALL = "all"


@contextlib.contextmanager
def leased(
    tracker: Tracker, key: str | None, boards: int | str = 1, *, labels: Mapping[str, str] | None = None,
    on_queued: Callable[..., Any] | None = None, **terms: Any,
) -> Iterator[list[Session]]:  # fmt: skip
    """Lease ``boards`` boards of a key, or `ALL`; sessions with them, one for each board.

    All are leased one after another, in the order of their names, so that two measurements never wait for each other.
    ``terms``: others of `Tracker.request`. Raises what that raises.
    """
    with contextlib.ExitStack() as stack:
        if boards == ALL:
            found = []
            for name in names(tracker, key):
                with contextlib.suppress(*((UnknownKey,) if labels else ())):  # it has not those labels
                    one = tracker.request(key, labels={**(labels or {}), "server": name}, on_queued=on_queued, **terms)
                    found.append(stack.enter_context(one))
            if not found:
                raise UnknownKey(f"no server of {key!r} has these labels; query_tracker shows which there are")
        else:
            got: Any = tracker.request(key, labels=labels, count=int(boards), on_queued=on_queued, **terms)
            found = [stack.enter_context(each) for each in (got if isinstance(got, tuple) else (got,))]
        yield one_of_each(found)


def names(tracker: Tracker, key: str | None) -> list[str]:
    """The names of the servers of a key that grant leases, sorted. Raises `UnknownKey` where there is none."""
    servers = tracker.summary().get("servers", [])
    found = sorted({row["name"] for row in servers if key in (None, row["key"]) and row["state"] == "ok"})
    if not found:
        raise UnknownKey(f"no server of {key!r} grants leases now; query_tracker shows which there are, and why")
    return found


def one_of_each(sessions: list[Session]) -> list[Session]:
    """The first session with each board: those of one board would measure each other."""
    by_board: dict[Any, Session] = {}
    for session in sessions:
        by_board.setdefault(session.lease.get("server") or session.address, session)
    return list(by_board.values())
