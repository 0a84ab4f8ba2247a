"""What replicas keep: the same records and history everywhere, each row once, also of journals that began anew."""

from __future__ import annotations

import sqlite3
import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from rpcsys.tracker.replicas import journal
from rpcsys.tracker.store import HistoryStore
from rpcsys.tracker.tables import Position
from tests.tracker import entries
from tests.tracker.replicas.running import Running, run, until
from tests.tracker.replicas.simulation import SimulatedEngine

pytestmark = pytest.mark.usefixtures("daemons_log")


async def lease_on(leader: Running, epoch: int) -> None:
    """A board joins, and is leased until now."""
    tracker, now, name = leader.service.tracker, time.time(), f"{epoch}-a"
    assert tracker is not None
    through = leader.service.store.position.through
    for record in (entries.joined(f"board{epoch}", now), entries.granted(name, now, epoch=epoch)):
        tracker._note(record)
    tracker._note(entries.over(name, now, epoch=epoch))
    tracker.flush()
    await until(lambda: leader.service.store.position.through > through)


def ended(folder: Path) -> list[tuple[int, float]]:
    """The leases and the boards in a replica's history."""
    with closing(sqlite3.connect(folder / "tracker.sqlite")) as file:
        leases = file.execute("SELECT epoch, held_s FROM leases ORDER BY id").fetchall()
        return leases + file.execute("SELECT kind, about FROM events WHERE kind = 'joined' ORDER BY id").fetchall()


def test_a_new_engine_gets_what_the_first_replica_has(tmp_path: Path) -> None:
    store = HistoryStore(tmp_path / "0", history_days=90)
    store.note(entries.joined("board", at=time.time()), position=Position(7, time.time(), 3, 4))
    store.close()

    async def act(one: Running) -> None:
        await until(lambda: one.leads)
        assert [*one.service.store.live_state] == [("joined", "board")]
        await until(lambda: one.engine.stored.journal)
        assert [*one.engine.stored.journal] == [1]

    run(act, tmp_path)


def test_another_journal_replaces_what_a_replica_has(tmp_path: Path) -> None:
    store = HistoryStore(tmp_path / "0", history_days=90)
    store.note(entries.joined("old", at=time.time()), position=Position(7, time.time(), 3, 4))
    store.close()
    stored = SimulatedEngine()
    stored.journal[1] = journal.pack([entries.joined("new", at=time.time())])[0]

    async def act(one: Running) -> None:
        await until(lambda: one.leads)
        assert [*one.service.store.live_state] == [("joined", "new")]
        assert one.service.store.position.through == 1

    run(act, tmp_path, stored=stored)


def test_a_position_comes_back_from_the_file(tmp_path: Path) -> None:
    stored = SimulatedEngine()
    seen: list[Position] = []

    async def first(one: Running) -> None:
        await until(lambda: one.leads)
        tracker = one.service.tracker
        assert tracker is not None
        tracker._note(entries.joined("board", at=time.time()))
        tracker.flush()
        await until(lambda: one.service.store.position.through)
        seen.append(one.service.store.position)

    async def again(one: Running) -> None:
        assert one.service.replica.fold.through == seen[0].through
        assert one.service.store.position == seen[0]
        assert [*one.service.store.live_state] == [("joined", "board")]

    run(first, tmp_path, stored=stored)
    run(again, tmp_path, stored=stored)


def test_a_single_trackers_history_goes_on_in_its_replicas(tmp_path: Path) -> None:
    for number, name in enumerate(("first", "second")):
        store = HistoryStore(tmp_path / str(number), history_days=90)
        store.note(entries.joined(name, at=time.time()))
        store.close()

    async def act(one: Running, other: Running) -> None:
        await until(lambda: one.leads or other.leads)
        leader, standby = (one, other) if one.leads else (other, one)
        (fact,) = [fact for fact in leader.service.store.live_state if fact[0] == "joined"]
        await until(lambda: [*standby.service.store.live_state] == [fact])

    run(act, tmp_path, 2)


@pytest.mark.parametrize("change", ["restored", "another"])
def test_a_journal_that_is_read_anew_leaves_each_row_once(tmp_path: Path, change: str) -> None:
    stored, before = SimulatedEngine(), ""

    async def first(one: Running) -> None:
        await until(lambda: one.leads)
        for epoch in (1, 2):
            await lease_on(one, epoch)

    async def again(one: Running) -> None:
        await until(lambda: one.leads)
        assert stored.config is not None
        assert stored.config["journal"] != before

    run(first, tmp_path, stored=stored)
    assert stored.config is not None
    before = stored.config["journal"]
    rows = ended(tmp_path / "0")
    assert len(rows) == 4
    if change == "restored":
        del stored.journal[2]
    else:  # as long as the one that this replica has
        stored.config["journal"] = "another"
    run(again, tmp_path, stored=stored)
    assert ended(tmp_path / "0") == rows


def test_one_that_was_away_for_longer_than_the_journal_goes_back_gets_what_it_lacks(tmp_path: Path) -> None:
    async def act(one: Running, other: Running) -> None:
        await until(lambda: one.leads or other.leads)
        leader, standby = (one, other) if one.leads else (other, one)
        stored, place = leader.engine.stored, standby.folder
        await lease_on(leader, 1)
        await until(lambda: standby.service.store.position == leader.service.store.position)
        await standby.close()
        await lease_on(leader, 2)
        await lease_on(leader, 3)
        fold = replace(leader.service.replica.fold, live=leader.service.store.live_state)
        stored.snapshot = fold.snapshot()
        stored.journal.clear()
        back = Running(place, stored)
        try:
            await until(lambda: back.service.store.position.lacks is not None)
            await lease_on(leader, 4)
            await until(lambda: back.service.store.position == leader.service.store.position)
        finally:
            await back.close()
        await leader.close()
        theirs, own = (ended(each)[:4] for each in (leader.folder, place))
        assert [row[0] for row in own] == [1, 2, 3, 4]
        assert own == theirs

    run(act, tmp_path, 2)
