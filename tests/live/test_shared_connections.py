"""Clients of one deployed module do not disturb each other: ends of calls, limits, invalid frames."""

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
from rpcsys import stream as streams
from rpcsys.client.deploying import Deployment
from rpcsys.errors import Busy, DeadlineExceeded, RemoteArgumentError, RemoteFunctionError, SessionLost, UsageError
from rpcsys.stream import Ended
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
    other_call = other["nap"].submit(6.0)
    nap = client["nap"].submit(4.5)
    wait_until(lambda: load(server)[0] == 2, START_S, "both run")
    assert nap.cancel()
    wait_until(lambda: load(server)[0] == 1, START_S, "one has ended")
    assert np.array_equal(client(X), X * 2)  # the connection is still open
    assert other_call.result(START_S) == 2.0


def test_a_cancelled_call_in_onnxruntime_is_stopped(connect):
    loop = connect("loop")
    endless = [loop.submit(np.int64(1 << 62)) for _ in range(WORKERS)]
    time.sleep(0.2)
    for call in endless:
        call.cancel()
    assert int(loop(np.int64(10), deadline_s=START_S)) == 10  # the workers are free before the loops would end


def test_a_deadline_ends_that_call_only(connect):
    client = connect()
    other_call = client["nap"].submit(3.0)
    with pytest.raises(DeadlineExceeded):
        client["nap"](4.5, deadline_s=0.3)
    assert np.array_equal(client(X), X * 2)
    assert other_call.result(START_S) == 2.0


def test_a_host_with_stuck_workers_is_replaced(server, tmp_path):
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
            assert client["nap"](0.0) == 2.0  # a new thread replaces the stuck one
            wait_until(lambda: client["pid"]() != pid, START_S, "the connection leads to the new host")
            assert np.array_equal(client(X), X * 2)
        wait_until(lambda: not alive(pid), START_S, "the stuck host has ended")
        assert "its host is being replaced" in edge.stderr()
    finally:
        daemons.stop()


def test_a_function_that_becomes_slow_delays_no_other_client(connect):
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


def test_too_many_calls_get_a_retryable_busy(connect):
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


def test_one_client_with_many_calls_delays_no_other(connect):
    many, one = connect(), connect()
    naps = [many["nap"].submit(1.5) for _ in range(WORKERS + QUEUE - 1)]
    assert one["nap"](0.0) == 2.0
    assert not all(nap.done() for nap in naps)
    concurrent.futures.wait(naps, START_S)


def test_the_calls_of_a_disconnected_client_are_dropped(server, connect):
    other = connect()
    before = other["seen"]()["calls"]
    client = rpcsys.connect(*server.address, serve="scale")
    for _ in range(WORKERS + QUEUE):
        client["nap"].submit(4.5)
    client._session._channel.flush()
    wait_until(lambda: load(server) == (WORKERS, QUEUE), START_S, "they run, and wait")
    client._session._channel._stream.socket.shutdown(socket.SHUT_RDWR)
    wait_until(lambda: load(server) == (0, 0), START_S, "no calls are left")
    wait_until(lambda: other["seen"]()["running"] == 0, START_S, "the running calls are done")
    assert other["seen"]()["calls"] - before == WORKERS  # the waiting calls did not run


# ---------------------------------------------------------------- limits of a shared connection


def test_a_shared_connection_only_calls_its_module(connect):
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
    for measured in (client.time_evaluator, client.profile):
        with pytest.raises(UsageError, match="is not timed on its server"):
            measured()
    assert np.array_equal(client(X), X * 2)


@pytest.mark.parametrize(
    ("kind", "fields"),
    [(frames.CHUNK, {}), (frames.FREE, {"ids": [0]}), (frames.LOG, {}), (frames.HELLO, {}), (frames.RESULT, {"r": 1})],
)
def test_frames_of_other_kinds_end_the_connection_with_an_error(server, connect, kind, fields):
    other = connect()
    with connected(server) as stream:
        head, _ = frames.encode_head(fields)
        stream.send(frames.pack(kind, 1, head, (b"piece",) if kind == frames.CHUNK else ()))
        assert "takes CALL, CANCEL and PING" in last_error(stream)
    assert np.array_equal(other(X), X * 2)


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
def test_garbage_ends_only_its_own_connection(server, connect, garbage):
    other = connect()
    with connected(server) as stream:
        stream.socket.sendall(garbage)
        assert last_error(stream)
    assert np.array_equal(other(X), X * 2)


