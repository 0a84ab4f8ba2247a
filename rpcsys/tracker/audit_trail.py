"""What a running tracker records in its lab's audit log, gathered in the loop until the lab's thread writes it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from rpcsys.tracker.audit import AuditEntry
from rpcsys.tracker.events import Allowed, HistoryEntry, Refused

MAX_ENTRIES = 10_000  # of one second; of further ones the number is recorded

Details = Mapping[str, Any]
#: What of the history is recorded: who did it, from where, what the log calls it, and to what.
_OF_HISTORY: Mapping[str, Callable[[Details], tuple[str, str, str, str, str]]] = {
    "granted": lambda d: (d["user"], d["address"], "lease", f"{d['lease']}: {d['key']} at {d['server']}", ""),
    "over": lambda d: (d["user"], d["address"], "lease over", f"{d['lease']}: {d['outcome']}", ""),
    "drained": lambda d: (d["by"], "", "drain", d["server"], ""),
    "enabled": lambda d: (d.get("by", ""), "", "enable", d["server"], ""),
    "joined": lambda d: (d["server"], d["address"], "register", f"{d['server']}: {d['key']}", ""),
}


class AuditTrail:
    """The entries since the last :meth:`take`. Equal refusals are one entry with their number."""

    def __init__(self) -> None:
        self._entries: list[AuditEntry] = []
        self._refusals: dict[tuple[str, ...], tuple[AuditEntry, int]] = {}
        self._lost = 0

    def note(self, entry: AuditEntry) -> None:
        """Record an entry."""
        same = entry[1:] if entry.result else ()
        if same in self._refusals:
            self._refusals[same] = (self._refusals[same][0], self._refusals[same][1] + 1)
        elif len(self._entries) + len(self._refusals) >= MAX_ENTRIES:
            self._lost += 1
        elif entry.result:
            self._refusals[same] = (entry, 1)
        else:
            self._entries.append(entry)

    def note_history(self, entry: HistoryEntry) -> None:
        """Record an entry of the history, if the audit log has its kind."""
        made = _OF_HISTORY.get(entry.kind)
        if made is not None:
            self.note(AuditEntry(entry.at, *made(entry.details)))

    def note_asked(self, asked: Refused | Allowed) -> None:
        """Record an operation that was refused, or a right that was given."""
        self.note(AuditEntry(asked.at, asked.who, asked.address, asked.op, asked.on, getattr(asked, "why", "")))

    def take(self) -> list[AuditEntry]:
        """The entries by time, which are forgotten here."""
        found = [*self._entries, *(_counted(entry, count) for entry, count in self._refusals.values())]
        found.sort(key=lambda entry: entry.at)
        if self._lost:
            found.append(AuditEntry(found[-1].at, "", "", "lost", f"{self._lost} entries", "too many at once"))
        self._entries, self._refusals, self._lost = [], {}, 0
        return found


def _counted(entry: AuditEntry, count: int) -> AuditEntry:
    return entry if count == 1 else entry._replace(result=f"{entry.result} ({count} times)")
