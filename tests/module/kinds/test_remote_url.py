"""Models on inference servers as modules of a tree: lost, busy, of several servers, with a fallback, exported."""

from __future__ import annotations

import logging
import threading
import time

import numpy as np
import pytest

from rpcsys.errors import Busy, ModelError, RemoteArgumentError, SessionLost, UsageError
from rpcsys.module import Module, Stage, graph, packed, remote
from tests.client.inference.scripted import WAIT_S, ScriptedServer, doubled, reply
from tests.live.daemons import wait_until
from tests.module.trees import blob_of, loaded

X = np.arange(8, dtype="f4").reshape(2, 4)
INPUTS = [{"name": "x", "dtype": "float32", "shape": ["n", 4]}]
OUTPUTS = [{"name": "y", "dtype": "float32", "shape": ["n", 4]}]
NAMED = {"inputs": INPUTS, "outputs": OUTPUTS}
URL = "http://h:8000/v2/models/m"


@pytest.fixture
def server():
    with ScriptedServer() as made:
        yield made


def here() -> Module:
    return Module("function", {"main": lambda x: -x}, **NAMED)


def test_it_is_run_by_names_and_saved_as_its_url(server) -> None:
    with remote(server.url, **NAMED, deadline_s=20) as module:
        assert np.array_equal(module.run({"x": X})["y"], 2 * X)
        again = loaded(blob_of(module))
    assert again.endpoint == module.endpoint
    assert str(again.endpoint) == server.url
    assert np.array_equal(again(X), 2 * X)
    again.close()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"function": "http://h:1/m"}, "no URL of a model"),
        ({"function": "grpc://h/m"}, "no address"),
        ({"function": f"{URL} ftp://h"}, "no URL of a model"),
        ({"function": URL, "serve": "m"}, "a URL says all"),
        ({"function": URL, "key": "m"}, "a URL says all"),
        ({"function": URL, "address": "h:1"}, "a URL says all"),
        ({"function": URL, "wait_s": 0}, "wait_s"),
        ({"function": URL, "deadline_s": -1}, "deadline_s"),
        ({"function": URL, **NAMED, "encode": "zlib"}, "float16 and int8 alone"),
        ({"function": URL, **NAMED, "encode": {"x": "int8+zstd"}}, "float16 and int8 alone"),
    ],
)
def test_what_cannot_be_meant_is_refused(given, message) -> None:
    with pytest.raises(UsageError, match=message):
        remote(**given)


@pytest.mark.parametrize("changes", [{"url": "http://h"}, {"url": 7}, {"serve": "m"}, {"encode": {"x": "zlib"}}])
def test_invalid_libraries_are_refused(changes, monkeypatch) -> None:
    pack = packed.pack
    monkeypatch.setattr(packed, "pack", lambda about, buffers, at: pack({**about, **changes}, buffers, at))
    with pytest.raises(ModelError, match="is broken"):
        loaded(blob_of(remote(URL, **NAMED)))


def test_a_lost_call_is_made_again(server) -> None:
    losses = iter([None])
    server.infer = lambda asked: next(losses, doubled(asked))
    with remote(server.url, **NAMED) as module:
        assert np.array_equal(module(X), 2 * X)
        assert (module.figures().repeated, module.figures().opened) == (1, 2)
    losses = iter([None])
    with remote(server.url, **NAMED, repeatable=False) as module, pytest.raises(SessionLost):
        module(X)


def test_a_busy_server_is_asked_again(server) -> None:
    answers = iter([reply({"error": "full"}, 503)] * 3)
    server.infer = lambda asked: next(answers, None) or doubled(asked)
    with remote(server.url, **NAMED) as module:
        assert np.array_equal(module(X), 2 * X)
        assert (module.figures().refused, module.figures().opened) == (3, 1)
    server.infer = lambda asked: reply({"error": "full"}, 503)
    with remote(server.url, **NAMED, wait_s=0.2) as module, pytest.raises(Busy, match="full"):
        module(X)


def test_another_server_is_called_while_one_is_away_or_busy(server) -> None:
    with ScriptedServer() as other:
        with remote(f"{server.url} {other.url}", **NAMED) as module:
            module(X)
            assert other.calls() == []
            server.infer = lambda asked: reply({"error": "full"}, 503)
            assert np.array_equal(module(X), 2 * X)
            assert len(other.calls()) == 1
            other.close()
            server.infer = doubled
            assert np.array_equal(module(X), 2 * X)


def test_a_call_waits_for_a_server_that_was_there(server, caplog) -> None:
    with remote(server.url, **NAMED) as module, caplog.at_level(logging.WARNING):
        module(X)
        server.server = lambda asked: reply({"error": "starting"}, 503)
        server.infer = lambda asked: None
        future = module.submit(X)
        wait_until(
            lambda: any("waits for the server" in each.getMessage() for each in caplog.records), WAIT_S, "it waits"
        )
        server.server, server.infer = {}, doubled
        assert np.array_equal(future.result(WAIT_S), 2 * X)


def test_the_fallback_runs_while_the_server_is_away(caplog) -> None:
    with ScriptedServer() as server:
        with remote(server.url, **NAMED, fallback=here()) as module, caplog.at_level(logging.WARNING):
            assert np.array_equal(module(X), 2 * X)
            server.server = lambda asked: None
            server.infer = lambda asked: None
            for _ in range(3):
                assert np.array_equal(module(X), -X)
            server.server, server.infer = {}, doubled
            wait_until(lambda: np.array_equal(module(X), 2 * X), WAIT_S, "it goes back to the server")
    said = [record.getMessage() for record in caplog.records]
    assert [line for line in said if line.endswith("is back")] == [f"{server.url} is back"]
    assert sum("runs on this device until the server is back" in line for line in said) == 1


def test_the_fallback_runs_after_a_deadline_and_not_after_an_error(server) -> None:
    over = threading.Event()
    server.infer = lambda asked: (over.wait(WAIT_S), None)[1]
    with remote(server.url, **NAMED, fallback=here(), deadline_s=0.2) as module:
        began = time.monotonic()
        assert np.array_equal(module(X), -X)
        assert time.monotonic() - began < WAIT_S / 2
        over.set()
        server.infer = lambda asked: reply({"error": "the shape"}, 400)
        with pytest.raises(RemoteArgumentError, match="the shape"):
            module(X)


def test_a_stage_of_a_graph(server) -> None:
    stage = Stage("there", remote(server.url, **NAMED), ["x"], ["y"])
    with graph([stage, Stage("here", here(), ["y"], ["z"])], INPUTS, [{"name": "z"}]) as whole:
        assert np.array_equal(whole(X), -2 * X)
        with loaded(blob_of(remote(server.url, **NAMED, fallback=remote(server.url, **NAMED)))) as again:
            assert np.array_equal(again(X), 2 * X)


def test_encoded_inputs_are_counted_and_go_even_where_nothing_is_saved(server) -> None:
    seen = []
    server.infer = lambda asked: (seen.append(asked.value["inputs"]), reply({"error": "no"}, 400))[1]
    with remote(server.url, **NAMED, encode={"x": "int8"}) as module:
        for x in (X, X[:0], X[:1, :1]):
            with pytest.raises(RemoteArgumentError):
                module(x)
        assert module.figures().inputs["x"].bytes == X.nbytes + 4
    assert [[(each["name"], each["datatype"]) for each in inputs] for inputs in seen] == [
        [("x", "INT8"), ("x.scale", "FP64")]
    ] * 3
