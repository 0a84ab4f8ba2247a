"""The engine on real members of etcd."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import itertools
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import replace

import pytest

from rpcsys.tracker.replicas import etcd as etcd_engine
from rpcsys.tracker.replicas.config import EnginePlace, EngineTls, EngineUser
from rpcsys.tracker.replicas.engine import (
    MAX_ENTRIES,
    MAX_VALUE,
    EngineFull,
    EngineLost,
    EngineRefused,
    Leader,
    Replica,
    Snapshot,
)
from rpcsys.tracker.replicas.etcd import ALL_S, LEADER_LEASE_S, MEMBER_S, EtcdEngine
from rpcsys.tracker.replicas.http_client import HttpServer
from rpcsys.wire.http1 import HttpLimits
from rpcsys.wire.http1_requests import make_response, parse_request
from tests import etcd
from tests.etcd import Etcd

pytestmark = pytest.mark.live

ONE, OTHER = (Leader((f"lab-{name}", 9190), 8080, "1.2", f"id-{name}") for name in "ab")
SNAPSHOT = Snapshot(through=2, pieces=2, epoch=7, arrivals=9, at=1.5)
REPLICA = Replica(("lab-a", 9190), 8080, "1.2", "follower", 3, 1.5)
LATE_S = 15.0  # of a machine that does something else
_labs = (f"lab-{number}" for number in itertools.count())


@pytest.fixture(scope="module")
def one() -> Iterator[Etcd]:
    with etcd.running() as members:
        yield members


@pytest.fixture(scope="module")
def three_members() -> Iterator[Etcd]:
    with etcd.running(3) as members:
        yield members


@pytest.fixture
def three(three_members: Etcd) -> Iterator[Etcd]:
    three_members.heal()
    yield three_members
    three_members.heal()


@pytest.fixture(autouse=True)
def limits(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Changes what the engine waits for. A machine that does something else must not fail a test."""

    def change(lease: int = 600, member: float = 10.0, together: float = 30.0) -> None:
        for name, seconds in (("LEADER_LEASE_S", lease), ("MEMBER_S", member), ("ALL_S", together)):
            monkeypatch.setattr(etcd_engine, name, seconds)

    change()
    return change


@contextlib.asynccontextmanager
async def opened(members: Etcd, count: int = 1, lab: str = "") -> AsyncIterator[list[EtcdEngine]]:
    place = members.place(lab or next(_labs))
    engines = [EtcdEngine(place, members.tls, members.user) for _ in range(count)]
    try:
        yield engines
    finally:
        for engine in engines:
            await engine.close()


async def leading(engine: EtcdEngine, leader: Leader = ONE, last: int = 0) -> int:
    seen = await engine.look(last)
    term = await engine.campaign(leader, seen.term, last)
    assert term > seen.term
    return term


