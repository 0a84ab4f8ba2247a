"""Functions on a server as modules of a tree: with a real server that is lost and comes back."""

from __future__ import annotations

import os
import signal
import threading

import numpy as np
import pytest

from rpcsys.errors import (
    DeadlineExceeded,
    ModelError,
    NotSupported,
    RemoteError,
    RemoteFunctionError,
    ServerUnreachable,
    SessionLost,
    UsageError,
    ValueNotSupported,
)
from rpcsys.lab import Lab
from rpcsys.module import Module, Stage, graph, params, remote
from tests.live.daemons import START_S, wait_until
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


def session_of(module):
    """The session behind a remote module."""
    return module._server.current.held[0]


def here(function, names=("x",)):
    """A module that runs in this process."""
    return Module("function", {"main": function}, inputs=[{"name": name} for name in names])


def test_a_call_runs_on_the_server(echo):
    x = np.arange(5, dtype="f4")
    assert np.array_equal(echo(x), x)
    assert np.array_equal(echo.run({"x": x})["y"], x)


def test_it_is_saved_as_an_address(echo):
    blob = blob_of(echo)
    with loaded(blob) as again:
        assert again.endpoint == echo.endpoint
        assert again.inputs == echo.inputs
        echo.close()
        assert again(7) == 7
        assert blob_of(again) == blob


def test_nothing_connects_before_the_first_call():
    module = loaded(blob_of(remote("f", address="127.0.0.1:1", key="k")))
    with pytest.raises(ServerUnreachable):
        module(1)


def test_a_lost_session_is_opened_again(echo):
    assert echo(1) == 1
    first = echo._server.current
    first.close()
    assert echo(2) == 2
    assert echo._server.current is not first
    assert (echo.figures().repeated, echo.figures().opened) == (1, 2)


def test_a_session_whose_process_died_is_opened_again(echo, lab):
    assert echo(1) == 1
    os.kill(session_of(echo).info["pid"], signal.SIGKILL)
    assert echo(2) == 2


def test_several_threads_share_one_session(echo):
    results = []
    threads = [threading.Thread(target=lambda n=n: results.append(echo(n))) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(results) == list(range(8))


def test_errors_are_those_of_the_function(lab):
    with remote("testing.fail", key="edge", tracker=lab.tracker_address) as module:
        with pytest.raises(RemoteError, match="RuntimeError: because"):
            module("because")
        with pytest.raises(RemoteError, match="RuntimeError: again"):
            module("again")


def test_an_unknown_function_is_an_error(lab):
    with remote("no.such", key="edge", tracker=lab.tracker_address) as module:
        for _ in range(2):  # the device is released each time
            with pytest.raises(RemoteFunctionError, match=r"no function 'no\.such'"):
                module()


def test_addresses_of_every_form():
    for given, text in [("a:1", "a:1"), (("a", 1), "a:1"), (("::1", 9090), "[::1]:9090")]:
        assert remote("f", address=given).endpoint.address == text
        assert remote("f", tracker=given, key="k").endpoint.tracker == text


def test_a_remote_stage(echo):
    made = graph([Stage("there", echo, ["x"], ["y"])], [{"name": "x"}], [{"name": "y"}])
    assert made(3) == 3


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "has a name"),
        ({"serve": "head"}, "give one of the two"),
        ({"function": "f", "address": "a:1", "deadline_s": -1}, "deadline_s"),
        ({"function": "f", "address": "a:1", "encode": "int8"}, "say which inputs"),
        ({"function": "f", "address": "a:1", "inputs": [{"name": "x"}], "encode": {"y": "int8"}}, "no tensor 'y'"),
        ({"function": "f", "address": "a:1", "inputs": [{"name": "x"}], "encode": {"x": "mp3"}}, "no encoding"),
        (
            {"function": "f", "address": "a:1", "inputs": [{"name": "x", "dtype": "int64"}], "encode": {"x": "int8"}},
            "does not apply to 'x'",
        ),
        ({"function": "f"}, "give one of the two"),
        ({"function": "f", "address": "a:1", "tracker": "b:2", "key": "k"}, "give one of the two"),
        ({"function": "f", "tracker": "b:2"}, "by a key"),
        ({"function": "f", "address": "nonsense"}, "nonsense"),
        ({"function": "f", "address": "a:1", "wait_s": 0}, "wait_s"),
        ({"function": "f", "address": "a:1", "wait_s": float("inf")}, "wait_s"),
    ],
)
def test_invalid_addresses_are_refused(given, message):
    with pytest.raises(UsageError, match=message):
        remote(**given)


