"""A client and a device, each with the C library or without it: the same calls, results and errors."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import rpcsys
from rpcsys import stream
from rpcsys.errors import DeadlineExceeded, RemoteError
from tests.device import Device

PAIRS = list(itertools.product(["python", "native"], repeat=2))
DTYPES = ["bool", "u1", "i1", "u2", "i2", "u4", "i4", "u8", "i8", "f2", "f4", "f8", "c8", "c16"]
LONG_S = 300.0


@pytest.fixture(scope="module", params=PAIRS, ids=[f"{client}-client-{device}-device" for client, device in PAIRS])
def pair(request: pytest.FixtureRequest) -> Iterator[tuple[Device, Any]]:
    client, device = (side == "native" for side in request.param)
    if (client or device) and stream.speedups is None:
        pytest.skip("the C library is not built or not wanted")
    with pytest.MonkeyPatch.context() as patched, Device(speedups=device, allow_pickle=True, log=True) as started:
        patched.setattr(stream, "SPEEDUPS", client)
        with started.session() as session:
            assert session.run(uses_the_library) is device
            yield started, session


def uses_the_library() -> bool:
    from rpcsys import stream

    return stream.SPEEDUPS


def test_arrays_of_all_types_and_sizes(pair):
    _, session = pair
    echo = session.get_function("testing.echo")
    for dtype, shape in itertools.product(DTYPES, [(), (0,), (1,), (3, 5), (7, 1, 11, 3)]):
        array = (np.random.default_rng(1).random(shape) * 100).astype(dtype)
        for _ in range(3):
            back = echo(array)
            assert back.dtype == array.dtype
            assert back.shape == array.shape
            assert (back == array).all()
    for size in (1, 1000, 16 << 10, (64 << 10) - 25, 1 << 20, (1 << 20) + 1, 3 << 20):
        array = np.random.default_rng(size).integers(0, 256, size).astype("u1")
        kept = [echo(array) for _ in range(4)]
        assert all((each == array).all() for each in kept)
        assert len({each.ctypes.data for each in kept}) == 4
        assert all(each.ctypes.data % 64 == 0 for each in kept)
    columns = np.arange(600).reshape(20, 30).T
    assert (echo(columns) == columns).all()


def test_values_of_all_kinds(pair):
    _, session = pair
    echo = session.get_function("testing.echo")
    values = [None, True, 5, -(1 << 70), 2.5, float("inf"), 2j, "text", b"bytes", [1, [2]], (1, 2), {"a": 1, 2: None}]
    for value in [*values, values]:
        assert echo(value) == value
        assert echo(value) == value
    assert session.get_function("testing.nop")() is None
    before, filled = session.get_function("test.fill")(rpcsys.empty(4, "uint8"), 7)
    assert (bytes(before), filled.tolist()) == (bytes(4), [7] * 4)


def test_many_calls_from_many_threads(pair):
    _, session = pair
    echo = session.get_function("testing.echo")
    wrong = []

    def work(start: int) -> None:
        results = [echo(number) for number in range(start, start + 100)]
        results += [future.result() for future in [echo.submit(number) for number in range(start, start + 100)]]
        results += echo.map(range(start, start + 100))
        if results != 3 * list(range(start, start + 100)):
            wrong.append(start)

    threads = [threading.Thread(target=work, args=(1000 * number,)) for number in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    assert not wrong


def test_errors(pair):
    _, session = pair
    divide, nop = session.get_function("test.divide"), session.get_function("testing.nop")
    for _ in range(3):
        with pytest.raises(RemoteError, match="division by zero") as caught:
            divide(1, 0)
        assert caught.value.type == "ZeroDivisionError"
        assert nop() is None
    futures = [divide.submit(1, number) for number in (1, 0, 2)]
    assert [future.exception() is None for future in futures] == [True, False, True]
    with pytest.raises(RemoteError, match="cannot be made"):
        session.get_function("test.mute")()
    with pytest.raises(RemoteError, match="maximum recursion depth"):
        session.get_function("test.endless")()
    assert nop() is None


def test_calls_that_wait_are_cancelled(pair):
    device, session = pair
    sleep = session.get_function("test.sleep")
    (device.workdir / "running").unlink(missing_ok=True)
    running, *waiting = [sleep.submit(0.3)] + [sleep.submit(LONG_S) for _ in range(20)]
    device.wait_for_call()
    assert all(future.cancel() for future in waiting)
    assert running.result() is None
    session.ping()
    assert session.get_function("testing.echo")("next") == "next"


def test_calls_that_run_are_stopped(pair):
    device, session = pair
    stoppable = session.get_function("test.stoppable")
    (device.workdir / "running").unlink(missing_ok=True)
    future = stoppable.submit(LONG_S)
    device.wait_for_call()
    session.ping()
    assert future.cancel()
    with pytest.raises(DeadlineExceeded, match="it was stopped, and the session goes on"):
        stoppable(LONG_S, deadline_s=0.1)
    assert session.get_function("testing.echo")("next") == "next"


def test_files_and_output(pair):
    _, session = pair
    lines = session.log()
    data = np.random.default_rng(2).bytes(3 << 20)
    for _ in range(2):
        session.upload(data, "file")
        assert session.download("file") == data
    session.run(print, "one", "two")
    assert "one two" in itertools.islice(lines, 20)


def test_arguments_that_the_device_keeps_stay_right(pair):
    _, session = pair
    keep, echo = session.get_function("test.keep"), session.get_function("testing.echo")
    for number in range(12):
        assert keep(np.full(30_000, number, "u1")) is None
        echo(np.full(30_000, 255, "u1"))
    kept = session.get_function("test.kept_arrays")()
    assert kept == [bytes([number]) * 30_000 for number in range(12)]


def test_a_function_that_forks(pair):
    _, session = pair
    fork, echo = session.get_function("test.fork"), session.get_function("testing.echo")
    for number in range(5):
        assert fork() == 7
        assert echo(number) == number
    assert [future.result() for future in [fork.submit() for _ in range(5)]] == [7] * 5


def test_results_that_are_kept_or_dropped_stay_right(pair):
    _, session = pair
    echo = session.get_function("testing.echo")
    kept = []
    for number in range(60):
        back = echo(np.full(50_000, number, "u1"))
        if number % 3 == 0:
            kept.append((number, back))
        elif number % 3 == 1:
            kept.append((number, back[7:].reshape(-1, 1)))
    assert all((array == number).all() for number, array in kept)
