"""Sessions on real servers, beside plain calls: the lab's functions, output, the end of calls, kept objects."""

from __future__ import annotations

import concurrent.futures
import logging
import os

import numpy as np
import psutil
import pytest

import rpcsys
from rpcsys.errors import DeadlineExceeded, RemoteFunctionError, SessionError, SessionLost
from rpcsys.server.sandbox import processes
from tests.live.daemons import STOP_S, Daemons, alive, wait_until

IMPORTS = ("--import", "tests.live.lab_functions", "--import", "tests.live.session_faults")
FLAGS = ("--preload", "none", "--tvm", "off", *IMPORTS)


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    daemons = Daemons(tmp_path_factory.mktemp("daemons"))
    yield daemons.server("board", *FLAGS, "--slots", "2", "--allow-pickle")
    daemons.stop()


@pytest.fixture
def session(server):
    with rpcsys.connect(*server.address, key="board") as session:
        yield session


# ---------------------------------------------------------------- functions


def test_the_labs_functions_are_called(session):
    relay = session.get_function("lab.relay")
    assert relay(1, True) == {1: True}
    assert relay(7, False) == {1: True, 7: False}
    image = np.arange(6, dtype="float32").reshape(2, 3)
    assert np.array_equal(session.get_function("lab.scaled")(image, 2.0), image * 2)
    count = session.get_function("lab.counter")(5)
    assert [count() for _ in range(3)] == [5, 6, 7]
    assert "lab.scaled" in session._builtin("session.functions")
    with pytest.raises(RemoteFunctionError, match=r"no function 'lab\.relais'.*lab\.relay"):
        session.get_function("lab.relais")


def test_each_session_has_its_own_state_of_the_labs_functions(server):
    with rpcsys.connect(*server.address, key="board") as one, rpcsys.connect(*server.address, key="board") as two:
        assert one.get_function("lab.relay")(1, True) == {1: True}
        assert two.get_function("lab.relay")(2, True) == {2: True}


def test_the_users_functions_run(session):
    assert session.run(lambda x: (x.sum(), processes.number()), np.ones(3)) == (3.0, session.info["pid"])


def test_a_server_without_allow_pickle_refuses_the_users_functions(daemons):
    server = daemons.server("k", "--preload", "none", "--tvm", "off")
    with rpcsys.connect(*server.address, key="k") as session:
        with pytest.raises(RemoteFunctionError, match="start it with --allow-pickle"):
            session.run(lambda: 1)


# ---------------------------------------------------------------- output


def test_output_reaches_the_client_its_logging_and_the_servers_log(session, server, caplog):
    caplog.set_level(logging.INFO, "rpcsys.session")
    called = []
    session.log(called.append)
    session.get_function("lab.say")("hello")
    lines = session.log()
    assert [next(lines), next(lines)] == ["hello", "hello, says C"]
    wait_until(lambda: called == ["hello", "hello, says C"], STOP_S, "callbacks")
    assert [record.message for record in caplog.records if record.name == "rpcsys.session"][:2] == called
    wait_until(lambda: "hello, says C" in server.stderr(), STOP_S, "the server's log")


def test_output_between_calls_reaches_a_callback(session):
    called = []
    session.log(called.append)
    session.get_function("lab.chatter")(100)
    wait_until(lambda: len(called) == 100, STOP_S, "100 lines")


def test_a_session_does_not_wait_for_a_client_that_does_not_read(session):
    """It prints more than all buffers hold; the client gets a line about the lost ones."""
    lines = 400_000
    session.get_function("lab.chatter")(lines)
    done = f"/proc/{session.info['pid']}/cwd/done"
    wait_until(lambda: os.path.exists(done), 60, "all printed")
    session.get_function("lab.say")("the end")
    seen = []
    for line in session.log():
        seen.append(line)
        if line == "the end, says C":
            break
    assert any("lines are missing here" in line for line in seen)
    assert len(seen) < lines
    assert psutil.Process(session.info["pid"]).memory_info().rss < 200 << 20


