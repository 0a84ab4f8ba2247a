"""What clients of one deployed module can and cannot do to each other: ends of calls, limits, strangers, garbage."""

from __future__ import annotations

import concurrent.futures
import contextlib
import resource
import socket
import struct
import time

import numpy as np
import pytest

import rpcsys
from rpcsys.client.deploying import Deployment
from rpcsys.errors import Busy, DeadlineExceeded, RemoteArgumentError, RemoteFunctionError, SessionLost, UsageError
from rpcsys.stream import Ended, Stream
from rpcsys.wire import frames, handshake
from tests.live import deployed
from tests.live.daemons import START_S, Daemons, alive, wait_until

X = np.ones(4, "float32")
WORKERS, QUEUE = 2, 4


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    folder = tmp_path_factory.mktemp("shared")
    root = folder / "deploy"
    deployed.put(root, "scale", deployed.library(folder / "scale.so", 2.0))
    deployed.put(root, "loop", deployed.endless_model(folder / "loop.onnx"))
    daemons = Daemons(folder)
    flags = ("--deploy", str(root), "--deploy-workers", str(WORKERS), "--deploy-queue", str(QUEUE))
    yield daemons.server("board", *deployed.WITH_NUMPY, *flags)
    daemons.stop()


@pytest.fixture
def connect(server):
    with contextlib.ExitStack() as stack:
        yield lambda name="scale": stack.enter_context(rpcsys.connect(*server.address, serve=name))


def load(server) -> tuple[int, int]:
    """Calls that run and calls that wait for ``scale``."""
    with Deployment(server.address) as deployment:
        row = next(row for row in deployment.list() if row["name"] == "scale")
    return row["running"], row["waiting"]


# ---------------------------------------------------------------- the end of one call


def test_cancelling_a_call_ends_that_call_only(server, connect):
    client, other = connect(), connect()
    neighbour = other["nap"].submit(6.0)
    nap = client["nap"].submit(4.5)
    wait_until(lambda: load(server)[0] == 2, START_S, "both run")
    assert nap.cancel()
    wait_until(lambda: load(server)[0] == 1, START_S, "one of them is over")
    assert np.array_equal(client(X), X * 2)  # the connection goes on
    assert neighbour.result(START_S) == 2.0


def test_a_call_that_computes_in_onnxruntime_is_really_stopped(connect):
    loop = connect("loop")
    endless = [loop.submit(np.int64(1 << 62)) for _ in range(WORKERS)]
    time.sleep(0.2)
    for call in endless:
        call.cancel()
    assert int(loop(np.int64(10), deadline_s=START_S)) == 10  # its worker is free again, long before the loop would end


def test_a_deadline_ends_that_call_only(connect):
    client = connect()
    neighbour = client["nap"].submit(3.0)
    with pytest.raises(DeadlineExceeded):
        client["nap"](4.5, deadline_s=0.3)
    assert np.array_equal(client(X), X * 2)
    assert neighbour.result(START_S) == 2.0


def test_a_host_whose_workers_do_not_let_go_is_succeeded(server, tmp_path):
    daemons = Daemons(tmp_path)
    try:
        root = tmp_path / "deploy"
        deployed.put(root, "scale", deployed.library(tmp_path / "scale.so", 2.0))
        edge = daemons.server("edge", *deployed.WITH_NUMPY, "--deploy", str(root), "--deploy-workers", "1")
        with rpcsys.connect(*edge.address, serve="scale") as client:
            pid = client["pid"]()
            hung = client["nap"].submit(3600.0)
            wait_until(lambda: load(edge) == (1, 0), START_S, "the worker has it")
            hung.cancel()
            assert client["nap"](0.0) == 2.0  # another thread is there in its place
            wait_until(lambda: client["pid"]() != pid, START_S, "the same connection is the successor's")
            assert np.array_equal(client(X), X * 2)
        wait_until(lambda: not alive(pid), START_S, "the stuck host is gone")
        assert "its host is being replaced" in edge.stderr()
    finally:
        daemons.stop()


def test_a_function_that_was_quick_until_now_holds_nobody_up(connect):
    client, other = connect(), connect()
    for _ in range(5):
        client["nap"](0.0)
    long = client["nap"].submit(4.5)
    client._session._channel.flush()
    for _ in range(5):
        assert np.array_equal(other(X, deadline_s=START_S), X * 2)
    other._session._channel.ping(START_S)
    assert not long.done()
    assert long.cancel()
    assert client["nap"](0.0) == 2.0


