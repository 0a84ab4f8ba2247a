"""What is so at present, folded from records: all that a tracker needs to be itself again after a restart."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

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


class LiveState(dict[Fact, HistoryEntry]):
    """The records that still hold, by what they are about, in the order in which they were made."""

    def __init__(self, records: Iterable[HistoryEntry] = ()) -> None:
        super().__init__()
        for record in records:
            self.fold(record)

    def fold(self, record: HistoryEntry) -> dict[Fact, HistoryEntry | None]:
        """Take a record in; the facts that it changes, with None for those that it ends."""
        field = _BEGINS.get(record.kind)
        if field is not None:
            fact = (record.kind, str(record.details[field]))
            if field == "lease" and record.kind != "granted" and ("granted", fact[1]) not in self:
                return {}  # about a lease that is over
            self.pop(fact, None)  # so that it stands behind what was made before it
            self[fact] = record
            return {fact: record}
        if record.kind not in _ENDS:
            return {}
        field, kinds = _ENDS[record.kind]
        about = str(record.details[field])
        return {(kind, about): None for kind in kinds if self.pop((kind, about), None) is not None}