# ------------------------------------------------------------------ calls under way, and their end


def test_many_calls_are_under_way_at_once(echo):
    futures = [echo.submit(number) for number in range(40)]
    assert [future.result(30) for future in futures] == list(range(40))
    assert echo.figures().calls == 40
    assert echo.figures().opened == 1


def test_calls_under_way_are_repeated_when_the_session_dies(lab):
    with remote("testing.sleep", key="edge", tracker=lab.tracker_address) as sleep:
        assert sleep(0) is None
        futures = [sleep.submit(0.5) for _ in range(4)]  # they run one after another: a session has one thread
        os.kill(session_of(sleep).info["pid"], signal.SIGKILL)
        assert [future.result(60) for future in futures] == [None] * 4
        assert sleep.figures().opened == 2


def test_a_call_that_is_not_repeatable_is_not_repeated(lab):
    with remote("testing.echo", key="edge", tracker=lab.tracker_address, repeatable=False) as module:
        assert module(1) == 1
        os.kill(session_of(module).info["pid"], signal.SIGKILL)
        with pytest.raises(SessionLost):
            module(2)
        assert module(3) == 3


def test_a_call_that_exceeds_its_deadline_is_an_error(lab):
    with remote("testing.sleep", key="edge", tracker=lab.tracker_address, deadline_s=2.0) as module:
        with pytest.raises(DeadlineExceeded):
            module(30)
        assert module(0) is None


def test_a_closed_module_calls_nothing(echo):
    assert echo(1) == 1
    echo.close()
    for call in (lambda: echo._main(1), lambda: echo.submit(1)):
        with pytest.raises(RemoteFunctionError, match="was closed"):
            call()


def test_close_ends_a_call_under_way(lab):
    module = remote("testing.sleep", key="edge", tracker=lab.tracker_address)
    future = module.submit(30)
    wait_until(lambda: module._server.current is not None, START_S, "it is connected")
    module.close()
    with pytest.raises(RemoteFunctionError, match="was closed"):
        future.result(30)


# ------------------------------------------------------------------ the fallback


def test_without_a_server_the_fallback_runs(caplog):
    with remote("f", address="127.0.0.1:1", key="k", fallback=here(lambda x: x + 1)) as module:
        assert [module(1), module(2)] == [2, 3]
        assert module.figures().here == 2
    (line,) = (record.message for record in caplog.records if "runs on this device" in record.message)
    assert line.startswith("f at 127.0.0.1:1 runs on this device until the server is back: no device server")


def test_the_fallback_runs_after_the_deadline(lab):
    slow = remote(
        "testing.sleep", key="edge", tracker=lab.tracker_address, deadline_s=2.0, fallback=here(lambda s: "here")
    )
    with slow:
        wait_until(lambda: slow(0) is None, START_S, "a server answers")
        assert slow(30) == "here"
        wait_until(lambda: slow(0) is None, START_S, "it answers again")


def test_errors_of_the_function_do_not_start_the_fallback(lab):
    with remote("testing.fail", key="edge", tracker=lab.tracker_address, fallback=here(lambda x: x)) as module:
        wait_until(lambda: refused(module), START_S, "a server answers")


def refused(module) -> bool:
    """Whether the server ran it, and it failed; else the fallback did."""
    try:
        return module("because") != "because"
    except RemoteError as error:
        return "because" in str(error)


def test_it_is_exported_with_its_fallback(lab):
    weights = params({"w": np.arange(3, dtype="f4")})
    given = remote(
        "get_param",
        address="127.0.0.1:1",
        inputs=[{"name": "x"}],
        fallback=graph([Stage("weight", weights, ["x"], ["y"], "get_param")], [{"name": "x"}], [{"name": "y"}]),
    )
    again = loaded(blob_of(given))
    assert again.imports[0].kind == "rpcsys.graph"
    assert again("w").tolist() == [0, 1, 2]