# ---------------------------------------------------------------- limits


def test_too_many_calls_are_told_so_and_may_try_again(connect):
    clients = [connect() for _ in range(3)]
    naps = [client["nap"].submit(3.0) for client in clients for _ in range(4)]
    outcomes = [_outcome(nap) for nap in naps]
    assert outcomes.count("done") == WORKERS + QUEUE
    busy = [outcome for outcome in outcomes if outcome != "done"]
    assert len(busy) == 12 - WORKERS - QUEUE
    assert all(isinstance(error, Busy) and error.retryable for error in busy)
    assert "4 calls wait for the module 'scale' already" in str(busy[0])
    assert clients[0]["nap"](0.0) == 2.0


def _outcome(nap):
    try:
        nap.result(START_S)
        return "done"
    except Busy as error:
        return error


def test_one_client_with_many_calls_does_not_keep_others_waiting(connect):
    greedy, modest = connect(), connect()
    naps = [greedy["nap"].submit(1.5) for _ in range(WORKERS + QUEUE - 1)]
    assert modest["nap"](0.0) == 2.0
    assert not all(nap.done() for nap in naps)
    concurrent.futures.wait(naps, START_S)


def test_a_vanished_clients_calls_are_dropped(server, connect):
    witness = connect()
    before = witness["seen"]()["calls"]
    client = rpcsys.connect(*server.address, serve="scale")
    for _ in range(WORKERS + QUEUE):
        client["nap"].submit(4.5)
    client._session._channel.flush()
    wait_until(lambda: load(server) == (WORKERS, QUEUE), START_S, "they run, and wait")
    client._session._channel._stream.socket.shutdown(socket.SHUT_RDWR)
    wait_until(lambda: load(server) == (0, 0), START_S, "nobody has calls any more")
    wait_until(lambda: witness["seen"]()["running"] == 0, START_S, "those that ran are done")
    assert witness["seen"]()["calls"] - before == WORKERS  # none of the others has begun


# ---------------------------------------------------------------- what a shared connection may not


def test_it_can_do_nothing_but_call_the_module(connect):
    client = connect()
    session = client._session
    refused = (
        lambda: session.get_function("testing.echo"),
        session.listdir,
        lambda: session.load_module("scale.so"),
        lambda: session.array(X),
        session.memory,
        lambda: session.download("../scale.so"),
        lambda: session._builtin("session.functions"),
        lambda: session._builtin("deploy.list"),
    )
    for attempt in refused:
        with pytest.raises(RemoteFunctionError, match="calls the functions of its deployed module, and nothing else"):
            attempt()
    with pytest.raises(RemoteArgumentError, match="keeps nothing between calls"):
        client(X, keep=True)
    with pytest.raises(RemoteArgumentError, match="keeps nothing between calls"):
        client["keeps"]()
    with pytest.raises(UsageError, match="is not timed on its server"):
        client.time_evaluator()
    assert np.array_equal(client(X), X * 2)


@pytest.mark.parametrize(
    ("kind", "fields"),
    [(frames.CHUNK, {}), (frames.FREE, {"ids": [0]}), (frames.LOG, {}), (frames.HELLO, {}), (frames.RESULT, {"r": 1})],
)
def test_frames_that_are_not_for_it_end_the_connection_in_words(server, connect, kind, fields):
    witness = connect()
    with knock(server) as stream:
        head, _ = frames.encode_head(fields)
        stream.send(frames.pack(kind, 1, head, (b"piece",) if kind == frames.CHUNK else ()))
        assert "takes CALL, CANCEL and PING" in last_words(stream)
    assert np.array_equal(witness(X), X * 2)


@pytest.mark.parametrize(
    "garbage",
    [
        b"GET / HTTP/1.1\r\nHost: edge\r\n\r\n" * 4,
        struct.pack("<IBBHIIQ", 1 << 31, frames.CALL, 0, 0, 0, 1, 0),  # a head of 2 GiB
        struct.pack("<IBBHIIQ", 2, frames.CALL, 0, 0, 0, 1, 1 << 60) + b"{}",  # a body of an exabyte
        struct.pack("<IBBHIIQ", 4, frames.CALL, 0, 0, 0, 1, 0) + b"{{{{",
        struct.pack("<IBBHIIQ", 0, 99, 0, 0, 0, 1, 0),
    ],
)
def test_garbage_ends_its_own_connection_only(server, connect, garbage):
    witness = connect()
    with knock(server) as stream:
        stream.socket.sendall(garbage)
        assert last_words(stream)
    assert np.array_equal(witness(X), X * 2)


