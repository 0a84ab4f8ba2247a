"""Replicas in one loop on an engine in this process: what is applied, said, logged and left."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import sqlite3
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, closing
from dataclasses import replace
from pathlib import Path

import pytest

from rpcsys import logs
from rpcsys.client.tracker import connect_tracker
from rpcsys.daemon.acceptor import Acceptor
from rpcsys.serve import bind
from rpcsys.tracker.config import TrackerConfig
from rpcsys.tracker.replicas import journal, listing
from rpcsys.tracker.replicas.engine import EngineLost, EngineRefused
from rpcsys.tracker.replicas.role import CONTACT_S
from rpcsys.tracker.replicas.service import ReplicaService, new_leader
from rpcsys.tracker.store import HistoryStore
from rpcsys.tracker.tables import Position
from rpcsys.wire.tracker import MAGIC_BYTES, encode
from tests.tracker import entries
from tests.tracker.replicas.memory_engine import MemoryEngine
from tests.tracker.replicas.simulation import SimulatedEngine

SOON_S = 30.0
REQUEST = encode([4, "rpi4", "", 1])
PUT = encode([3, "rpi4", [9090, "rpi4:0.1"], None])


@pytest.fixture(autouse=True)
def _logs(monkeypatch: pytest.MonkeyPatch) -> None:
    """The process's log is a daemon's until the test ends."""
    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    monkeypatch.setattr(logging.getLogger(), "level", logging.NOTSET)
    logs.setup("rpcsys-tracker")


async def until(true: Callable[[], object]) -> None:
    end = time.monotonic() + SOON_S
    while not true():
        assert time.monotonic() < end, "it does not happen"
        await asyncio.sleep(0.01)


class Running:
    """A replica that accepts connections."""

    def __init__(self, folder: Path, stored: SimulatedEngine, **flags: object) -> None:
        listener = bind("127.0.0.1", 0, 1)
        self.address = listener.getsockname()[:2]
        self.engine, self.folder = MemoryEngine(stored), folder
        config = TrackerConfig(state_dir=str(folder), **flags)  # type: ignore[arg-type]
        self.service = ReplicaService(config, self.engine, new_leader(*self.address, 0))
        self.acceptor = Acceptor(listener, self.service.accept)

    async def close(self) -> None:
        if not self.engine.closed:
            self.acceptor.close()
            await self.service.close()

    @property
    def leads(self) -> bool:
        return self.service.tracker is not None

    async def says(self, *frames: bytes) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection(*self.address)
        writer.write(MAGIC_BYTES + b"".join(frames))
        return reader, writer


Act = Callable[..., Awaitable[None]]


def run(act: Act, tmp_path: Path, count: int = 1, stored: SimulatedEngine | None = None, **flags: object) -> None:
    @asynccontextmanager
    async def running() -> AsyncIterator[list[Running]]:
        engine = stored or SimulatedEngine()
        made = [Running(tmp_path / str(number), engine, **flags) for number in range(count)]
        try:
            yield made
        finally:
            for each in made:
                await each.close()

    async def main() -> None:
        async with running() as made:
            await act(*made)

    asyncio.run(main())


def test_one_leads_and_its_records_are_the_others(tmp_path: Path) -> None:
    async def act(one: Running, other: Running) -> None:
        await until(lambda: one.leads or other.leads)
        leader, standby = (one, other) if one.leads else (other, one)
        assert not standby.leads
        service = leader.service
        assert service.tracker is not None
        service.tracker._note(entries.joined("board", at=time.time()))
        service.tracker.flush()
        await until(lambda: ("joined", "board") in standby.service.store.live_state)
        await until(lambda: service.store.position == standby.service.store.position)  # its history is whole, too
        assert service.store.position.through >= 1
        assert standby.service.summary()["leader"] == "{}:{}".format(*leader.address)
        await until(lambda: len(leader.service.summary()["replicas"]) == 2)
        await until(lambda: service.tracker and service.tracker.state.records.replicas == ("127.0.0.1",))
        await leader.close()  # gives the term back
        await until(lambda: standby.leads)
        assert standby.service.counts.failovers == 2

    run(act, tmp_path, 2)


def test_a_leader_without_its_engine_says_nothing_and_cuts_its_connections(tmp_path: Path) -> None:
    async def act(one: Running) -> None:
        await until(lambda: one.leads)
        reader, writer = await one.says()
        assert await reader.readexactly(4) == MAGIC_BYTES
        writer.write(PUT)
        assert await reader.readexactly(5) == encode(0)
        one.engine.fails = EngineLost("no etcd answers")
        writer.write(REQUEST)
        began = time.monotonic()
        assert await asyncio.wait_for(reader.read(), SOON_S) == b""
        assert time.monotonic() - began > 1.0
        assert not one.leads
        assert one.service.summary()["engine"] == "no etcd answers"
        one.engine.fails = None
        await until(lambda: one.leads)
        assert one.service.summary()["engine"] == "up"
        writer.close()

    run(act, tmp_path)
    assert CONTACT_S == 5.0


def test_what_is_held_back_is_never_sent_by_one_that_stops(tmp_path: Path) -> None:
    async def act(one: Running) -> None:
        await until(lambda: one.leads)
        term = one.service.replica.role.term
        reader, writer = await one.says(PUT)
        assert await reader.readexactly(9) == MAGIC_BYTES + encode(0)
        one.engine.full = True
        writer.write(REQUEST)
        ledger = one.service.replica.ledger
        assert ledger is not None
        await until(lambda: not ledger.idle)
        await one.close()
        assert await asyncio.wait_for(reader.read(), SOON_S) == b""  # and its socket is closed
        assert one.engine.resigned == [term]
        writer.close()

    run(act, tmp_path)


def test_one_that_does_not_lead_gives_nothing_back(tmp_path: Path) -> None:
    async def act(one: Running, other: Running) -> None:
        await until(lambda: one.leads or other.leads)
        leader, standby = (one, other) if one.leads else (other, one)
        await until(lambda: standby.service.replica.role.leader)
        await standby.close()
        assert standby.engine.resigned == []
        assert leader.leads

    run(act, tmp_path, 2)


def test_one_that_is_closed_has_no_task_and_no_timer(tmp_path: Path) -> None:
    async def act(one: Running, other: Running) -> None:
        await until(lambda: one.leads or other.leads)
        leader, standby = (one, other) if one.leads else (other, one)
        _, writer = await standby.says(REQUEST)  # relayed
        await until(lambda: standby.service.standby.relays.pairs)
        for each in (standby, leader):
            await each.close()
            assert each.service._timer is not None
            assert each.service._timer.cancelled()
        writer.close()
        await until(lambda: asyncio.all_tasks() == {asyncio.current_task()})

    run(act, tmp_path, 2)


def test_an_engine_that_is_full_is_not_back_before_it_takes_an_entry(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def act(one: Running) -> None:
        logging.getLogger().addHandler(caplog.handler)
        await until(lambda: one.leads)
        one.engine.full = True
        service = one.service
        assert service.tracker is not None
        service.tracker._note(entries.joined("board", at=time.time()))
        service.tracker.flush()
        await until(lambda: not service.counts.engine_up)
        looks = one.engine.looks
        await until(lambda: one.engine.looks > looks + 1)
        assert not service.counts.engine_up
        assert service.summary()["engine"] == "etcd takes no more data"
        assert one.leads
        one.engine.full = False
        await until(lambda: service.counts.engine_up)
        await until(lambda: ("joined", "board") in service.store.live_state)

    run(act, tmp_path)
    said = [record.getMessage() for record in caplog.records if "engine_" in record.getMessage()]
    assert said == ["engine_lost etcd takes no more data", "engine_back"]


def test_a_journal_that_cannot_be_read_is_said_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def act(one: Running) -> None:
        logging.getLogger().addHandler(caplog.handler)
        looks = one.engine.looks
        await until(lambda: one.engine.looks > looks + 5)
        assert not one.leads
        assert "damaged" in one.service.summary()["engine"]

    stored = SimulatedEngine()
    stored.journal[1] = b"nothing"
    run(act, tmp_path, stored=stored)
    said = [record.getMessage() for record in caplog.records if "journal_unreadable" in record.getMessage()]
    assert len(said) == 1
    assert not [record for record in caplog.records if "engine_" in record.getMessage()]


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


def test_a_host_without_an_address_is_looked_up_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listing, "RESOLVE_AGAIN_S", 1.0)
    asked: list[str] = []

    async def lookup(host: str, *args: object, **kwargs: object) -> list[object]:
        asked.append(host)
        if asked.count(host) == 1:
            raise socket.gaierror(socket.EAI_AGAIN, "later")
        return [(socket.AF_INET, socket.SOCK_STREAM, 0, "", ("10.0.0.9", 0))]

    async def act(one: Running) -> None:
        await until(lambda: one.leads and one.service.listing.others)
        monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", lookup)
        (status,) = one.service.listing.others.values()
        one.engine.stored.replicas["late"] = replace(status, address=("lab-9", 9190))
        await until(lambda: one.service.tracker and "10.0.0.9" in one.service.tracker.state.records.replicas)
        assert asked == ["lab-9", "lab-9"]

    run(act, tmp_path)


def test_trouble_is_logged_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def act(one: Running) -> None:
        logging.getLogger().addHandler(caplog.handler)
        await until(lambda: one.leads)
        one.engine.fails = EngineRefused("it is no etcd")
        await until(lambda: one.service.counts.engine_up is False)
        one.engine.fails = EngineRefused("nor is the next member")
        await until(lambda: one.service.summary()["engine"] == "nor is the next member")
        one.engine.fails = None
        await until(lambda: one.service.counts.engine_up)

    run(act, tmp_path)
    said = [record.getMessage() for record in caplog.records if "engine_" in record.getMessage()]
    assert said == ["engine_lost it is no etcd", "engine_back"]


def test_an_answer_that_is_not_understood_is_as_good_as_none(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def act(one: Running) -> None:
        logging.getLogger().addHandler(caplog.handler)
        one.engine.fails = KeyError("through")
        await until(lambda: "not understood (KeyError('through'))" in one.service.summary()["engine"])
        one.engine.fails = None
        await until(lambda: one.leads)
        assert not one.service.stopped.is_set()

    run(act, tmp_path)
    assert any(record.exc_info for record in caplog.records)


def test_a_replica_with_an_error_of_its_own_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def faulty(self: object, action: object) -> None:
        raise ZeroDivisionError

    async def act(one: Running) -> None:
        await asyncio.wait_for(one.service.stopped.wait(), SOON_S)
        assert one.service.failed

    stored = SimulatedEngine()
    stored.journal[1] = journal.pack([entries.joined("board", at=time.time())])[0]
    monkeypatch.setattr(ReplicaService, "_apply", faulty)
    run(act, tmp_path, stored=stored)


def test_a_replica_whose_timer_fails_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def act(one: Running) -> None:
        monkeypatch.setattr(one.service.replica, "tick", None)
        await asyncio.wait_for(one.service.stopped.wait(), SOON_S)
        assert one.service.failed

    run(act, tmp_path)


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


def test_a_replica_with_other_limits_says_so_and_waits(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def act(one: Running) -> None:
        logging.getLogger().addHandler(caplog.handler)
        await until(lambda: one.leads)
        assert one.engine.stored.config is not None
        assert one.engine.stored.config["max_session"] == {"rpi4": 60.0}
        other = Running(tmp_path / "other", one.engine.stored)
        await until(lambda: other.service.replica.role.handicap_s)
        await other.close()

    run(act, tmp_path, limits=(("rpi4", 60.0),))
    assert [record for record in caplog.records if "give all replicas the same" in record.getMessage()]


def test_nothing_is_left(tmp_path: Path) -> None:
    def descriptors() -> int:
        return len(os.listdir("/proc/self/fd"))

    async def act(one: Running) -> None:
        await until(lambda: one.leads)
        for _ in range(5):
            _, writer = await one.says()
            writer.close()

    run(act, tmp_path / "first")
    before = descriptors()
    run(act, tmp_path / "again")
    assert descriptors() == before
    with socket.create_server(("127.0.0.1", 0)):
        pass


def test_the_state_has_the_replicas_in_a_line(tmp_path: Path) -> None:
    async def act(one: Running, other: Running) -> None:
        await until(lambda: one.leads or other.leads)
        leader, standby = (one, other) if one.leads else (other, one)
        address = "{}:{}".format(*leader.address)

        def line() -> str:
            assert leader.service.tracker is not None
            return leader.service.tracker.state.records.replicas_text

        term = leader.service.replica.role.term
        await until(lambda: line() == f"2 trackers, {address} leads (term {term})")
        await standby.close()
        leader.engine.stored.replicas.pop(standby.service._me.replica)  # as its lease ends
        await until(lambda: line() == f"1 tracker, {address} leads (term {term}), 1 missing")

    run(act, tmp_path, 2)


def test_who_lacks_an_entry_is_behind_since_it_came(tmp_path: Path) -> None:
    async def act(one: Running) -> None:
        await until(lambda: one.leads and one.service.listing.others)
        (status,) = one.service.listing.others.values()
        late = replace(status, address=("10.0.0.9", 9190), through=0)
        one.engine.stored.replicas["late"] = late
        await until(lambda: one.service.counts.behind_s.get("10.0.0.9:9190") == 0.0)
        assert one.service.tracker is not None
        one.service.tracker._note(entries.joined("board", at=time.time()))
        one.service.tracker.flush()
        await until(lambda: one.service.counts.behind_s["10.0.0.9:9190"] > 1.0)
        (row,) = [row for row in one.service.summary()["replicas"] if row["address"] == "10.0.0.9:9190"]
        assert row["behind"] >= 1

    run(act, tmp_path)


def test_replicas_are_told_through_each_of_them(tmp_path: Path) -> None:
    def ask(address: tuple[str, int]) -> tuple[object, list[str]]:
        with connect_tracker(address) as link:
            found = link.replicas()
            return found["leader"], sorted(row["role"] for row in found["replicas"])

    async def act(one: Running, other: Running) -> None:
        await until(lambda: one.leads or other.leads)
        leader, standby = (one, other) if one.leads else (other, one)
        roles = {"leads", "follows"}
        await until(lambda: {row["role"] for row in leader.service.summary()["replicas"]} == roles)
        for each in (leader, standby):
            told = await asyncio.to_thread(ask, each.address)
            assert told == ("{}:{}".format(*leader.address), ["follows", "leads"])

    run(act, tmp_path, 2)
