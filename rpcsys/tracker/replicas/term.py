"""What a tracker has while it leads its replicas: its records go to `ReplicaState`, and what it says is held there."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from rpcsys.tracker.events import HistoryEntry
from rpcsys.tracker.replicas import replica as decisions
from rpcsys.tracker.replicas.pages import AnswerReceiver
from rpcsys.tracker.replicas.replica import ReplicaState
from rpcsys.tracker.store import HistoryStore

Held = tuple[AnswerReceiver, bytes]


@dataclass
class Term:
    """What a `TrackerService` that leads has (`rpcsys.tracker.leading.Leading`)."""

    term: int
    store: HistoryStore
    replica: ReplicaState[Held]
    carry_out: Callable[[list[decisions.Action]], None]

    def note(self, *records: HistoryEntry) -> None:
        """Add records of the present turn."""
        for record in records if self._lasts else ():
            self.replica.note(record)

    def hold(self, connection: AnswerReceiver, data: bytes) -> bool:
        """Hold back what is to be sent; for good, if the term is over."""
        ledger = self.replica.ledger
        return not self._lasts or ledger is None or ledger.hold((connection, data), time.monotonic())

    def turn_over(self) -> None:
        """Write the turn's records."""
        if self._lasts:
            self.carry_out(self.replica.turn_over(time.monotonic()))

    @property
    def _lasts(self) -> bool:
        return self.replica.ledger is not None and self.replica.role.term == self.term
