"""`RemoteFunction.map`: order, the bound of calls under way, errors, and whatever ends the iteration."""

from __future__ import annotations

import gc
import itertools
import signal
import threading

import numpy as np
import pytest

import rpcsys
from rpcsys.errors import RemoteError, SessionClosed, SessionLost, UsageError
from tests.device import in_call, until


def test_results_are_in_order(shared):
    echo = shared.get_function("testing.echo")
    assert list(echo.map(range(500))) == list(range(500))
    assert list(echo.map([None] * 500)) == [None] * 500
    assert list(echo.map([])) == []
    assert list(echo.map(["a", 5, None, b"x", [1, "y"], 2.5])) == ["a", 5, None, b"x", [1, "y"], 2.5]


@pytest.mark.parametrize("count", [1, 15, 16, 17, 64, 65, 160])
@pytest.mark.parametrize("ahead", [1, 2, 16, 64, 5000])
def test_any_number_of_calls_ahead(shared, count, ahead):
    assert list(shared.get_function("testing.echo").map(range(count), ahead=ahead)) == list(range(count))


def test_several_iterables_end_with_the_shortest(shared):
    divide = shared.get_function("test.divide")
    assert list(divide.map([2, 9, 8], itertools.count(1))) == [2, 4.5, 8 / 3]


def test_arrays(shared):
    """More bytes than the window and all buffers between the ends hold."""
    echo = shared.get_function("testing.echo")
    arrays = (np.full(3 << 20, number, "u1") for number in range(60))
    for number, array in enumerate(echo.map(arrays, ahead=40)):
        assert array.shape == (3 << 20,)
        assert (array == number).all()


def test_small_arrays_and_scalars_in_turn(shared):
    echo = shared.get_function("testing.echo")
    items = [np.arange(number % 7) if number % 3 else number for number in range(200)]
    for item, result in zip(items, echo.map(items), strict=True):
        assert np.array_equal(item, result)


def test_arguments_that_are_written(shared):
    fill = shared.get_function("test.fill")
    for number, (before, filled) in enumerate(fill.map((rpcsys.empty(5, "uint8") for _ in range(40)), range(40))):
        assert bytes(before) == bytes(5)
        assert filled.tolist() == [number] * 5


def test_no_more_items_are_drawn_than_may_be_under_way(shared):
    drawn = []

    def items():
        for number in itertools.count():
            drawn.append(number)
            yield number

    results = shared.get_function("testing.echo").map(items(), ahead=32)
    assert drawn == []
    for number in range(100):
        assert next(results) == number
        assert len(drawn) <= number + 1 + 32
    results.close()


def test_other_calls_between_the_results(shared):
    echo = shared.get_function("testing.echo")
    for number, result in enumerate(echo.map(range(200))):
        assert result == number
        assert echo("another") == "another"
        if number % 50 == 0:
            assert [future.result() for future in [echo.submit(i) for i in range(40)]] == list(range(40))


def test_two_maps_in_turn(shared):
    echo = shared.get_function("testing.echo")
    assert list(zip(echo.map(range(300)), echo.map(range(300, 600)), strict=True)) == [
        (number, number + 300) for number in range(300)
    ]


def test_many_threads(shared):
    echo = shared.get_function("testing.echo")
    wrong = []

    def work(start):
        if list(echo.map(range(start, start + 500), ahead=100)) != list(range(start, start + 500)):
            wrong.append(start)

    threads = [threading.Thread(target=work, args=(1000 * number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    assert wrong == []


def test_an_error_is_raised_at_its_place(session):
    divide = session.get_function("test.divide")
    results = divide.map([1] * 100, [1] * 70 + [0] + [1] * 29)
    assert [next(results) for _ in range(70)] == [1.0] * 70
    with pytest.raises(RemoteError, match="division by zero"):
        next(results)
    assert list(results) == []
    assert session._channel._receiver.pending == {}
    assert divide(1, 2) == 0.5


@pytest.mark.parametrize("count", [0, 1, 5, 40])
@pytest.mark.parametrize("ahead", [1, 64])
def test_an_error_of_the_iterable_is_raised_at_its_place(session, count, ahead):
    def items():
        yield from range(count)
        raise KeyError("no more")

    results, came = session.get_function("testing.echo").map(items(), ahead=ahead), []
    with pytest.raises(KeyError, match="no more"):
        came.extend(results)
    assert came == list(range(count))
    assert session._channel._receiver.pending == {}
    assert session.get_function("testing.echo")("next") == "next"


@pytest.mark.parametrize("dropped", [lambda results: results.close(), lambda results: None])
def test_a_dropped_iterator_drops_the_calls_that_wait(device, session, dropped):
    add = session.get_function("test.counter")(0)["add"]
    results = session.get_function("test.sleep").map([0.3] * 30)
    assert next(results) is None
    dropped(results)
    del results
    gc.collect()
    assert session._channel._receiver.pending == {}
    assert add(1) == 1  # at once: 28 calls of 0.3 s were dropped


@pytest.mark.parametrize("ahead", [1, 64])
def test_unencodable_arguments(shared, ahead):
    echo = shared.get_function("testing.echo")
    results = echo.map([1, 2, object(), 4], ahead=ahead)
    assert [next(results), next(results)] == [1, 2]
    with pytest.raises(rpcsys.errors.ValueNotSupported):
        next(results)
    assert list(results) == []
    assert echo(3) == 3


@pytest.mark.parametrize("ahead", [0, -1, 1.5, "x", None])
def test_at_least_one_call_ahead(shared, ahead):
    with pytest.raises(UsageError, match=f"ahead={ahead!r}"):
        shared.get_function("testing.echo").map([1], ahead=ahead)


def test_the_end_of_the_device(device, session):
    results = session.get_function("testing.echo").map(itertools.count())
    assert next(results) == 0
    device.process.kill()
    with pytest.raises(SessionLost):
        list(results)


def test_a_closed_session(session):
    results = session.get_function("testing.echo").map(itertools.count())
    assert next(results) == 0
    session.close()
    with pytest.raises(SessionClosed):
        list(results)


def test_ctrl_c_drops_the_calls(device, session):
    stoppable = session.get_function("test.stoppable")

    def interrupt():
        device.wait_for_call()
        until(lambda: in_call(threading.main_thread(), "recv"), "the client to wait")
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        list(stoppable.map([300.0] * 40))
    thread.join()
    assert session._channel._receiver.pending == {}
    assert session.get_function("testing.echo")("next") == "next"


def test_ids_that_begin_again(session):
    echo = session.get_function("testing.echo")
    session._channel._stream.last_id = 0xFFFFFFFF - 40
    assert list(echo.map(range(200))) == list(range(200))
