"""The engine on one member of etcd."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace

import pytest

from rpcsys.tracker.replicas.config import EnginePlace
from rpcsys.tracker.replicas.engine import MAX_ENTRIES, MAX_VALUE, EngineLost, EngineRefused
from rpcsys.tracker.replicas.etcd import LEADER_LEASE_S, EtcdEngine
from rpcsys.tracker.replicas.http_client import HttpServer
from rpcsys.wire.http1 import HttpLimits
from rpcsys.wire.http1_requests import make_response, parse_request
from tests import etcd
from tests.etcd import Etcd
from tests.tracker.replicas.engines import (
    CONFIG,
    ONE,
    OTHER,
    REPLICA,
    SNAPSHOT,
    leading,
    new_lab,
    opened,
    prefixed,
    text,
    without_lease,
)

pytestmark = [pytest.mark.live, pytest.mark.usefixtures("limits")]


# ------------------------------------------------------------------ the verbs


def test_a_new_lab_has_nothing(one: Etcd) -> None:
    async def run() -> None:
        async with opened(one) as [engine]:
            seen = await engine.look(0)
            assert (seen.leader, seen.term, seen.entries, seen.snapshot) == (None, 0, [], None)
            assert (seen.config, seen.more, seen.replicas) == (None, False, {})
            assert await engine.renew(0) == 0

    asyncio.run(run())


def test_a_leader_writes_and_a_follower_reads(one: Etcd) -> None:
    async def run() -> None:
        async with opened(one, 2) as [engine, follower]:
            term = await leading(engine)
            assert await engine.renew(term) >= 1
            for number, data in enumerate((b"one", bytes(range(256)), b""), 1):
                assert await engine.append(number, data, term)
            await follower.announce("id-b", REPLICA)
            seen = await follower.look(1)
            assert (seen.leader, seen.term) == (ONE, term)
            assert seen.entries == [(2, bytes(range(256))), (3, b"")]
            assert seen.config == CONFIG
            assert seen.replicas == {"id-b": REPLICA}
            await follower.announce("id-b", replace(REPLICA, through=4))
            assert (await engine.look(3)).replicas["id-b"].through == 4

    asyncio.run(run())


def test_an_entry_that_is_written_twice_is_there_once(one: Etcd) -> None:
    async def run() -> None:
        async with opened(one) as [engine]:
            term = await leading(engine)
            assert await engine.append(1, b"one", term)
            assert await engine.append(1, b"one", term)
            assert (await engine.look(0)).entries == [(1, b"one")]

    asyncio.run(run())


def test_a_deposed_leader_writes_nothing(one: Etcd) -> None:
    async def run() -> None:
        async with opened(one, 2) as [engine, other]:
            term = await leading(engine)
            assert await engine.append(1, b"one", term)
            assert await engine.append(2, b"two", term)
            later = await leading(other, OTHER, 2)
            assert later > term
            assert not await engine.append(3, b"three", term)
            assert not await engine.write_snapshot(SNAPSHOT, [b"a", b"b"], term)
            assert not await engine.begin(0, {}, term)
            await engine.resign(term)
            seen = await other.look(0)
            assert (seen.leader, seen.term, seen.snapshot, seen.config) == (OTHER, later, None, CONFIG)
            assert seen.entries == [(1, b"one"), (2, b"two")]

    asyncio.run(run())


def test_of_two_candidates_one_wins(one: Etcd) -> None:
    async def run() -> None:
        async with opened(one, 6) as engines:
            for _ in range(5):
                over = {(await engine.look(0)).term for engine in engines}
                assert len(over) == 1
                terms = await asyncio.gather(*(engine.campaign(ONE, *over) for engine in engines))
                assert sorted(map(bool, terms)) == [False] * 5 + [True]
                assert (await engines[0].look(0)).term == max(terms)

    asyncio.run(run())


def test_who_loses_gives_its_lease_back(one: Etcd) -> None:
    """Otherwise a request that is still on its way could win with it."""

    def leases() -> set[str]:
        return {row["ID"] for row in one.ask("/v3/lease/leases", {}).get("leases", [])}

    async def run() -> None:
        async with opened(one, 2) as [engine, other]:
            await leading(engine)
            before = leases()
            assert before
            assert await other.campaign(OTHER, 0) == 0
            assert leases() == before

    asyncio.run(run())


def test_a_lease_runs_out_and_another_wins(one: Etcd, limits: Callable[..., None]) -> None:
    limits(lease=LEADER_LEASE_S)

    async def run() -> None:
        async with opened(one, 2) as [engine, other]:
            term = await leading(engine)
            assert await other.campaign(OTHER, 0) == 0
            await without_lease(other)
            assert await engine.renew(term) == 0
            assert not await engine.append(1, b"", term)
            assert await leading(other, OTHER) > term

    asyncio.run(run())


def test_a_renewed_lease_stays(one: Etcd, limits: Callable[..., None]) -> None:
    limits(lease=2)

    async def run() -> None:
        async with opened(one, 2) as [engine, other]:
            term = await leading(engine)
            until = time.monotonic() + 5
            while time.monotonic() < until:
                assert await engine.renew(term) == 2
                await asyncio.sleep(0.2)
            assert (await other.look(0)).term == term

    asyncio.run(run())


def test_who_resigns_leaves_the_place_at_once(one: Etcd) -> None:
    async def run() -> None:
        async with opened(one, 2) as [engine, other]:
            term = await leading(engine)
            await engine.resign(term)
            assert (await other.look(0)).term == 0
            assert await engine.renew(term) == 0
            later = await leading(other, OTHER)
            await engine.resign(term)
            assert (await other.look(0)).term == later

    asyncio.run(run())


def test_what_stands_behind_a_gap_is_deleted(one: Etcd) -> None:
    async def run() -> None:
        async with opened(one, 2) as [engine, other]:
            term = await leading(engine)
            for number in (1, 2, 4, 5):
                assert await engine.append(number, b"%d" % number, term)
            seen = await other.look(0)
            assert (seen.entries, seen.more) == ([(1, b"1"), (2, b"2")], False)
            later = await other.campaign(OTHER, term)
            assert not await engine.begin(2, {}, term)
            assert await other.begin(2, CONFIG, later)
            assert await other.append(3, b"three", later)
            seen = await engine.look(0)
            assert (seen.entries, seen.more) == ([(1, b"1"), (2, b"2"), (3, b"three")], False)

    asyncio.run(run())


def test_a_snapshot_takes_the_place_of_the_journal(one: Etcd) -> None:
    async def run() -> None:
        async with opened(one, 2) as [engine, follower]:
            term = await leading(engine)
            for number in range(1, 6):
                assert await engine.append(number, b"%d" % number, term)
            assert await engine.write_snapshot(SNAPSHOT, [b"a" * MAX_VALUE, b"b"], term)
            seen = await follower.look(0)
            assert (seen.snapshot, seen.entries, seen.more) == (SNAPSHOT, [], False)
            assert await follower.read_snapshot(SNAPSHOT) == [b"a" * MAX_VALUE, b"b"]
            assert [number for number, _ in (await follower.look(2)).entries] == [3, 4, 5]
            newer = replace(SNAPSHOT, through=5, pieces=1)
            assert await engine.write_snapshot(newer, [b"c"], term)
            assert await follower.read_snapshot(SNAPSHOT) is None
            assert await follower.read_snapshot(newer) == [b"c"]
            assert (await follower.look(2)).entries == []
            keys = one.ask("/v3/kv/range", prefixed(f"{follower._keys.leader[:-6]}", keys_only=True))["kvs"]
            names = {base64.b64decode(row["key"]).decode().removeprefix(follower._keys.leader[:-6]) for row in keys}
            assert names == {"config", "leader", "snapshot", "snapshot/0000000000000005/0000"}

    asyncio.run(run())


def test_a_snapshot_that_others_may_be_reading_is_not_written_over(one: Etcd) -> None:
    async def run() -> None:
        async with opened(one) as [engine]:
            term = await leading(engine)
            assert await engine.write_snapshot(SNAPSHOT, [b"a", b"b"], term)
            assert await engine.write_snapshot(replace(SNAPSHOT, pieces=1), [b"c"], term)
            assert await engine.read_snapshot(SNAPSHOT) == [b"a", b"b"]

    asyncio.run(run())


def test_a_long_journal_comes_in_pages(one: Etcd) -> None:
    async def run() -> None:
        async with opened(one, 2) as [engine, follower]:
            term = await leading(engine)
            for first in range(1, 2 * MAX_ENTRIES + 1, 4):
                numbers = range(first, first + 4)
                assert all(await asyncio.gather(*(engine.append(number, b"%d" % number, term) for number in numbers)))
            first, second, third = [await follower.look(after) for after in (0, MAX_ENTRIES, 2 * MAX_ENTRIES)]
            assert (first.more, second.more, third.more) == (True, False, False)
            assert [*first.entries, *second.entries] == [(n, b"%d" % n) for n in range(1, 2 * MAX_ENTRIES + 1)]
            assert third.entries == []

    asyncio.run(run())


def test_the_largest_page_is_read(one: Etcd) -> None:
    async def run() -> None:
        async with opened(one) as [engine]:
            term = await leading(engine)
            for number in range(1, MAX_ENTRIES + 1):
                assert await engine.append(number, bytes(MAX_VALUE), term)
            assert len((await engine.look(0)).entries) == MAX_ENTRIES

    asyncio.run(run())


def test_sizes(one: Etcd) -> None:
    async def run() -> None:
        async with opened(one) as [engine]:
            size, quota = await engine.size()
            assert 0 < size < quota == 2 << 30

    asyncio.run(run())


def test_a_value_of_another_program_is_named(one: Etcd) -> None:
    async def run() -> None:
        for name, value in {
            "leader": b"on",
            "config": b"[1]",
            "snapshot": b'{"through": -1}',
            "journal/one": b"",
            "journal/0000000000000001": bytes(MAX_VALUE + 1),
            "replicas/a b": b"{}",
            "replicas/a": b'{"address": "here"}',
        }.items():
            async with opened(one) as [engine]:
                key = engine._keys.leader.removesuffix("leader") + name
                one.ask("/v3/kv/put", {"key": text(key), "value": base64.b64encode(value).decode()})
                with pytest.raises(EngineRefused, match=f"{key!r} in etcd is no tracker's"):
                    await engine.look(0)

    asyncio.run(run())


@contextlib.asynccontextmanager
async def relayed(
    members: Etcd, before_loss: Callable[[], Awaitable[object]], lost: str = "/v3/kv/txn"
) -> AsyncIterator[EtcdEngine]:
    """An engine whose first member passes requests on, and hangs up in the place of the answer to ``lost``."""
    real = HttpServer(*members.members[0].endpoint, HttpLimits())

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(EOFError, OSError):
            while True:
                head = parse_request(await reader.readuntil(b"\r\n\r\n"))
                reply = await real.ask(head.path, await reader.readexactly(head.length))
                if head.path == lost:
                    await before_loss()
                    break
                writer.write(make_response(reply.status, len(reply.body)) + reply.body)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    place = members.place(new_lab())
    engine = EtcdEngine(replace(place, endpoints=(server.sockets[0].getsockname(), *place.endpoints)))
    try:
        yield engine
    finally:
        await engine.close()
        real.close()
        server.close()


async def nothing() -> None:
    pass


def test_a_campaign_whose_answer_is_lost_is_won(one: Etcd) -> None:
    async def run() -> None:
        async with relayed(one, nothing) as engine:
            term = await engine.campaign(ONE, 0)
            assert term
            assert engine._first == 1
            assert (await engine.look(0)).term == term
            assert await engine.renew(term)

    asyncio.run(run())


def test_a_write_whose_answer_is_lost_is_asked_again(one: Etcd) -> None:
    async def run() -> None:
        async with relayed(one, nothing) as engine:
            engine._first = 1
            term = await leading(engine)
            engine._first = 0
            assert await engine.append(1, b"1", term)
            assert engine._first == 1
            assert (await engine.look(0)).entries == [(1, b"1")]

    asyncio.run(run())


def test_a_write_whose_answer_is_lost_is_not_promised_once_another_leads(one: Etcd) -> None:
    async def run() -> None:
        async def depose() -> None:
            other = EtcdEngine(EnginePlace(one.place().endpoints, engine._keys.leader.split("/")[2]))
            assert await leading(other, OTHER, 1)
            await other.close()

        async with relayed(one, depose) as engine:
            engine._first = 1
            term = await leading(engine)
            engine._first = 0
            assert not await engine.append(1, b"1", term)

    asyncio.run(run())


@pytest.mark.parametrize(
    ("status", "answer", "kind", "why"),
    [
        (200, b"<html>", EngineRefused, r"is no etcd \(HTTP status 200, not JSON"),
        (404, b"{}", EngineRefused, r"is no etcd \(HTTP status 404\): give the client addresses"),
        (200, b'{"succeeded": true, "responses": 1}', EngineRefused, r"is no etcd \(responses must be a list, not 1\)"),
        (200, b"{}", EngineRefused, r"is no etcd \(a transaction without conditions has failed\)"),
        (200, b'{"succeeded": true}', EngineRefused, r"is no etcd \(0 responses to 5 operations\)"),
        (404, b'{"code": 5, "message": "etcdserver: requested lease not found"}', EngineLost, "lease not found"),
        (502, b"<html>", EngineLost, "HTTP status 502"),
        (503, b'{"error": "etcdserver: no leader", "code": 14}', EngineLost, "etcdserver: no leader"),
        (0, b"SSH-2.0-OpenSSH_9.2\r\n\r\n", EngineRefused, r"is no etcd \(an answer that begins with .*SSH"),
        (0, b"x" * (1 << 17), EngineRefused, "is no etcd .*head"),
    ],
)
def test_another_program_answers(status: int, answer: bytes, kind: type[Exception], why: str) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write((make_response(status, len(answer)) if status else b"") + answer)
        writer.close()

    async def run() -> None:
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        engine = EtcdEngine(EnginePlace((server.sockets[0].getsockname(),), "lab"))
        with pytest.raises(kind, match=why):
            await engine.look(0)
        server.close()

    asyncio.run(run())


def test_nobody_is_there() -> None:
    async def run() -> None:
        engine = EtcdEngine(EnginePlace((("127.0.0.1", etcd.free_port()),), "lab"))
        with pytest.raises(EngineLost, match=r"no etcd answers at 127\.0\.0\.1:\d+ \(.*refused"):
            await engine.look(0)

    asyncio.run(run())
