"""A tracker and its devices for tasks, with a real lab: requests, their places in the queue, cancellation."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest

import rpcsys
from rpcsys.aio import tracker as module
from rpcsys.errors import Cancelled, TrackerError, TrackerUnreachable, UnknownKey, WaitTimeout
from rpcsys.lab import Lab
from rpcsys.link.link import Link
from tests.aio.looped import become, looped
from tests.device import WAIT_S, scripted_server

pytestmark = pytest.mark.live


@pytest.fixture(scope="module")
def lab():
    with Lab({"board": 2}) as lab:
        yield lab


def queue(lab: Lab) -> dict[str, int]:
    with lab.connect() as tracker:
        return tracker.summary()["queue_info"]["board"]


async def free(lab: Lab) -> None:
    """Wait until both boards are free again, and nobody waits."""
    await become(lambda: queue(lab) == {"free": 2, "pending": 0}, "two free boards")


@looped
async def test_a_request_opens_a_session(lab):
    async with await rpcsys.aio.connect_tracker(lab.tracker_address, user="ann") as tracker:
        async with await tracker.request("board", session_timeout=60) as session:
            assert session.lease["key"] == "board"
            assert await (await session.get_function("testing.echo"))(1) == 1
            (lease,) = await tracker.leases()
            assert lease["holder"] == "ann"
            assert await tracker.renew(session, 30) <= 31
            assert await tracker.renew(session.lease["lease"], 20) <= 21
        assert tracker.user == "ann"
        assert repr(tracker).startswith("<async tracker 127.0.0.1:")
    await free(lab)


@looped
async def test_several_devices_are_leased_together(lab):
    async with await rpcsys.aio.connect_tracker(lab.tracker_address) as tracker:
        one, two = await tracker.request("board", count=2)
        async with one, two:
            echoes = [await session.get_function("testing.echo") for session in (one, two)]
            assert await asyncio.gather(*(echo(number) for number, echo in enumerate(echoes))) == [0, 1]
    await free(lab)


@looped
async def test_the_trackers_answers(lab):
    async with await rpcsys.aio.connect_tracker("{}:{}".format(*lab.tracker_address)) as tracker:
        assert "board" in (await tracker.summary())["queue_info"]
        assert "board" in await tracker.text_summary()
        assert await tracker.resolve() == []
        assert (await tracker.why("board"))["queue"] == []
        server = (await tracker.summary())["servers"][0]["name"]
        assert [await tracker.drain(server), await tracker.drain(server)] == [True, False]
        assert [await tracker.enable(server), await tracker.enable(server)] == [True, False]
        with pytest.raises(TrackerError):
            await tracker.end_lease("nonsense")
        with pytest.raises(TrackerError):
            await tracker.history(limit=1)
        with pytest.raises(TrackerError):
            await tracker.usage()
        with pytest.raises(UnknownKey):
            await tracker.serve("nothing")
        with pytest.raises(UnknownKey):
            await tracker.request("nonsense")
    with pytest.raises(TrackerUnreachable):
        await rpcsys.aio.connect_tracker(("127.0.0.1", 1))


@looped
async def test_50_requests_wait_beside_each_other_and_each_is_served(lab):
    places: list[tuple[int, threading.Thread]] = []

    def queued(event: dict) -> None:
        places.append((event["position"], threading.current_thread()))

    async with await rpcsys.aio.connect_tracker(lab.tracker_address) as tracker:

        async def use(number: int) -> int:
            async with await tracker.request("board", on_queued=queued) as session:
                found: int = await (await session.get_function("testing.echo"))(number)
                return found

        assert await asyncio.gather(*map(use, range(50))) == [*range(50)]
    assert max(position for position, _ in places) > 10
    assert {thread for _, thread in places} == {threading.main_thread()}
    await free(lab)


@looped
async def test_a_cancelled_request_leaves_the_queue_at_once(lab):
    async with await rpcsys.aio.connect_tracker(lab.tracker_address) as tracker:
        one, two = await tracker.request("board", count=2)
        async with one, two:
            with pytest.raises(WaitTimeout):
                await tracker.request("board", wait_timeout=0.1)
            waiting = [asyncio.create_task(tracker.request("board")) for _ in range(20)]
            await become(lambda: queue(lab)["pending"] == 20, "20 requests")
            for task in waiting:
                task.cancel()
            outcomes = await asyncio.gather(*waiting, return_exceptions=True)
            assert [*map(type, outcomes)] == [asyncio.CancelledError] * 20
            await become(lambda: queue(lab)["pending"] == 0, "an empty queue")
    await free(lab)


@looped
async def test_a_request_that_is_cancelled_while_it_is_granted_keeps_no_device(lab):
    async with await rpcsys.aio.connect_tracker(lab.tracker_address) as tracker:
        for step in range(20):
            task = asyncio.create_task(tracker.request("board"))
            await asyncio.sleep(step * 0.002)
            task.cancel()
            (outcome,) = await asyncio.gather(task, return_exceptions=True)
            if isinstance(outcome, rpcsys.aio.AsyncSession):
                await outcome.close()
    await free(lab)


@looped
async def test_a_request_is_cancelled_while_it_looks_for_the_tracker(lab, monkeypatch):
    """Its connection may open after the cancellation."""
    async with await rpcsys.aio.connect_tracker(lab.tracker_address) as tracker:
        began, go_on, opened = threading.Event(), threading.Event(), Link.open
        closed: list[Link] = []

        def slow(*args, **more):
            began.set()
            assert go_on.wait(WAIT_S)
            closed.append(opened(*args, **more))
            return closed[0]

        monkeypatch.setattr(module.Link, "open", slow)
        task = asyncio.create_task(tracker.request("board"))
        await become(began.is_set, "the thread")
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        go_on.set()
        await become(lambda: closed and closed[0]._closed, "the end of the link")
    monkeypatch.undo()
    await free(lab)


@looped
async def test_a_tracker_that_says_nothing_keeps_no_task():
    with scripted_server(b"") as address:
        began = time.monotonic()
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(rpcsys.aio.connect_tracker(address, timeout=3), 0.1)
        assert time.monotonic() - began < 3


def test_a_request_that_was_cancelled_before_asks_nothing(lab):
    request = module.SingleRequest(lab.connect())
    request.cancel()
    with pytest.raises(Cancelled):
        request.made("board")
