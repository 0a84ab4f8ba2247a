"""The threads of a model host: the leader, the workers, and calls that turn out slow."""

from __future__ import annotations

import socket
import threading

import pytest

from rpcsys import stream as streams
from rpcsys.module.module import Module
from rpcsys.server.models.call_queue import Call, CallQueue
from rpcsys.server.models.calls import ModuleCalls
from rpcsys.server.models.connection import ClientConnection
from rpcsys.server.models.worker_pool import READ, WorkerPool, begin, function_of
from rpcsys.stream import Ended
from rpcsys.wire import frames
from rpcsys.wire.head import ParsedHead
from rpcsys.wire.memory import Pool
from tests.device import WAIT_S, until


class Clients(WorkerPool):
    """A pool with clients on socket pairs; it reads from them as a host does."""

    def __init__(self, functions, workers: int) -> None:
        super().__init__(ModuleCalls(Module("test", functions)), CallQueue(workers, 8, 1 << 20))
        self._connections: dict[int, ClientConnection] = {}
        self.at_once: list[str] = []
        self.ended = 0

    def client(self) -> streams.Stream:
        ours, theirs = socket.socketpair()
        connection = ClientConnection(ours, "peer", Pool(), 1 << 20)
        connection.watched = READ
        self._connections[connection.descriptor] = connection
        self._epoll.register(connection.descriptor, READ)
        stream = streams.open(theirs)
        stream.tick(WAIT_S)
        return stream

    def start(self) -> None:
        for _ in range(self._queue.workers + 1):
            begin(self.live)
        begin(self.watch)

    def live(self) -> None:
        self._live()
        self.ended += 1

    def watch(self) -> None:
        while True:
            self._keep_watch()

    def give_up(self, call_id: int) -> None:
        (call,) = (call for call in list(self._queue._all()) if call.frame.call_id == call_id)
        with self._lock:
            self._queue.cancel(call.client, call_id, 1.0)
        begin(self.live)

    def _attend(self, descriptor: int, events: int, alone: bool) -> Call | None:
        connection = self._connections[descriptor]
        try:
            found = connection.receive()
        except Ended:  # the test is over
            self._epoll.unregister(descriptor)
            return None
        function = function_of(found[0]) if found else ""
        if alone and len(found) == 1 and self._queue.idle and function in self._quick:
            self.at_once.append(function)
            return Call(connection, found[0])
        with self._lock:
            for frame in found:
                self._queue.offer(Call(connection, frame))
        return None

    def _do_due(self, now: float) -> None:
        self._next_due = now + 60.0

    def _rewatch(self, connection: ClientConnection) -> None:
        """Nothing is watched: every send succeeds at once."""


def call(client: streams.Stream, call_id: int, name: str, *args) -> None:
    client.send(frames.encode(frames.CALL, call_id, {"f": [0, name], "a": list(args)}))


def answer(client: streams.Stream, call_id: int):
    frame = client.receive()
    assert frame is not None, f"no answer for {WAIT_S} s"
    assert frame.call_id == call_id
    return frame.get("r") if frame.kind == frames.RESULT else frame.get("type")


@pytest.fixture
def gate():
    gate = threading.Event()
    yield gate
    gate.set()  # ends the threads that a test has left waiting


def test_every_worker_runs_a_call_at_once():
    barrier = threading.Barrier(2, timeout=WAIT_S)
    pool = Clients({"meet": barrier.wait}, workers=2)
    pool.start()
    one, two = pool.client(), pool.client()
    call(one, 1, "meet")
    call(two, 1, "meet")
    assert sorted([answer(one, 1), answer(two, 1)]) == [0, 1]


def test_an_exception_is_answered():
    pool = Clients({"fail": lambda: 1 / 0, "echo": lambda x: x}, workers=1)
    pool.start()
    client = pool.client()
    call(client, 1, "fail")
    assert answer(client, 1) == "ZeroDivisionError"
    call(client, 2, "echo", 5)
    assert answer(client, 2) == 5


def test_the_leader_runs_a_quick_function(gate):
    """If it is slow once, another thread becomes the leader."""
    threads = []

    def now_and_then(last: bool) -> None:
        threads.append(threading.get_ident())
        if last:
            gate.wait(WAIT_S)

    pool = Clients({"f": now_and_then, "echo": lambda x: x}, workers=2)
    pool.start()
    one, two = pool.client(), pool.client()
    for number in range(200):
        call(one, number, "f", False)
        assert answer(one, number) is None
        if pool.at_once:
            break
    assert pool.at_once[0] == "f"
    call(one, 1000, "f", True)
    until(lambda: pool._queue.running == 1 or not pool._queue.idle, "the call to last")
    call(two, 1, "echo", "meanwhile")
    assert answer(two, 1) == "meanwhile"
    gate.set()
    assert answer(one, 1000) is None
    assert "f" not in pool._quick
    until(lambda: pool._queue.idle)


def test_a_call_given_up_is_not_answered_and_its_thread_ends(gate):
    pool = Clients({"wait": lambda: gate.wait(WAIT_S), "echo": lambda x: x}, workers=1)
    pool.start()
    client = pool.client()
    call(client, 1, "wait")
    until(lambda: pool._queue.running == 1, "the call to run")
    pool.give_up(1)
    call(client, 2, "echo", "after it")
    assert answer(client, 2) == "after it"
    assert pool.ended == 0
    gate.set()
    until(lambda: pool.ended == 1, "its thread to end")
    until(lambda: pool._queue.idle)
    call(client, 3, "echo", "still here")
    assert answer(client, 3) == "still here"


@pytest.mark.parametrize(
    ("target", "name"), [([0, "main"], "main"), ("main", ""), ([0], ""), ([0, 5], ""), (None, ""), ([0, "a", "b"], "")]
)
def test_the_function_of_a_call_is_found(target, name):
    assert function_of(frames.Frame(frames.CALL, 0, 0, 1, ParsedHead({"f": target}, ()), ())) == name
