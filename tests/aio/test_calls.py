"""Calls of many tasks on one session: order, results, errors, cancellation, and the ends of a session."""

from __future__ import annotations

import asyncio
import gc
import threading

import numpy as np
import pytest

import rpcsys
from rpcsys.errors import DeadlineExceeded, RemoteError, SessionClosed, SessionLost, ValueNotSupported
from tests.aio.looped import become, looped


def threads() -> list[str]:
    return sorted(one.name for one in threading.enumerate() if one.name.startswith("rpcsys-"))


@looped
async def test_200_tasks_get_their_own_results(device):
    async with await rpcsys.aio.connect(*device.address, "key") as session:
        echo = await session.get_function("testing.echo")

        async def ask(number: int) -> None:
            for size in (0, 1, 5000):
                array = np.full(size, number)
                assert np.array_equal(await echo(array), array)
            assert await echo(number) == number

        await asyncio.gather(*map(ask, range(200)))
        assert set(threads()) <= {"rpcsys-aio-send", "rpcsys-aio-read", "rpcsys-futures"}


@looped
async def test_submitted_calls_run_in_their_order(device):
    async with await rpcsys.aio.connect(*device.address, "key") as session:
        add = (await (await session.get_function("test.counter"))(0))["add"]
        futures = [await add.submit(1) for _ in range(500)]
        assert await asyncio.gather(*futures) == [*range(1, 501)]


@looped
async def test_an_array_may_change_after_submit(device):
    async with await rpcsys.aio.connect(*device.address, "key") as session:
        echo = await session.get_function("testing.echo")
        array, futures = np.zeros(4), []
        for number in range(100):
            array[:] = number
            futures.append(await echo.submit(array))
        assert [result[0] for result in await asyncio.gather(*futures)] == [*range(100)]


@looped
async def test_errors_are_those_of_the_call(device):
    async with await rpcsys.aio.connect(*device.address, "key") as session:
        echo = await session.get_function("testing.echo")
        fail = await session.get_function("test.mute")
        with pytest.raises(ValueNotSupported):
            await echo(object())
        with pytest.raises(ValueNotSupported):
            await echo.submit(object())
        with pytest.raises(RemoteError):
            await fail()
        failing = await fail.submit()
        with pytest.raises(RemoteError):
            await failing
        assert await echo(1) == 1


@looped
async def test_a_cancelled_call_that_waits_is_dropped_alone(device):
    async with await rpcsys.aio.connect(*device.address, "key") as session:
        gate, counter = await session.get_function("test.gate"), await session.get_function("test.counter")
        add = (await counter(0))["add"]
        opened = device.workdir / "open"
        running = await gate.submit(str(opened))
        submitted = await add.submit(1)
        waiting = [asyncio.create_task(add(1)) for _ in range(200)]  # more than the window takes
        await asyncio.sleep(0.05)
        submitted.cancel()
        for task in waiting[::2]:
            task.cancel()
        outcomes = asyncio.gather(*waiting, return_exceptions=True)
        await become(lambda: sum(task.done() for task in waiting) == 100, "the cancelled tasks")
        await become(lambda: threads().count("rpcsys-aio") == 0, "the cancellations")
        await session.ping()
        opened.touch()
        await running
        values = await outcomes
        assert [*map(type, values[::2])] == [asyncio.CancelledError] * 100
        assert values[1::2] == [*range(1, 101)]
        assert await add(1) == 101


@looped
async def test_a_cancelled_call_that_runs_ends_the_session(device):
    async with await rpcsys.aio.connect(*device.address, "key") as session:
        sleep, echo = await session.get_function("test.sleep"), await session.get_function("testing.echo")
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(sleep(600), 1.0)
        await become(lambda: session.closed is not None, "the end of the session")
        with pytest.raises(SessionLost):
            await echo(1)
        assert isinstance(session.closed, SessionLost)


@looped
async def test_a_deadline_ends_the_call(device):
    async with await rpcsys.aio.connect(*device.address, "key") as session:
        sleep = await session.get_function("test.sleep")
        with pytest.raises(DeadlineExceeded):
            await sleep(600, deadline_s=0.2)


@looped
async def test_a_killed_device_ends_every_task(device):
    async with await rpcsys.aio.connect(*device.address, "key") as session:
        sleep = await session.get_function("test.sleep")
        tasks = [asyncio.create_task(sleep(600)) for _ in range(200)]
        await asyncio.sleep(0.05)
        device.process.kill()
        outcomes = await asyncio.gather(*tasks, return_exceptions=True)
        assert {*map(type, outcomes)} == {SessionLost}


@looped
async def test_closing_ends_the_calls_under_way_and_refuses_others(device):
    session = await rpcsys.aio.connect(*device.address, "key")
    sleep = await session.get_function("test.sleep")
    tasks = [asyncio.create_task(sleep(600)) for _ in range(100)]
    await asyncio.sleep(0.05)
    await session.close()
    await session.close()
    outcomes = await asyncio.gather(*tasks, return_exceptions=True)
    assert {*map(type, outcomes)} == {SessionClosed}
    with pytest.raises(SessionClosed):
        await sleep(0)
    with pytest.raises(SessionClosed):
        await sleep.submit(0)


@looped
async def test_a_dropped_session_ends_with_its_threads(device):
    session = await rpcsys.aio.connect(*device.address, "key")
    echo = await session.get_function("testing.echo")
    assert await echo(1) == 1
    del session, echo
    gc.collect()
    await become(lambda: not threads(), "the threads")
    await become(lambda: not device.alive(), "the device's process")


@looped
async def test_a_call_that_was_cancelled_before_it_was_sent_never_is(device):
    async with await rpcsys.aio.connect(*device.address, "key") as session:
        add = (await (await session.get_function("test.counter"))(0))["add"]
        hold = threading.Event()
        session._calls._sender.run(hold.wait)
        task = asyncio.create_task(add(1))
        submitting = asyncio.create_task(add.submit(1))
        await asyncio.sleep(0.05)
        task.cancel()
        submitting.cancel()
        outcomes = await asyncio.gather(task, submitting, return_exceptions=True)
        assert [*map(type, outcomes)] == [asyncio.CancelledError] * 2
        hold.set()
        assert await add(1) == 1
