"""Engines on members of etcd that a module's tests share."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import itertools
import time
from collections.abc import AsyncIterator, Awaitable, Callable

from rpcsys.tracker.replicas.engine import EngineLost, Leader, ReplicaStatus, Snapshot
from rpcsys.tracker.replicas.etcd import EtcdEngine
from tests.etcd import Etcd

ONE, OTHER = (Leader((f"lab-{name}", 9190), 8080, "1.2", f"id-{name}") for name in "ab")
SNAPSHOT = Snapshot(through=2, pieces=2, epoch=7, arrivals=9, at=1.5)
REPLICA = ReplicaStatus(("lab-a", 9190), 8080, "1.2", "follower", 3, 1.5)
CONFIG = {"max_session": {"rpi4": 600}, "journal": "id-a-1"}
LATE_S = 15.0  # of a machine that does something else
_numbers = itertools.count()


def new_lab() -> str:
    return f"lab-{next(_numbers)}"


@contextlib.asynccontextmanager
async def opened(members: Etcd, count: int = 1, lab: str = "") -> AsyncIterator[list[EtcdEngine]]:
    place = members.place(lab or new_lab())
    engines = [EtcdEngine(place, members.tls, members.user) for _ in range(count)]
    try:
        yield engines
    finally:
        for engine in engines:
            await engine.close()


async def leading(engine: EtcdEngine, leader: Leader = ONE, last: int = 0) -> int:
    seen = await engine.look(last)
    term = await engine.campaign(leader, seen.term)
    assert term > seen.term
    assert await engine.begin(last, CONFIG, term)
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


def text(key: str) -> str:
    return base64.b64encode(key.encode()).decode()


def prefixed(prefix: str, **more: object) -> dict[str, object]:
    return {"key": text(prefix), "range_end": text(prefix[:-1] + "0"), **more}