def test_heads_that_make_no_sense_are_answered(server, connect):
    with knock(server) as stream:
        for number, head in enumerate(
            (b"{}", b'{"f":[0,"main"],"a":3}', b'{"f":[0,"main"],"k":[]}', b'{"f":[1,"main"],"a":[]}'), 1
        ):
            stream.send(frames.pack(frames.CALL, number, head))
            answer = stream.receive_within(START_S)
            assert (answer.kind, answer.call_id) == (frames.ERROR, number)
        stream.send(frames.pack(frames.PING, 9))
        assert stream.receive_within(START_S).kind == frames.PONG


def test_a_client_that_takes_nothing_holds_nobody_up(server, connect):
    witness = connect()
    with knock(server) as stream:
        head, buffers = frames.encode_head({"f": [0, "main"], "a": [np.ones(1 << 20, "float32")]})
        stream.socket.settimeout(0.5)
        with contextlib.suppress(OSError):
            for number in range(1, 40):
                stream.socket.sendmsg(frames.pack(frames.CALL, number, head, buffers))
        for _ in range(20):
            assert np.array_equal(witness(X, deadline_s=START_S), X * 2)


@pytest.mark.slow
def test_who_says_nothing_after_the_handshake_is_dropped(server, connect):
    with socket.create_connection(server.address) as sock:
        sock.sendall(greeting())
        sock.settimeout(START_S)
        while sock.recv(65536):
            pass  # its answer and HELLO, and in the end nothing more


def test_more_clients_than_descriptors(tmp_path):
    """A server that may open few files takes as many clients as it can, and serves on when they leave."""
    daemons = Daemons(tmp_path)
    root = tmp_path / "deploy"
    deployed.put(root, "scale", deployed.library(tmp_path / "scale.so", 2.0))
    try:
        edge = daemons.server("edge", *deployed.WITH_NUMPY, "--deploy", str(root), preexec_fn=_allow_few_files)
        with rpcsys.connect(*edge.address, serve="scale") as first:
            crowd = []
            for _ in range(120):
                sock = socket.create_connection(edge.address)
                sock.sendall(greeting())
                crowd.append(sock)
            assert np.array_equal(first(X, deadline_s=START_S), X * 2)
            for sock in crowd:
                sock.close()
            assert np.array_equal(first(X, deadline_s=START_S), X * 2)
        with _patiently(edge) as again:
            assert np.array_equal(again(X), X * 2)
    finally:
        daemons.stop()


def _allow_few_files() -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))


def _patiently(edge):
    def attempt():
        try:
            return rpcsys.connect(*edge.address, serve="scale", timeout=START_S)
        except (rpcsys.errors.ConnectError, Busy, SessionLost):
            return None

    return wait_until(attempt, START_S, "a client is taken again")


# ---------------------------------------------------------------- by hand


def greeting(name: str = "scale") -> bytes:
    options = handshake.Options(session=handshake.SESSION, serve=name)
    return handshake.encode_greeting(handshake.Greeting(handshake.CLIENT, "", options))


@contextlib.contextmanager
def knock(server):
    """A shared connection, greeted both ways, for frames that no client would send."""
    with socket.create_connection(server.address) as sock:
        sock.sendall(greeting())
        reader = handshake.AnswerReader()
        while reader.receive(sock.recv(reader.needed)) is None:
            pass
        stream = Stream(sock)
        assert stream.receive_within(START_S).kind == frames.HELLO
        stream.send(frames.encode(frames.HELLO, 0, {"version": 1}))
        yield stream


def last_words(stream: Stream) -> str:
    """Why the server ends the connection, which it does."""
    frame = stream.receive_within(START_S)
    assert (frame.kind, frame.call_id) == (frames.ERROR, 0)
    with pytest.raises(Ended):
        stream.receive_within(START_S)
    return str(frame.get("message"))