def test_the_output_before_a_crash_is_in_the_servers_log(session, server):
    with pytest.raises(SessionLost):
        session.get_function("lab.die")("terminate called: the accelerator is on fire")
    list(session.log())
    wait_until(lambda: "the accelerator is on fire" in server.stderr(), STOP_S, "the last output")


# ---------------------------------------------------------------- the end of calls


@pytest.mark.parametrize("doing", ["nap", "spin", "hold_gil"])
def test_a_cancelled_running_call_is_stopped(server, doing):
    """Also in native code that holds the GIL: the client closes the connection, and the server kills the process."""
    session = rpcsys.connect(*server.address, key="board")
    pid = session.info["pid"]
    hang, nop = session.get_function("lab.hang"), session.get_function("testing.nop")
    future, after = hang.submit(doing), nop.submit()
    wait_until(lambda: os.path.exists(f"/proc/{pid}/cwd/begun"), STOP_S, "it runs")
    assert future.running()
    assert future.cancel()
    assert future.cancelled()
    with pytest.raises(concurrent.futures.CancelledError):
        future.result()
    with pytest.raises(SessionError):
        after.result(timeout=20)
    assert isinstance(session.closed, SessionLost)
    wait_until(lambda: not alive(pid), STOP_S, "its process is gone")
    with rpcsys.connect(*server.address, key="board") as next_one:
        next_one.ping()


def _submitted(function, **options):
    """Submit a call and wait without ``result``: only the background thread can enforce its deadline."""
    return concurrent.futures.wait([function.submit(**options)]).done.pop().result()


@pytest.mark.parametrize("doing", ["nap", "hold_gil"])
@pytest.mark.parametrize("submitted", [True, False])
def test_a_call_over_its_deadline_is_stopped(server, doing, submitted):
    session = rpcsys.connect(*server.address, key="board")
    pid = session.info["pid"]
    function = session.get_function(f"fault.{doing}")
    call = _submitted if submitted else type(function).__call__
    with pytest.raises(DeadlineExceeded):
        call(function, deadline_s=0.2)
    wait_until(lambda: not alive(pid), STOP_S, "its process is gone")
    with pytest.raises(SessionError):
        session.ping()


def test_a_cancelled_waiting_call_does_not_run(session):
    sleep, relay = session.get_function("testing.sleep"), session.get_function("lab.relay")
    running = sleep.submit(0.5)
    waiting, last = relay.submit(1, True), relay.submit(2, True)
    assert waiting.cancel()
    assert not waiting.running()
    assert running.result() is None
    assert last.result() == {2: True}
    assert not running.cancel()


# ---------------------------------------------------------------- kept objects


def test_memory_lists_the_objects_that_a_session_keeps(session):
    kept = [session.array(np.zeros(size, "float32")) for size in (10, 1000)]
    echo = session.get_function("testing.echo")
    pair = echo(kept[0], np.ones(3), keep=True)
    count = session.get_function("lab.counter")()
    memory = session.memory()
    assert memory["objects"] == 5
    assert memory["bytes"] == 4000 + 40 + 40 + 24
    assert memory["kept"][0] == {"id": 2, "bytes": 4000, "is": "array", "dtype": "float32", "shape": [1000]}
    assert [row["is"] for row in memory["kept"]].count("function") == 1
    assert (pair[1].numpy() == 1).all()
    del kept, pair, count
    assert session.memory() == {"objects": 0, "bytes": 0, "kept": []}


def test_each_measurement_has_the_boards_state(session):
    result = session.get_function("testing.nop").time_evaluator(number=10, repeat=3, cache_flush_bytes=1 << 20)()
    assert len(result.results) == 3
    assert result.board["before"].keys() == result.board["after"].keys()
    assert result.board["after"]["load"] >= 0
