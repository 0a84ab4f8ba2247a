"""The client for asyncio under load, with real daemons: 200 tasks, cancellation, a killed server, a deployed module."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import threading
import time
from collections.abc import AsyncIterator

import numpy as np
import pytest

import rpcsys
from rpcsys.aio import AsyncSession
from rpcsys.errors import SessionLost
from tests.aio.looped import become, looped
from tests.live import deployed
from tests.live.daemons import Daemons, queue, wait_free, wait_until
from tests.live.ways import SECURE

TASKS = 200
#: A loop that sends, reads or waits itself stalls for as long as the calls of `testing.sleep`, or an upload.
STALL_S = 5.0
SLOTS = ("--slots", "2", "--preload", "none", "--tvm", "off")


@contextlib.asynccontextmanager
async def watched_loop() -> AsyncIterator[None]:
    """Check that the loop never stalls, and that no thread and no descriptor is left."""
    worst = 0.0

    async def tick() -> None:
        nonlocal worst
        while True:
            before = time.monotonic()
            await asyncio.sleep(0.01)
            worst = max(worst, time.monotonic() - before)

    def threads() -> int:
        return sum(one.name.startswith("rpcsys-") for one in threading.enumerate())

    def descriptors() -> int:
        return len(os.listdir("/proc/self/fd"))

    opened = descriptors()
    ticking = asyncio.create_task(tick())
    yield
    ticking.cancel()
    assert worst < STALL_S
    await become(lambda: threads() == 0, "the end of the threads")
    await become(lambda: descriptors() <= opened, "the descriptors to be closed")


@pytest.fixture
def lab(daemons: Daemons):
    """A tracker, and two servers with two slots each."""
    tracker = daemons.tracker()
    servers = [daemons.server("board", *SLOTS, tracker=tracker, offers=offers) for offers in (2, 4)]
    return tracker, servers


async def work(session: AsyncSession, number: int) -> int:
    """Use a session in every way; the number of results, which are all right."""
    chosen = random.Random(number)
    echo = await session.get_function("testing.echo")
    for step in range(5):
        array = np.full(chosen.choice((1, 1000, 50_000)), number * 100 + step)
        assert np.array_equal(await echo(array), array)
        futures = [await echo.submit(array, place) for place in range(5)]
        for place, (back, at) in enumerate(await asyncio.gather(*futures)):
            assert (at, back[-1]) == (place, array[-1])
        kept = await session.array(array)
        assert np.array_equal(await kept.numpy(), array)
    name = await session.upload(bytes([number]) * 200_000, f"{number}.bin")
    assert await session.download(name) == bytes([number]) * 200_000
    return number


@looped
async def test_200_tasks_share_four_sessions(lab):
    tracker, _ = lab
    async with watched_loop(), await rpcsys.aio.connect_tracker(tracker.where) as face:
        async with contextlib.AsyncExitStack() as stack:
            sessions = [await stack.enter_async_context(await face.request("board")) for _ in range(4)]
            tasks = (work(sessions[number % 4], number) for number in range(TASKS))
            assert await asyncio.gather(*tasks) == [*range(TASKS)]
            assert len(await sessions[0].listdir()) == TASKS // 4
        await asyncio.to_thread(wait_free, tracker, "board", 4, 20.0)


@looped
async def test_200_tasks_lease_for_themselves_and_some_give_up(lab):
    tracker, _ = lab

    async def lease(number: int) -> int:
        async with await face.request("board") as session:
            echo = await session.get_function("testing.echo")
            results = await asyncio.gather(*(echo(number) for _ in range(10)))
            assert results == [number] * 10
        return number

    async with watched_loop(), await rpcsys.aio.connect_tracker(tracker.where) as face:
        tasks = [asyncio.create_task(lease(number)) for number in range(TASKS)]
        await become(lambda: sum(task.done() for task in tasks) > 10, "the first tasks")
        impatient = [task for task in tasks[::2] if task.cancel()]
        outcomes = await asyncio.gather(*tasks, return_exceptions=True)
        assert outcomes[1::2] == [*range(1, TASKS, 2)]
        assert impatient
        assert all(isinstance(outcome, (int, asyncio.CancelledError)) for outcome in outcomes)
        await asyncio.to_thread(wait_free, tracker, "board", 4, 20.0)
        assert queue(tracker, "board") == {"free": 4, "pending": 0}


@looped
async def test_cancelled_tasks_leave_nothing_and_the_others_finish(lab):
    tracker, _ = lab
    async with watched_loop(), await rpcsys.aio.connect_tracker(tracker.where) as face:
        async with await face.request("board") as session:
            sleep = await session.get_function("testing.sleep")
            running = await sleep.submit(1.0)  # so that the others wait, and are cancelled without the session's end
            tasks = [asyncio.create_task(work(session, number)) for number in range(TASKS)]
            await asyncio.sleep(0.3)
            for task in tasks[::2]:
                task.cancel()
            outcomes = await asyncio.gather(*tasks, return_exceptions=True)
            await running
            assert {*map(type, outcomes[::2])} == {asyncio.CancelledError}
            assert outcomes[1::2] == [*range(1, TASKS, 2)]
            del outcomes, tasks
            assert await (await session.get_function("testing.echo"))(1) == 1
            assert (await session.memory())["objects"] == 0
        await asyncio.to_thread(wait_free, tracker, "board", 4, 20.0)


@looped
async def test_a_killed_server_ends_all_tasks_on_it_alone(lab):
    tracker, servers = lab
    async with watched_loop(), await rpcsys.aio.connect_tracker(tracker.where) as face:
        async with contextlib.AsyncExitStack() as stack:
            sessions = [await stack.enter_async_context(await face.request("board")) for _ in range(4)]
            sleeps = [await session.get_function("testing.sleep") for session in sessions]
            lost = [session.address == servers[0].address for session in sessions]
            calls = [sleeps[number % 4](600 if lost[number % 4] else 0.01) for number in range(TASKS)]
            waiting = asyncio.gather(*calls, return_exceptions=True)
            await asyncio.sleep(0.5)
            servers[0].kill()
            outcomes = await waiting
            assert sum(lost) == 2
            for number, outcome in enumerate(outcomes):
                assert isinstance(outcome, SessionLost) if lost[number % 4] else outcome is None
            for session, gone in zip(sessions, lost, strict=True):
                assert isinstance(session.closed, SessionLost) is gone


@looped
async def test_a_deployed_module_serves_200_tasks(daemons, tmp_path):
    root = tmp_path / "deploy"
    deployed.put(root, "scale", deployed.library(tmp_path / "scale.so", 2.0))
    flags = ("--deploy", str(root), "--deploy-workers", "2", "--deploy-queue", "500")
    tracker = daemons.tracker()
    server = daemons.server("board", *deployed.WITH_NUMPY, *flags, tracker=tracker)
    with rpcsys.connect_tracker(tracker.address) as known:
        wait_until(lambda: known.resolve() != [], 60, "the module is served")
    async with watched_loop(), await rpcsys.aio.connect_tracker(tracker.where) as face:
        # In a closed lab, nobody is let in by a server's address alone.
        again = face.serve("scale") if SECURE else rpcsys.aio.connect(server.where, serve="scale")
        async with await face.serve("scale") as scale, await again as same:
            assert (scale.name, scale.kind, scale.closed) == ("scale", "rpcsys.python", None)
            ones = np.ones(1000, "f4")
            results = await asyncio.gather(*((scale, same)[number % 2](ones * number) for number in range(TASKS)))
            assert [result[-1] for result in results] == [2 * number for number in range(TASKS)]
            with pytest.raises(asyncio.TimeoutError):  # ends this call alone
                await asyncio.wait_for(scale["nap"](30.0), 0.3)
            assert (await scale(ones))[0] == 2
        assert scale.closed is not None
