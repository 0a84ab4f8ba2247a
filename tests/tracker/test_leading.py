"""A tracker that leads: its term, its clock, its numbers, and where its records go."""

from __future__ import annotations

import asyncio
import logging
import time
from pathlib import Path

import pytest

from rpcsys import logs
from rpcsys.tracker import events
from rpcsys.tracker.config import TrackerConfig
from rpcsys.tracker.connection import PeerConnection
from rpcsys.tracker.events import HistoryEntry
from rpcsys.tracker.service import TrackerService
from rpcsys.tracker.store import HistoryStore
from rpcsys.tracker.tables import Position
from tests.tracker import entries

AHEAD_S = 3600.0  # of this machine's clock, the journal's last leader's


@pytest.fixture(autouse=True)
def _logs(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tracker is the only one of its process, with the log that its command has set up."""
    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    logs.setup("rpcsys-tracker")


class Noted:
    """A term whose records a test sees."""

    term = 7

    def __init__(self, folder: Path) -> None:
        self.store = HistoryStore(folder, history_days=90)
        self.records: list[HistoryEntry] = []
        self.turns = 0

    def note(self, *records: HistoryEntry) -> None:
        self.records += records

    def hold(self, connection: PeerConnection, data: bytes) -> bool:
        return False

    def turn_over(self) -> None:
        self.turns += 1


def test_a_tracker_that_is_alone_again_has_no_place_in_the_journal(tmp_path: Path) -> None:
    store = HistoryStore(tmp_path, history_days=90)
    store.note(entries.joined("board", at=time.time()), position=Position(9, time.time(), 3, 4))
    store.close()

    async def run() -> None:
        TrackerService(TrackerConfig(state_dir=str(tmp_path))).close()

    asyncio.run(run())
    again = HistoryStore(tmp_path, history_days=90)
    assert (again.position, [*again.live_state]) == (Position(), [("joined", "board")])
    again.close()


def test_a_leader_goes_on_from_the_journal(tmp_path: Path) -> None:
    leading = Noted(tmp_path)
    at = time.time() + AHEAD_S
    epoch = int(at * 1000) + 5
    position = Position(9, at, epoch, epoch + 1)
    leading.store.note(entries.granted("silent-1", at=at - 10, how="silent"), position=position)

    async def run() -> None:
        service = TrackerService(TrackerConfig(), leading)
        records = service.state.records
        assert records.term == 7
        assert service.now() >= at
        assert (records.epoch, records.arrivals) == (epoch, epoch + 1)
        # Of a TVM server's lease, of which its client may not have heard:
        assert [record.kind for record in leading.records] == ["over", "unheard"]
        assert ("granted", "silent-1") in leading.store.live_state  # until the journal has its end
        service.perform(events.Connected(service.now(), 1, "10.0.0.1", "10.0.0.2"))
        service.flush()
        assert leading.turns == 1
        service.close()
        assert not leading.store._closing  # it is the replica's, which outlives the term

    asyncio.run(run())
    leading.store.close()
