"""For which slots the CPUs' governor is pinned, with ``--pin-governor``. Decisions only."""

from __future__ import annotations

from rpcsys.server.supervisor import actions as do
from rpcsys.server.supervisor.records import ServerRecords, earliest
from rpcsys.server.supervisor.slots import Slots

LINGER_S = 1.0  # behind a session: changing a governor takes milliseconds, and a tuner opens one session after another


class Pinning:
    """`settle` follows each event."""

    def __init__(self, records: ServerRecords, slots: Slots) -> None:
        self._records = records
        self._slots = slots
        self._until: dict[int, float | None] = {}  # by pinned slot: the time to unpin it, None while it has a session

    def settle(self) -> list[do.Action]:
        now, before = self._records.now, set(self._until)
        used = {session.slot for session in self._slots.sessions.values() if session.under_way}
        left = {slot: now + LINGER_S if until is None else until for slot, until in self._until.items()}
        self._until = {slot: until for slot, until in left.items() if slot not in used and now < until}
        self._until.update(dict.fromkeys(used))
        return [do.PinGovernors(tuple(sorted(self._until)))] if set(self._until) != before else []

    def deadline(self) -> float | None:
        return earliest(self._until.values())