def test_invalid_heads_get_an_error(server, connect):
    with connected(server) as stream:
        for number, head in enumerate(
            (b"{}", b'{"f":[0,"main"],"a":3}', b'{"f":[0,"main"],"k":[]}', b'{"f":[1,"main"],"a":[]}'), 1
        ):
            stream.send(frames.pack(frames.CALL, number, head))
            answer = stream.receive_within(START_S)
            assert (answer.kind, answer.call_id) == (frames.ERROR, number)
        stream.send(frames.pack(frames.PING, 9))
        assert stream.receive_within(START_S).kind == frames.PONG


def test_a_client_that_does_not_read_delays_no_other(server, connect):
    other = connect()
    with connected(server) as stream:
        head, buffers = frames.encode_head({"f": [0, "main"], "a": [np.ones(1 << 20, "float32")]})
        stream.socket.settimeout(0.5)
        with contextlib.suppress(OSError):
            for number in range(1, 40):
                stream.socket.sendmsg(frames.pack(frames.CALL, number, head, buffers))
        for _ in range(20):
            assert np.array_equal(other(X, deadline_s=START_S), X * 2)


@pytest.mark.slow
def test_a_silent_client_is_dropped_after_the_handshake(server, connect):
    with socket.create_connection(server.address) as sock:
        sock.sendall(greeting())
        sock.settimeout(START_S)
        while sock.recv(65536):
            pass  # the server's greeting and HELLO, then the end


def test_a_server_without_descriptors_serves_on(tmp_path):
    """A server with few descriptors accepts as many clients as it can, and serves again when they close."""
    daemons = Daemons(tmp_path)
    root = tmp_path / "deploy"
    deployed.put(root, "scale", deployed.library(tmp_path / "scale.so", 2.0))
    try:
        edge = daemons.server("edge", *deployed.WITH_NUMPY, "--deploy", str(root), preexec_fn=_allow_few_files)
        with rpcsys.connect(*edge.address, serve="scale") as first:
            idle = []
            for _ in range(120):
                sock = socket.create_connection(edge.address)
                sock.sendall(greeting())
                idle.append(sock)
            assert np.array_equal(first(X, deadline_s=START_S), X * 2)
            for sock in idle:
                sock.close()
            assert np.array_equal(first(X, deadline_s=START_S), X * 2)
        with _connect_again(edge) as again:
            assert np.array_equal(again(X), X * 2)
    finally:
        daemons.stop()


def _allow_few_files() -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))


def _connect_again(edge):
    def attempt():
        try:
            return rpcsys.connect(*edge.address, serve="scale", timeout=START_S)
        except (rpcsys.errors.ConnectError, Busy, SessionLost):
            return None

    return wait_until(attempt, START_S, "a client is accepted again")


# ---------------------------------------------------------------- raw connections


def greeting(name: str = "scale") -> bytes:
    options = handshake.Options(session=handshake.SESSION, serve=name)
    return handshake.encode_greeting(handshake.Greeting(handshake.CLIENT, "", options))


@contextlib.contextmanager
def connected(server):
    """A shared connection after the handshake and HELLO, for frames that no client would send."""
    with socket.create_connection(server.address) as sock:
        sock.sendall(greeting())
        reader = handshake.AnswerReader()
        while reader.receive(sock.recv(reader.needed)) is None:
            pass
        stream = streams.open(sock)
        assert stream.receive_within(START_S).kind == frames.HELLO
        stream.send(frames.encode(frames.HELLO, 0, {"version": 1}))
        yield stream


def last_error(stream: streams.Stream) -> str:
    """Check that the server sends an error and closes the connection; its message."""
    frame = stream.receive_within(START_S)
    assert (frame.kind, frame.call_id) == (frames.ERROR, 0)
    with pytest.raises(Ended):
        stream.receive_within(START_S)
    return str(frame.get("message"))
