"""A connection lost and opened again, without sockets: the opener is scripted."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable

import pytest

from rpcsys.client import reconnect
from rpcsys.client.reconnect import Endpoint, OpenConnection, ReconnectingConnection, open_at
from rpcsys.errors import NotSupported, RemoteFunctionError, RpcsysError, ServerUnreachable, SessionClosed
from rpcsys.wire import frames
from tests.client.test_false_server import frame, session_with
from tests.live.daemons import wait_until

GONE = ServerUnreachable("nobody is there")


class Held:
    """Counts how often it is closed."""

    def __init__(self) -> None:
        self.closed = 0

    def close(self) -> None:
        self.closed += 1


class FakeEndpoint:
    """An opener that first raises ``errors``. ``asked``: the seconds and addresses of each attempt."""

    def __init__(self, *errors: Exception | None, others: bool = False) -> None:
        self.errors = list(errors)
        self.asked: list[tuple[float, list[str]]] = []
        self.made: list[Held] = []
        self.others = others
        self.before: Callable[[], object] = lambda: None

    def __call__(self, seconds, avoid):
        self.asked.append((seconds, sorted(avoid)))
        self.before()
        error = self.errors.pop(0) if self.errors else None
        if error is not None:
            raise error
        self.made.append(Held())
        return OpenConnection(len, f"server{len(self.made)}", [self.made[-1]], self.others)


def test_the_first_get_opens_the_only_connection():
    endpoint = FakeEndpoint()
    connection = ReconnectingConnection(endpoint, 5.0)
    assert endpoint.asked == []
    assert connection.get() is connection.get()
    assert (connection.opened, endpoint.asked) == (1, [(5.0, [])])
    connection.close()
    assert endpoint.made[0].closed == 1


def test_a_failed_first_attempt_is_an_error_at_once():
    endpoint = FakeEndpoint(GONE)
    connection = ReconnectingConnection(endpoint, 60.0)
    with pytest.raises(ServerUnreachable):
        connection.get()
    assert len(endpoint.asked) == 1
    assert connection.get().where == "server1"


def test_a_lost_server_is_retried():
    endpoint = FakeEndpoint(None, GONE, GONE, GONE)
    connection = ReconnectingConnection(endpoint, 60.0)
    first = connection.get()
    connection.lost(first)
    assert endpoint.made[0].closed == 1
    second = connection.get()
    assert (second.where, connection.opened, len(endpoint.asked)) == ("server2", 2, 5)
    connection.lost(first)  # by another thread, which met its end later
    assert connection.current is second
    assert endpoint.made[1].closed == 0


def test_retries_end_after_the_wait():
    endpoint = FakeEndpoint(None, *[GONE] * 1000)
    connection = ReconnectingConnection(endpoint, 0.3)
    connection.lost(connection.get())
    began = time.monotonic()
    with pytest.raises(ServerUnreachable):
        connection.get()
    assert time.monotonic() - began >= 0.3
    assert 3 <= len(endpoint.asked) < 20


def test_a_wait_for_a_lost_server_is_logged_once_and_at_once(caplog):
    endpoint = FakeEndpoint(None, GONE, GONE, GONE)
    connection = ReconnectingConnection(endpoint, 60.0, "f at board:9090")
    connection.lost(connection.get())
    assert caplog.messages == []
    seen: list[int] = []
    endpoint.before = lambda: seen.append(len(caplog.messages))
    connection.get()
    assert caplog.messages == ["f at board:9090: a call waits for the server, up to 60 s: nobody is there"]
    assert seen == [0, 1, 1, 1]


def test_a_server_that_does_not_answer_is_logged_while_it_is_awaited(caplog):
    endpoint = FakeEndpoint()
    endpoint.before = lambda: wait_until(lambda: caplog.messages, 10, "the wait is logged")
    ReconnectingConnection(endpoint, 60.0).get()
    assert caplog.messages == ["a function: a call waits for the server, up to 60 s: nothing answers yet"]


@pytest.mark.parametrize("error", [NotSupported("TVM's"), RemoteFunctionError("no such function")])
def test_nothing_is_logged_where_nothing_is_waited_for(error, caplog):
    unseen, moved = (ReconnectingConnection(FakeEndpoint(*found), 60.0) for found in ((GONE,), (None, error)))
    with pytest.raises(ServerUnreachable):
        unseen.get()
    moved.lost(moved.get())
    with pytest.raises(type(error)):
        moved.get()
    assert caplog.messages == []


@pytest.mark.parametrize("error", [NotSupported("TVM's"), RemoteFunctionError("no such function")])
def test_a_permanent_error_is_raised_at_once(error):
    endpoint = FakeEndpoint(None, error)
    connection = ReconnectingConnection(endpoint, 60.0)
    connection.lost(connection.get())
    with pytest.raises(type(error)):
        connection.get()


def test_waiting_callers_share_the_result_of_one_search():
    endpoint = FakeEndpoint(GONE)
    began, goes_on = threading.Barrier(2), threading.Event()
    endpoint.before = lambda: (began.wait(10), goes_on.wait(10))
    connection, ended = ReconnectingConnection(endpoint, 60.0), []

    def ask() -> None:
        try:
            ended.append(connection.get())
        except RpcsysError as error:
            ended.append(error)

    first = threading.Thread(target=ask)
    first.start()
    began.wait(10)
    rest = [threading.Thread(target=ask) for _ in range(4)]
    for thread in rest:
        thread.start()
    time.sleep(0.1)  # they wait for the lock by then, or call later: only the count differs
    endpoint.before = lambda: None
    goes_on.set()
    for thread in [first, *rest]:
        thread.join(10)
    assert len(ended) == 5
    assert any(one is GONE for one in ended)
    assert len(endpoint.asked) <= 2


def test_at_once_searches_in_the_background():
    endpoint = FakeEndpoint(GONE, GONE, NotSupported("not now"))
    connection = ReconnectingConnection(endpoint, 60.0)
    assert connection.at_once() is None  # after the first try
    wait_until(lambda: connection.current, 10, "the search finds it")
    assert connection.at_once() is connection.current
    assert len(endpoint.asked) == 4
    wait_until(lambda: connection._search is None, 10, "the search ends")


def test_a_slow_first_attempt_does_not_block_at_once():
    goes_on = threading.Event()
    endpoint = FakeEndpoint()
    endpoint.before = lambda: goes_on.wait(30)
    connection = ReconnectingConnection(endpoint, 60.0)
    began = time.monotonic()
    assert connection.at_once() is None
    assert connection.at_once() is None  # not a second more each time
    assert time.monotonic() - began < 10
    goes_on.set()
    wait_until(lambda: connection.current, 10, "the search finds it")


def test_a_search_ends_after_the_last_at_once(monkeypatch):
    monkeypatch.setattr(reconnect, "IDLE_S", 0.2)
    endpoint = FakeEndpoint(*[GONE] * 1000)
    connection = ReconnectingConnection(endpoint, 60.0)
    assert connection.at_once() is None
    wait_until(lambda: connection._search is None, 10, "the search ends")
    tries = len(endpoint.asked)
    assert connection.at_once() is None  # and begins anew
    assert len(endpoint.asked) > tries
    connection.close()


def test_after_close_nothing_is_opened():
    endpoint = FakeEndpoint(None, *[GONE] * 1000)
    connection = ReconnectingConnection(endpoint, 60.0)
    connection.lost(connection.get())
    ended: list[RpcsysError] = []

    def ask() -> None:
        try:
            connection.get()
        except RpcsysError as error:
            ended.append(error)

    thread = threading.Thread(target=ask)
    thread.start()
    wait_until(lambda: len(endpoint.asked) > 1, 10, "it looks")
    connection.close()
    thread.join(10)
    assert isinstance(ended[0], (SessionClosed, ServerUnreachable))
    with pytest.raises(SessionClosed):
        connection.get()
    assert connection.at_once() is None


def test_a_connection_opened_during_close_is_closed():
    endpoint = FakeEndpoint()
    connection = ReconnectingConnection(endpoint, 60.0)
    endpoint.before = connection.close
    with pytest.raises(SessionClosed):
        connection.get()
    assert [held.closed for held in endpoint.made] == [1]
    assert connection.current is None


def test_a_busy_server_is_avoided_where_there_are_others():
    endpoint = FakeEndpoint(others=True)
    connection = ReconnectingConnection(endpoint, 60.0)
    first = connection.get()
    connection.crowded(first)
    assert connection.get().where == "server2"
    assert endpoint.asked[-1][1] == ["server1"]
    assert endpoint.made[0].closed == 0  # calls may be under way on it

    alone = ReconnectingConnection(FakeEndpoint(), 60.0)
    only = alone.get()
    alone.crowded(only)
    assert alone.current is only


# ---------------------------------------------------------------- where a function is


@pytest.mark.parametrize(
    ("endpoint", "complaint"),
    [
        (Endpoint("f", address="host:1"), ""),
        (Endpoint("f", key="k", tracker="host:1"), ""),
        (Endpoint("f", serve="m", tracker="host:1"), ""),
        (Endpoint("", address="host:1"), "has a name"),
        (Endpoint("f"), "give one of the two"),
        (Endpoint("f", address="host:1", tracker="host:1"), "give one of the two"),
        (Endpoint("f", tracker="host:1"), "give one"),
        (Endpoint("f", address="host:1", wait_s=0), "wait_s"),
        (Endpoint("f", address="host:1", wait_s=math.inf), "wait_s"),
        (Endpoint("f", address="host:1", deadline_s=-1), "deadline_s"),
        (Endpoint("f", address="host"), "no address"),
    ],
)
def test_an_invalid_endpoint_is_an_error(endpoint, complaint):
    assert complaint in endpoint.complaint()
    assert bool(complaint) == bool(endpoint.complaint())


def test_an_endpoint_as_text():
    assert str(Endpoint("f", address="host:1")) == "f at host:1"
    assert str(Endpoint("f", serve="m", tracker="host:1")) == "m.f at a server of the tracker host:1"


def replies(*results):
    return [frame(frames.RESULT, {"r": result}, number) for number, result in enumerate(results, 1)]


def test_a_function_of_a_session():
    with session_with(*replies(True, 5)) as address:
        where = "{}:{}".format(*address)
        connection = open_at(Endpoint("f", key="k", address=where), {}, ("zlib",), 10.0, ())
        try:
            assert connection.call(1) == 5
            assert connection.where == where
            assert not connection.others
        finally:
            connection.close()


def test_an_encoding_that_the_server_lacks_is_refused():
    with session_with() as address, pytest.raises(NotSupported, match="cannot decode zstd"):
        open_at(Endpoint("f", address="{}:{}".format(*address)), {}, ("zstd",), 10.0, ())


def test_an_endpoint_without_a_server_is_unreachable():
    with pytest.raises(ServerUnreachable):
        open_at(Endpoint("f", address="127.0.0.1:1"), {}, (), 2.0, ())
