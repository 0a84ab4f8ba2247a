"""What the history has for a page. The history's reader implements `PastReader`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from rpcsys.tracker.events import HistoryEntry


@dataclass(frozen=True)
class Past:
    """Leases that are over, as `rpcsys.tracker.tables.lease` has them, and events: the last ones first.

    ``usage``: by user, the largest first; ``problem``: why the history says nothing, a sentence for people.
    """

    leases: Sequence[Mapping[str, Any]] = ()
    events: Sequence[HistoryEntry] = ()
    usage: Sequence[Mapping[str, Any]] = ()
    problem: str = ""

    def __bool__(self) -> bool:
        return bool(self.leases or self.events or self.usage)


class PastReader(Protocol):
    """Reads the history, without blocking the event loop. ``at``: seconds since 1970."""

    async def of_board(self, name: str) -> Past:
        """The last leases and events of a board."""

    async def of_key(self, key: str, at: float) -> Past:
        """The usage of a key in the week before ``at``."""

    async def of_lease(self, name: str) -> Past:
        """A lease that is over."""
