"""Functions on a server as modules of a tree: a real server, lost and found again."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from rpcsys.errors import RemoteError, RemoteFunctionError, ServerUnreachable, UsageError
from rpcsys.lab import Lab
from rpcsys.module import Stage, graph, remote
from tests.module.trees import blob_of, loaded

pytestmark = pytest.mark.live


@pytest.fixture(scope="module")
def lab():
    with Lab({"edge": 1}) as running:
        yield running


@pytest.fixture
def echo(lab):
    described = [{"name": "x", "dtype": "float32", "shape": ["n"]}]
    with remote(
        "testing.echo", key="edge", tracker=lab.tracker_address, inputs=described, outputs=[{"name": "y"}]
    ) as module:
        yield module


def test_a_call_is_a_call_there(echo):
    x = np.arange(5, dtype="f4")
    assert np.array_equal(echo(x), x)
    assert np.array_equal(echo.run({"x": x})["y"], x)


def test_it_travels_as_where_it_is(echo):
    blob = blob_of(echo)
    with loaded(blob) as again:
        assert again.place == echo.place
        assert again.inputs == echo.inputs
        echo.close()
        assert again(7) == 7
        assert blob_of(again) == blob


def test_nothing_connects_before_the_first_call():
    module = loaded(blob_of(remote("f", address="127.0.0.1:1", key="k")))
    with pytest.raises(ServerUnreachable):
        module(1)


def test_a_lost_session_is_opened_anew(echo):
    assert echo(1) == 1
    first = echo._session
    first.close()
    assert echo(2) == 2
    assert echo._session is not first


def test_a_session_whose_process_died_is_opened_anew(echo, lab):
    import os
    import signal

    assert echo(1) == 1
    os.kill(echo._session.info["pid"], signal.SIGKILL)
    assert echo(2) == 2


def test_several_threads_share_one_session(echo):
    results = []
    threads = [threading.Thread(target=lambda n=n: results.append(echo(n))) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(results) == list(range(8))


def test_errors_are_the_functions_own(lab):
    with remote("testing.fail", key="edge", tracker=lab.tracker_address) as module:
        with pytest.raises(RemoteError, match="RuntimeError: because"):
            module("because")
        with pytest.raises(RemoteError, match="RuntimeError: again"):
            module("again")


def test_a_function_that_is_not_there(lab):
    with remote("no.such", key="edge", tracker=lab.tracker_address) as module:
        for _ in range(2):  # the device is given back each time
            with pytest.raises(RemoteFunctionError, match=r"no function 'no\.such'"):
                module()


def test_addresses_of_every_form():
    for given, text in [("a:1", "a:1"), (("a", 1), "a:1"), (("::1", 9090), "[::1]:9090")]:
        assert remote("f", address=given).place.address == text
        assert remote("f", tracker=given, key="k").place.tracker == text


def test_a_remote_stage(echo):
    made = graph([Stage("there", echo, ["x"], ["y"])], [{"name": "x"}], [{"name": "y"}])
    assert made(3) == 3


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"function": ""}, "has a name"),
        ({"function": "f"}, "give one of the two"),
        ({"function": "f", "address": "a:1", "tracker": "b:2", "key": "k"}, "give one of the two"),
        ({"function": "f", "tracker": "b:2"}, "by a key"),
        ({"function": "f", "address": "nonsense"}, "nonsense"),
        ({"function": "f", "address": "a:1", "wait_s": 0}, "wait_s"),
        ({"function": "f", "address": "a:1", "wait_s": float("inf")}, "wait_s"),
    ],
)
def test_places_that_cannot_be_meant(given, says):
    with pytest.raises(UsageError, match=says):
        remote(**given)
