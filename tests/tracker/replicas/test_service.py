"""Replicas in one loop on an engine in this process: what is applied, said, logged and left."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from rpcsys import logs
from rpcsys.client.tracker import connect_tracker
from rpcsys.daemon.acceptor import Acceptor
from rpcsys.serve import bind
from rpcsys.tracker.config import TrackerConfig
from rpcsys.tracker.replicas.engine import EngineLost, EngineRefused
from rpcsys.tracker.replicas.role import CONTACT_S
from rpcsys.tracker.replicas.service import ReplicaService, new_leader
from rpcsys.tracker.store import HistoryStore
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
        self.engine = MemoryEngine(stored)
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


def run(act: Act, tmp_path: Path, count: int = 1, **flags: object) -> None:
    @asynccontextmanager
    async def running() -> AsyncIterator[list[Running]]:
        stored = SimulatedEngine()
        made = [Running(tmp_path / str(number), stored, **flags) for number in range(count)]
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
        assert service.store.position == standby.service.store.position
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


def test_trouble_is_logged_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def act(one: Running) -> None:
        logging.getLogger().addHandler(caplog.handler)
        await until(lambda: one.leads)
        one.engine.fails = EngineRefused("it is no etcd")
        await until(lambda: one.service.counts.engine_up is False)
        await asyncio.sleep(1.5)
        one.engine.fails = None
        await until(lambda: one.service.counts.engine_up)

    run(act, tmp_path)
    said = [record.getMessage() for record in caplog.records if "engine_" in record.getMessage()]
    assert said == ["engine_lost it is no etcd", "engine_back"]


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
        await until(lambda: one.leads and one.engine.config is not None)
        assert one.engine.config == {"max_session": {"rpi4": 60.0}}
        other = Running(tmp_path / "other", one.engine.stored)
        other.engine.config = one.engine.config
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
        await until(lambda: one.leads and one.service.others)
        (status,) = one.service.others.values()
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
