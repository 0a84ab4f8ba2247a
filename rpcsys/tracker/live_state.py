"""What is so at present, folded from records: all that a tracker needs to be itself again after a restart."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from rpcsys.tracker.events import HistoryEntry

Fact = tuple[str, str]  # a kind of record, and the lease, ticket or server that it is about

#: Entries that hold until another ends them, and the field that says what they are about.
_BEGINS: Mapping[str, str] = {
    **dict.fromkeys(("granted", "begun", "limited"), "lease"),
    "waiting": "ticket",
    **dict.fromkeys(("joined", "set_aside", "drained"), "server"),
}
#: Entries that end others, with the field that says what they are about and the kinds that they end.
_ENDS: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "over": ("lease", ("granted", "begun", "limited")),
    "waited": ("ticket", ("waiting",)),
    "gone": ("server", ("joined",)),
    "trusted": ("server", ("set_aside",)),
    "enabled": ("server", ("drained", "set_aside")),
    "forgotten": ("server", ("drained", "set_aside")),
}


class LiveState:
    """The records that still hold, in the order in which they were made."""

    def __init__(self, records: Iterable[HistoryEntry] = ()) -> None:
        self._holds: dict[Fact, HistoryEntry] = {}
        for record in records:
            self.fold(record)

    def __iter__(self) -> Iterator[HistoryEntry]:
        return iter(self._holds.values())

    def __len__(self) -> int:
        return len(self._holds)

    def items(self) -> Iterable[tuple[Fact, HistoryEntry]]:
        """The facts, and the records that hold."""
        return self._holds.items()

    def get(self, kind: str, about: str) -> HistoryEntry | None:
        """The record of a kind that holds about something, None if there is none."""
        return self._holds.get((kind, about))

    def fold(self, record: HistoryEntry) -> dict[Fact, HistoryEntry | None]:
        """Take a record in; the facts that it changes, with None for those that it ends."""
        field = _BEGINS.get(record.kind)
        if field is not None:
            fact = (record.kind, str(record.details[field]))
            if field == "lease" and record.kind != "granted" and ("granted", fact[1]) not in self._holds:
                return {}  # about a lease that is over
            self._holds.pop(fact, None)  # so that it stands behind what was made before it
            self._holds[fact] = record
            return {fact: record}
        if record.kind not in _ENDS:
            return {}
        field, kinds = _ENDS[record.kind]
        about, holds = str(record.details[field]), self._holds
        return {(kind, about): None for kind in kinds if holds.pop((kind, about), None) is not None}