async def eventually(ask: Callable[[], Awaitable[object]], seconds: float = LATE_S) -> None:
    """Ask until the answer is true; an engine that is lost is asked again."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        with contextlib.suppress(EngineLost):
            if await ask():
                return
        await asyncio.sleep(0.05)
    raise AssertionError(f"not within {seconds} s")


async def without_lease(engine: EtcdEngine) -> None:
    """Wait until nobody leads."""

    async def over() -> bool:
        return (await engine.look(0)).term == 0

    await eventually(over)


# ------------------------------------------------------------------ the verbs


def test_a_new_lab_has_nothing(one: Etcd) -> None:
    async def run() -> None:
        async with opened(one) as [engine]:
            seen = await engine.look(0)
            assert (seen.leader, seen.term, seen.entries, seen.snapshot) == (None, 0, [], None)
            assert (seen.config, seen.more, seen.replicas) == (None, False, {})
            assert await engine.renew() == 0

    asyncio.run(run())


def test_a_leader_writes_and_a_follower_reads(one: Etcd) -> None:
    async def run() -> None:
        async with opened(one, 2) as [engine, follower]:
            term = await leading(engine)
            assert await engine.renew() >= 1
            for number, data in enumerate((b"one", bytes(range(256)), b""), 1):
                assert await engine.append(number, data, term)
            assert await engine.configure({"max_session": {"rpi4": 600}}, term)
            await follower.announce("id-b", REPLICA)
            seen = await follower.look(1)
            assert (seen.leader, seen.term) == (ONE, term)
            assert seen.entries == [(2, bytes(range(256))), (3, b"")]
            assert seen.config == {"max_session": {"rpi4": 600}}
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
            assert not await engine.configure({}, term)
            await engine.resign(term)
            seen = await other.look(0)
            assert (seen.leader, seen.term, seen.snapshot, seen.config) == (OTHER, later, None, None)
            assert seen.entries == [(1, b"one"), (2, b"two")]

    asyncio.run(run())


def test_of_two_candidates_one_wins(one: Etcd) -> None:
    async def run() -> None:
        async with opened(one, 6) as engines:
            for _ in range(5):
                over = {(await engine.look(0)).term for engine in engines}
                assert len(over) == 1
                terms = await asyncio.gather(*(engine.campaign(ONE, *over, 0) for engine in engines))
                assert sorted(map(bool, terms)) == [False] * 5 + [True]
                assert (await engines[0].look(0)).term == max(terms)

    asyncio.run(run())


def test_a_lease_runs_out_and_another_wins(one: Etcd, limits: Callable[..., None]) -> None:
    limits(lease=LEADER_LEASE_S)

    async def run() -> None:
        async with opened(one, 2) as [engine, other]:
            term = await leading(engine)
            assert await other.campaign(OTHER, 0, 0) == 0
            await without_lease(other)
            assert await engine.renew() == 0
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
                assert await engine.renew() == 2
                await asyncio.sleep(0.2)
            assert (await other.look(0)).term == term

    asyncio.run(run())


def test_who_resigns_leaves_the_place_at_once(one: Etcd) -> None:
    async def run() -> None:
        async with opened(one, 2) as [engine, other]:
            term = await leading(engine)
            await engine.resign(term)
            assert (await other.look(0)).term == 0
            assert await engine.renew() == 0
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
            later = await other.campaign(OTHER, term, 2)
            assert await other.append(3, b"three", later)
            seen = await engine.look(0)
            assert (seen.entries, seen.more) == ([(1, b"1"), (2, b"2"), (3, b"three")], False)

    asyncio.run(run())


def test_a_candidate_that_is_behind_deletes_nothing(one: Etcd) -> None:
    """Between its look and its campaign another may have led, and have resigned."""

    async def run() -> None:
        async with opened(one, 2) as [engine, other]:
            assert (await other.look(0)).term == 0
            term = await leading(engine)
            assert await engine.append(1, b"1", term)
            await engine.resign(term)
            assert await other.campaign(OTHER, 0, 0) == 0
            assert (await other.look(0)).entries == [(1, b"1")]
            assert await other.campaign(OTHER, 0, 1)

    asyncio.run(run())


def test_a_candidate_that_has_not_seen_the_snapshot_does_not_win(one: Etcd) -> None:
    async def run() -> None:
        async with opened(one, 2) as [engine, other]:
            await other.look(0)
            term = await leading(engine)
            for number in (1, 2, 3):
                assert await engine.append(number, b"", term)
            assert await engine.write_snapshot(SNAPSHOT, [b"a", b"b"], term)
            assert await other.campaign(OTHER, term, 0) == 0  # entry 1 is trimmed, not missing
            await other.look(0)
            assert await other.campaign(OTHER, term, 0) == 0
            assert (await engine.look(2)).entries == [(3, b"")]
            assert await other.campaign(OTHER, term, 3)

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
            keys = one.ask("/v3/kv/range", _range(f"{follower._keys.leader[:-6]}", keys_only=True))["kvs"]
            names = {base64.b64decode(row["key"]).decode().removeprefix(follower._keys.leader[:-6]) for row in keys}
            assert names == {"leader", "snapshot", "snapshot/0000000000000005/0000"}

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
                one.ask("/v3/kv/put", {"key": _text(key), "value": base64.b64encode(value).decode()})
                with pytest.raises(EngineRefused, match=f"{key!r} in etcd is no tracker's"):
                    await engine.look(0)

    asyncio.run(run())


# ------------------------------------------------------------------ members that fail


def test_a_member_that_is_killed_is_left(three: Etcd, limits: Callable[..., None]) -> None:
    limits(LEADER_LEASE_S)

    async def run() -> None:
        async with opened(three) as [engine]:
            term = await leading(engine)
            assert await engine.append(1, b"1", term)
            three.members[0].kill()
            await eventually(lambda: engine.look(0))
            await without_lease(engine)  # etcd may have elected, and its leases with it
            later = await leading(engine, last=1)
            assert await engine.append(2, b"2", later)
            assert (await engine.look(0)).entries == [(1, b"1"), (2, b"2")]

    asyncio.run(run())


def test_a_member_that_is_paused_is_left_in_time(three: Etcd, limits: Callable[..., None]) -> None:
    limits(member=2.0)

    async def run() -> None:
        async with opened(three) as [engine]:
            paused = (three.leader() + 1) % 3
            engine._first = paused
            await leading(engine)
            three.members[paused].pause()
            start = time.monotonic()
            looks = await asyncio.gather(*(engine.look(0) for _ in range(4)))
            assert 2 <= time.monotonic() - start < LATE_S
            assert len(looks) == 4
            assert engine._first == (paused + 1) % 3

    asyncio.run(run())


def test_a_write_that_a_paused_member_makes_late_changes_nothing(three: Etcd, limits: Callable[..., None]) -> None:
    """It was asked again elsewhere, and others have led and written since."""

    limits(member=2.0)

    async def run() -> None:
        async with opened(three, 2) as [engine, other]:
            paused = (three.leader() + 1) % 3
            engine._first = other._first = paused
            term = await leading(engine)
            assert await engine.append(1, b"1", term)
            three.members[paused].pause()
            assert await engine.append(2, b"2", term)
            await other.look(0)
            later = await other.campaign(OTHER, term, 2) or await leading(other, OTHER, 2)
            assert await other.append(3, b"3", later)
            three.members[paused].resume()
            three.wait_healthy()
            assert not await engine.append(3, b"late", term)
            assert (await other.look(0)).entries == [(1, b"1"), (2, b"2"), (3, b"3")]

    asyncio.run(run())


def test_without_a_majority_it_is_lost_and_comes_back(three: Etcd, limits: Callable[..., None]) -> None:
    limits(LEADER_LEASE_S, MEMBER_S, ALL_S)

    async def run() -> None:
        async with opened(three) as [engine]:
            term = await leading(engine)
            assert await engine.append(1, b"1", term)
            for member in three.members[:2]:
                member.kill()
            for _ in range(2):
                start = time.monotonic()
                with pytest.raises(EngineLost, match="see that most of its members run"):
                    await engine.append(2, b"2", term)
                assert time.monotonic() - start < ALL_S + 2
            for member in three.members[:2]:
                member.start()
            await eventually(lambda: engine.look(0), etcd.START_S)
            assert (await engine.look(0)).entries[0] == (1, b"1")

    asyncio.run(run())


def test_its_leader_is_lost_and_a_campaign_whose_answer_is_lost_is_won_once(
    three: Etcd, limits: Callable[..., None]
) -> None:
    limits(member=2.0)

    async def run() -> None:
        async with opened(three, 3) as engines:
            leader = three.leader()
            for engine in engines:
                await engine.look(0)
                engine._first = leader
            three.members[leader].pause()
            terms = await asyncio.gather(*(engine.campaign(ONE, 0, 0) for engine in engines), return_exceptions=True)
            won = [term for term in terms if isinstance(term, int) and term]
            assert len(won) <= 1
            assert all(isinstance(term, (int, EngineLost)) for term in terms)

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
    place = members.place(next(_labs))
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
            term = await engine.campaign(ONE, 0, 0)
            assert term
            assert engine._first == 1
            assert (await engine.look(0)).term == term
            assert await engine.renew()

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


def test_its_quota_is_full() -> None:
    async def run(members: Etcd) -> None:
        async with opened(members) as [engine]:
            term = await leading(engine)

            async def fill() -> None:
                for number in range(1, 200):
                    await engine.append(number, bytes(MAX_VALUE), term)

            with pytest.raises(EngineFull, match=r"takes no more data .*space exceeded.*etcdctl alarm disarm"):
                await fill()
            size, quota = await engine.size()
            assert size > 0.5 * quota
            assert quota == 8 << 20
            assert await engine.look(0)

    with etcd.running(1, "--quota-backend-bytes", str(8 << 20)) as members:
        asyncio.run(run(members))


# ------------------------------------------------------------------ TLS and users


@pytest.fixture(scope="module")
def closed() -> Iterator[Etcd]:
    with etcd.running(tls=True) as members:
        yield members


def test_tls(closed: Etcd) -> None:
    async def run() -> None:
        async with opened(closed) as [engine]:
            term = await leading(engine)
            assert await engine.append(1, bytes(MAX_VALUE), term)
            assert (await engine.look(0)).entries == [(1, bytes(MAX_VALUE))]
            assert (await engine.size())[1] == 2 << 30

    asyncio.run(run())


def test_tls_of_somebody_else(closed: Etcd, tmp_path_factory: pytest.TempPathFactory) -> None:
    strange = etcd.certificates(tmp_path_factory.mktemp("strange"))

    async def run(tls: EngineTls | None) -> None:
        await EtcdEngine(closed.place(), tls).look(0)

    with pytest.raises(EngineRefused, match=r"no TLS with 127\.0\.0\.1:\d+ \(.*certificate.*\): see --replicate-ca"):
        asyncio.run(run(replace(closed.tls, ca=strange.ca)))
    for tls in (replace(strange, ca=closed.tls.ca), EngineTls(closed.tls.ca)):
        with pytest.raises(
            (EngineRefused, EngineLost), match=r"no TLS .*_CERTIFICATE.*--replicate-cert|our certificate"
        ):
            asyncio.run(run(tls))  # etcd may hang up before its alert is read


def test_tls_on_one_side_alone(one: Etcd, closed: Etcd) -> None:
    async def run(members: Etcd, tls: EngineTls | None) -> None:
        await EtcdEngine(members.place(), tls).look(0)

    for members, tls in ((one, closed.tls), (closed, None)):
        with pytest.raises(EngineLost, match="is TLS on one side alone"):
            asyncio.run(run(members, tls))


def test_users() -> None:
    async def run(members: Etcd) -> None:
        async with opened(members) as [engine]:
            term = await leading(engine)
            assert await engine.append(1, b"1", term)
            await engine.announce("id-a", REPLICA)
            engine._token = engine._token[:-1] + "0"  # as after a restart
            assert all(await asyncio.gather(*(engine.append(number, b"", term) for number in range(2, 6))))
            await engine.size()
            await engine.resign(term)
        for user, why in {
            None: "user name is empty",
            EngineUser("rpcsys", "guessed"): "invalid user ID or password",
            EngineUser("nobody", "guessed"): "invalid user ID or password",
        }.items():
            with pytest.raises(EngineRefused, match=f"refuses .*{why}.*RPCSYS_ENGINE_USER"):
                await EtcdEngine(members.place(), None, user).look(0)
        other = EtcdEngine(members.place(), None, members.user)
        other._keys.leader = "/elsewhere/leader"
        with pytest.raises(EngineRefused, match="permission denied"):
            await other.look(0)

    with etcd.running(users=True) as members:
        asyncio.run(run(members))


def test_a_user_where_there_are_none(one: Etcd) -> None:
    async def run() -> None:
        await EtcdEngine(one.place(), None, etcd.USER).look(0)

    with pytest.raises(EngineRefused, match="authentication is not enabled"):
        asyncio.run(run())


def _text(key: str) -> str:
    return base64.b64encode(key.encode()).decode()


def _range(prefix: str, **more: object) -> dict[str, object]:
    return {"key": _text(prefix), "range_end": _text(prefix[:-1] + "0"), **more}
