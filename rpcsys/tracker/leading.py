"""What a tracker has that leads others, its replicas. One without replicas has none of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from rpcsys.tracker.events import HistoryEntry
from rpcsys.tracker.store import HistoryStore

if TYPE_CHECKING:
    from rpcsys.tracker.connection import PeerConnection


class Leading(Protocol):
    """The term of a leader: its records go into the journal, and what follows from them is held until they are."""

    store: HistoryStore

    @property
    def term(self) -> int:
        """The number of the term."""

    def note(self, *records: HistoryEntry) -> None:
        """Add records of the present turn."""

    def hold(self, connection: PeerConnection, data: bytes) -> bool:
        """Hold back what is to be sent over a connection; False: it may be sent."""

    def turn_over(self) -> None:
        """Write the turn's records."""
