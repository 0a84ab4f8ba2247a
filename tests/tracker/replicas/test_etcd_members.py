"""The engine on members of etcd that fail, are full, or know who asks."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from rpcsys.tracker.replicas.config import EnginePlace, EngineTls, EngineUser
from rpcsys.tracker.replicas.engine import MAX_VALUE, EngineFull, EngineLost, EngineRefused
from rpcsys.tracker.replicas.etcd import ALL_S, LEADER_LEASE_S, MEMBER_S, EtcdEngine
from tests import etcd
from tests.etcd import Etcd
from tests.tracker.replicas.engines import LATE_S, ONE, OTHER, REPLICA, eventually, leading, opened, without_lease

pytestmark = [pytest.mark.live, pytest.mark.usefixtures("limits")]


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
            later = await other.campaign(OTHER, term) or await leading(other, OTHER, 2)
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


def test_of_candidates_that_lose_their_member_one_wins(three: Etcd, limits: Callable[..., None]) -> None:
    limits(member=2.0)

    async def run() -> None:
        async with opened(three, 3) as engines:
            leader = three.leader()
            for engine in engines:
                await engine.look(0)
                engine._first = leader
            three.members[leader].pause()
            terms = await asyncio.gather(*(engine.campaign(ONE, 0) for engine in engines), return_exceptions=True)
            won = [term for term in terms if isinstance(term, int) and term]
            assert len(won) <= 1
            assert all(isinstance(term, (int, EngineLost)) for term in terms)

    asyncio.run(run())


def test_members_of_two_etcds_are_refused(one: Etcd) -> None:
    """Each of the two would have a leader."""

    async def run(other: Etcd) -> None:
        place = EnginePlace((*one.place().endpoints, *other.place().endpoints), "lab")
        engine = EtcdEngine(place)
        await engine.look(0)
        engine._first = 1
        with pytest.raises(EngineRefused, match="is another one than that of the other members"):
            await engine.look(0)
        await engine.close()

    with etcd.running() as other:
        asyncio.run(run(other))


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
        with pytest.raises((EngineRefused, EngineLost), match=r"no TLS .*_ALERT_.*--replicate-cert|our certificate"):
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