# ------------------------------------------------------------------ encoded


FLOATS = [{"name": "a", "dtype": "float32", "shape": ["n"]}, {"name": "b", "dtype": "int64"}]


def encoded_echo(lab, **encode):
    outputs = [{"name": "c", "dtype": "float32"}, {"name": "d", "dtype": "int64"}]
    return remote("testing.echo", key="edge", tracker=lab.tracker_address, inputs=FLOATS, outputs=outputs, **encode)


def test_tensors_cross_with_their_encodings(lab):
    x, n = np.linspace(-1, 1, 1000, dtype="f4"), np.zeros(1000, "i8")
    with encoded_echo(lab, encode={"a": "int8", "b": "zlib", "c": "float16"}) as module:
        for _ in range(2):
            y, m = module(x, n)
        assert 0 < np.abs(y - x).max() < 0.01
        assert np.array_equal(m, n)
        named = module.run({"b": n, "a": x})
        assert np.array_equal(named["c"], y)
        inputs = module.figures().inputs
        assert (inputs["a"].bytes, inputs["a"].sent, inputs["a"].how) == (3 * 4000, 3 * 1008, "int8")
        assert inputs["b"].bytes == 3 * 8000
        assert inputs["b"].sent < 300
        assert inputs["a"].seconds > 0


def test_one_encoding_for_all_tensors_it_applies_to(lab):
    with encoded_echo(lab, encode="float16") as module:
        assert module.encode == {"a": "float16", "c": "float16"}
        y, m = module(np.full(9, 0.1, "f4"), np.arange(9))
        assert np.array_equal(y, np.full(9, 0.1, "f2").astype("f4"))
        assert np.array_equal(m, np.arange(9))


def test_encodings_are_saved_with_it(lab):
    module = encoded_echo(lab, encode={"a": "int8+zlib", "c": "zstd"})
    again = loaded(blob_of(module))
    assert again.encode == {"a": "int8+zlib", "c": "zstd"}
    assert blob_of(again) == blob_of(module)


def test_values_that_cannot_be_encoded_are_refused_here(lab):
    with encoded_echo(lab, encode={"a": "int8"}) as module:
        with pytest.raises(ValueNotSupported, match="input 'a' has values that are not finite"):
            module(np.full(99, np.nan, "f4"), np.arange(3))
        with pytest.raises(ValueNotSupported, match="input 'a' is a str"):
            module("x", np.arange(3))
        assert module(np.ones(3, "f4"))[0] == 1  # the function itself checks the number of arguments


def test_the_error_names_a_server_without_the_encoding(lab, monkeypatch):
    from rpcsys.client import reconnect

    connect = reconnect.connect_tracker

    def without_zlib(address):
        tracker = connect(address)
        request = tracker.request

        def leased(*args, **options):
            session = request(*args, **options)
            session.info["capabilities"]["encodings"] = ["int8"]
            return session

        tracker.request = leased
        return tracker

    monkeypatch.setattr(reconnect, "connect_tracker", without_zlib)
    with encoded_echo(lab, encode={"a": "int8+zlib"}) as module:
        with pytest.raises(NotSupported, match="cannot decode zlib"):
            module(np.ones(3, "f4"), np.arange(3))


@pytest.mark.parametrize(
    "changes",
    [{"serve": 7}, {"deadline_s": "1"}, {"repeatable": 1}, {"wait_s": -1}, {"encode": 7}, {"encode": {"x": "mp3"}}],
)
def test_invalid_libraries_are_refused(changes, monkeypatch):
    from rpcsys.module import packed

    pack = packed.pack
    monkeypatch.setattr(packed, "pack", lambda about, buffers, at: pack({**about, **changes}, buffers, at))
    blob = blob_of(remote("f", address="a:1"))
    with pytest.raises(ModelError, match="is broken"):
        loaded(blob)
