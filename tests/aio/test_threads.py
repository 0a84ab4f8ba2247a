"""What runs in threads for tasks: results, errors, cancellation, and the order of functions on one thread."""

from __future__ import annotations

import asyncio
import gc
import threading

import pytest

from rpcsys.aio.threads import OrderedThread, in_loop, in_thread, start_thread, tell, threaded
from tests.aio.looped import become, looped
from tests.device import WAIT_S, until


@looped
async def test_the_loop_goes_on_beside_a_thread():
    gate = threading.Event()
    waiting = asyncio.create_task(in_thread(lambda: gate.wait(WAIT_S)))
    await asyncio.sleep(0)
    gate.set()  # the loop is free to do so
    assert await waiting is True


@looped
async def test_errors_are_the_tasks():
    def fail():
        raise KeyError("there")

    with pytest.raises(KeyError, match="there"):
        await in_thread(fail)


@looped
async def test_many_wait_at_once():
    everyone = threading.Barrier(50)
    places = await asyncio.gather(*(in_thread(lambda: everyone.wait(WAIT_S)) for _ in range(50)))
    assert sorted(places) == [*range(50)]


@looped
async def test_a_cancelled_task_stops_its_thread_and_drops_a_late_result():
    began, stop, dropped = threading.Event(), threading.Event(), []

    def job():
        began.set()
        stop.wait(WAIT_S)
        return "late"

    task = asyncio.create_task(in_thread(job, stop=stop.set, drop=dropped.append))
    await become(began.is_set, "the thread")
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await become(lambda: dropped == ["late"], "the drop")


@looped
async def test_a_result_that_comes_with_the_cancellation_is_dropped():
    dropped = []
    gate = threading.Event()
    task = asyncio.create_task(in_thread(gate.wait, drop=dropped.append))
    await asyncio.sleep(0)  # the task waits for the thread
    gate.set()
    until(lambda: not [one for one in threading.enumerate() if one.name == "rpcsys-aio"], "the thread's end")
    asyncio.get_running_loop().call_soon(task.cancel)  # behind the result, and before the task goes on
    with pytest.raises(asyncio.CancelledError):
        await task
    await become(lambda: dropped == [True], "the drop")


def test_a_result_after_the_loops_end_is_dropped():
    gate, dropped = threading.Event(), []

    async def main():
        task = asyncio.create_task(in_thread(lambda: gate.wait(WAIT_S), drop=dropped.append))
        await asyncio.sleep(0)
        task.cancel()

    asyncio.run(main())
    gate.set()
    until(lambda: dropped == [True], "the drop")


@looped
async def test_an_outcome_is_set_once():
    future = asyncio.get_running_loop().create_future()
    assert tell(future, 1)
    assert tell(future, None, KeyError())
    await asyncio.sleep(0.01)
    assert await future == 1


def test_a_closed_loop_takes_no_outcome():
    loop = asyncio.new_event_loop()
    future = loop.create_future()
    loop.close()
    assert not tell(future, 1)


def test_functions_run_in_their_order_and_ends():
    thread, done = OrderedThread("rpcsys-test"), []
    thread.close()  # without a thread
    thread = OrderedThread("rpcsys-test")
    for number in range(100):
        thread.run(lambda number=number: done.append(number))
    thread.close()
    assert done == [*range(100)]
    assert "rpcsys-test" not in [one.name for one in threading.enumerate()]


def test_a_dropped_thread_ends_and_keeps_nothing():
    class Held:
        pass

    thread, held = OrderedThread("rpcsys-test"), Held()
    ended = threading.Event()

    def job(held=held):
        ended.set()

    thread.run(job)
    assert ended.wait(WAIT_S)
    until(lambda: len(gc.get_referrers(job)) <= 1, "the job to be forgotten")
    del thread
    until(lambda: "rpcsys-test" not in [one.name for one in threading.enumerate()], "the thread's end")


@looped
async def test_a_blocking_method_becomes_a_coroutine():
    class Blocking:
        def where(self, number: int, *, more: int = 0) -> tuple[str, int]:
            """Where it runs."""
            return threading.current_thread().name, number + more

    class Face:
        where = threaded(Blocking.where)

        def __init__(self):
            self.blocking = Blocking()

    assert await Face().where(1, more=2) == ("rpcsys-aio", 3)
    assert Face.where.__doc__ == "Where it runs."


@looped
async def test_a_callback_is_called_by_the_loop():
    called = asyncio.get_running_loop().create_future()
    call = in_loop(lambda *args, **more: called.set_result((args, more, threading.current_thread())))
    start_thread(lambda: call(1, a=2))
    assert await called == ((1,), {"a": 2}, threading.main_thread())
