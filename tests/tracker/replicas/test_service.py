"""Replicas in one loop on an engine in this process: what is applied, said, logged and left."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import time
from dataclasses import replace
from pathlib import Path

import pytest

from rpcsys.client.tracker import connect_tracker
from rpcsys.tracker.config import TrackerConfig
from rpcsys.tracker.events import HistoryEntry
from rpcsys.tracker.replicas import journal, listing
from rpcsys.tracker.replicas.engine import EngineLost, EngineRefused
from rpcsys.tracker.replicas.role import CONTACT_S
from rpcsys.tracker.replicas.service import ReplicaService
from rpcsys.tracker.webhooks import Webhooks
from rpcsys.wire.tracker import MAGIC_BYTES, TrackerFrameReader, decode_json, encode
from tests.tracker import entries
from tests.tracker.hook_receivers import HookReceiver
from tests.tracker.replicas.running import PUT, REQUEST, SOON_S, Running, run, until
from tests.tracker.replicas.simulation import SimulatedEngine

pytestmark = pytest.mark.usefixtures("daemons_log")


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


def test_one_that_is_closed_ends_a_task_that_swallows_its_cancellation(tmp_path: Path) -> None:
    async def act(one: Running) -> None:
        await until(lambda: one.leads)
        swallowed = []

        async def deaf() -> None:
            while True:
                try:
                    await asyncio.sleep(SOON_S)
                except asyncio.CancelledError:
                    if swallowed:
                        raise
                    swallowed.append(True)

        one.service._begin(deaf())
        await asyncio.sleep(0)
        await asyncio.wait_for(one.close(), SOON_S)
        assert swallowed
        assert one.engine.resigned

    run(act, tmp_path)


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


def test_who_waits_is_told_why_past_all_that_is_held_back(tmp_path: Path) -> None:
    async def act(one: Running) -> None:
        await until(lambda: one.leads)
        told: dict[str, list[str]] = {"before": [], "after": []}
        board, writer = await one.says(encode([3, "rpi4", [9090, "rpi4:0.1"], None]))
        assert await board.readexactly(9) == MAGIC_BYTES + encode(0)
        links = {name: await one.says(encode({"op": "ping", "id": 1})) for name in told}

        async def read(name: str) -> None:
            frames = TrackerFrameReader()
            while data := await links[name][0].read(4096):
                frames.feed(data)
                while (frame := frames.next()) is not None:
                    message = decode_json(frame)
                    told[name].append(message["note"] if message.get("event") == "queued" else "leases" in message)

        reading = [asyncio.ensure_future(read(name)) for name in told]
        await until(lambda: all(told.values()))
        links["before"][1].write(encode({"op": "request", "id": 2, "key": "gpu", "wait_for_key": True}))
        await until(lambda: len(told["before"]) == 2)
        first = told["before"][1]
        one.engine.full = True
        links["after"][1].write(encode({"op": "request", "id": 2, "key": "rpi4"}))  # there is a device
        await until(lambda: len(told["before"]) == 3 and len(told["after"]) == 2)
        assert told["before"][2] == told["after"][1] == "etcd takes no more data"
        one.engine.full = False
        await until(lambda: told["after"][2:] == [True])  # the lease
        await until(lambda: told["before"][3:] == [first])
        for task in reading:
            task.cancel()
        for _, each in links.values():
            each.close()
        writer.close()

    run(act, tmp_path)


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


def test_the_leader_of_replicas_alone_sends_and_the_next_one_goes_on(tmp_path: Path) -> None:
    async def main() -> None:
        engine = SimulatedEngine()
        hooks = [Webhooks(TrackerConfig(webhooks=(each.url,))) for each in receivers]
        running = [Running(tmp_path / str(number), engine, hooks[number]) for number in range(2)]
        await until(lambda: running[0].leads or running[1].leads)
        first = 0 if running[0].leads else 1
        note(running[first], "one")
        await until(lambda: receivers[first].types == ["board.drained"])
        await running[first].close()
        await until(lambda: running[1 - first].leads)
        note(running[1 - first], "two")
        await until(lambda: receivers[1 - first].types == ["board.drained"])
        await running[1 - first].close()
        for each in hooks:
            await each.close()
        told = [receivers[number].told[0].event["data"]["board"] for number in (first, 1 - first)]
        assert told == ["one", "two"]

    def note(replica: Running, board: str) -> None:
        tracker = replica.service.tracker
        assert tracker is not None
        tracker._note(HistoryEntry(time.time(), "drained", {"server": board, "by": "mo"}))
        tracker.flush()

    with HookReceiver() as one, HookReceiver() as other:
        receivers = [one, other]
        asyncio.run(main())
    assert len(one.told) + len(other.told) == 2
