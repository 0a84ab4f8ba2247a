"""Clients that close between the grant of a lease and its session: no lease and no slot stays taken."""

from __future__ import annotations

import itertools
import socket
import struct
import urllib.request
from collections.abc import Callable

import pytest

import rpcsys
from rpcsys.client import connection as client
from tests.live.daemons import START_S, Address, Daemon, Daemons, free_port, queue, wait_until
from tests.live.probe import TrackerProbe, asker, opening

KEY = "board"
SLOTS = 2
TAKEN_BACK_S = 6.0
"""Without a message of the tracker, a server waits 8 s for its client."""
MANY = 4200
"""The tracker drops a server that seems to have more than 4,096 leases."""


class AbandoningClient:
    """A client, ours or TVM's, with a granted lease."""

    def __init__(self, tracker: Address, kind: str) -> None:
        self.probe = TrackerProbe(tracker) if kind == "tvm" else asker(tracker)
        self.server: socket.socket | None = None
        self.lease = ""
        if kind == "tvm":
            self.place = self.probe.lease(KEY)
            return
        assert self.probe.ask([1, {"op": "hello", "version": "0", "user": "client"}])["ok"]
        self.probe.send({"op": "request", "id": 1, "key": KEY})
        while "leases" not in (answer := self.probe.receive()):
            pass
        (lease,) = answer["leases"]
        self.place = lease["host"], lease["port"], lease["matchkey"]
        self.lease = lease["lease"]

    def send(self, text: bytes) -> None:
        """Connect to the server and send ``text``."""
        self.server = socket.create_connection(self.place[:2])
        self.server.sendall(text)

    def close(self) -> None:
        self.probe.close()
        if self.server is not None:
            self.server.close()


def reset(sock: socket.socket) -> None:
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    sock.close()


def close(client: AbandoningClient) -> None:
    client.close()


def break_off(client: AbandoningClient) -> None:
    reset(client.probe.socket)


def half_close(client: AbandoningClient) -> None:
    client.probe.socket.shutdown(socket.SHUT_WR)


def connect_and_close(client: AbandoningClient) -> None:
    client.send(b"")
    client.close()


def greet_by_half_and_close(client: AbandoningClient) -> None:
    client.send(opening(client.place[2])[:20])
    client.server.close()
    client.probe.close()


def greet_by_half_and_leave_the_tracker_first(client: AbandoningClient) -> None:
    client.send(opening(client.place[2])[:20])
    client.probe.close()
    client.server.close()


def greet_and_leave_the_tracker_first(client: AbandoningClient) -> None:
    client.send(opening(client.place[2], "-session=rpcsys/1"))
    client.probe.close()
    client.server.close()


def greet_and_leave_the_server_only(client: AbandoningClient) -> None:
    client.send(opening(client.place[2], "-session=rpcsys/1"))
    reset(client.server)
    client.server = None


def release(client: AbandoningClient) -> None:
    client.probe.send({"op": "release", "id": 2, "lease": client.lease})


def release_with_a_problem(client: AbandoningClient) -> None:
    client.probe.send({"op": "release", "id": 2, "lease": client.lease, "problem": "no route"})


def end(client: AbandoningClient) -> None:
    client.probe.send({"op": "end", "id": 2, "lease": client.lease})


def release_and_close(client: AbandoningClient) -> None:
    release(client)
    client.close()


EITHER = (
    close,
    break_off,
    half_close,
    connect_and_close,
    greet_by_half_and_close,
    greet_by_half_and_leave_the_tracker_first,
    greet_and_leave_the_tracker_first,
    greet_and_leave_the_server_only,
)
OURS = (release, release_with_a_problem, end, release_and_close)
WAYS = [("tvm", way) for way in EITHER] + [("rpcsys", way) for way in EITHER + OURS]


class Lab:
    """A tracker and a server; clients connect to ``entrance``: the tracker or a proxy."""

    def __init__(self, daemons: Daemons, way: str) -> None:
        self.tracker = daemons.tracker("--http-port", str(free_port()))
        flags = ("--slots", str(SLOTS), "--tvm", "off", "--preload", "none")
        if way == "direct":
            self.server = daemons.server(KEY, *flags, tracker=self.tracker, offers=SLOTS)
            self.entrance = self.tracker
        else:
            self.entrance = daemons.proxy("--tracker", self.tracker.where)
            self.server = daemons.behind(self.entrance, KEY, *flags, flavour="ours")
            self.server.await_ready_line()
        self.clean(START_S)

    def clean(self, deadline_s: float) -> None:
        """Wait until no lease and no request is left, and all slots are free."""
        wait_until(lambda: self.left() == ([], {"free": SLOTS, "pending": 0}), deadline_s, "nothing is left")
        with rpcsys.connect_tracker(self.tracker.address) as tracker:
            why = tracker.why(KEY)
            assert (why["holders"], why["queue"]) == ([], [])
            (server,) = tracker.summary()["servers"]
            assert (server["free"], server["running"]) == (SLOTS, 0)

    def left(self) -> tuple[list[object], dict[str, int]]:
        with rpcsys.connect_tracker(self.tracker.address) as tracker:
            return tracker.leases(), queue(self.tracker, KEY)


@pytest.fixture(scope="module", params=["direct", "proxied"])
def lab(request: pytest.FixtureRequest, module_daemons: Callable[[], Daemons]) -> Lab:
    return Lab(module_daemons(), request.param)


@pytest.mark.parametrize(("kind", "leave"), WAYS, ids=lambda part: getattr(part, "__name__", part))
def test_a_client_that_closes_leaves_no_lease(lab: Lab, kind: str, leave: Callable[[AbandoningClient], None]):
    clients = [AbandoningClient(lab.entrance.address, kind) for _ in range(SLOTS)]
    try:
        for client in clients:
            leave(client)
        lab.clean(TAKEN_BACK_S)
    finally:
        for client in clients:
            client.close()


def test_ctrl_c_between_grant_and_session_leaves_no_lease(lab: Lab, monkeypatch: pytest.MonkeyPatch):
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(client, "open_session", interrupted)
    with rpcsys.connect_tracker(lab.entrance.address) as tracker:
        with pytest.raises(KeyboardInterrupt):
            tracker.request(KEY, count=SLOTS)
        lab.clean(TAKEN_BACK_S)


def test_a_failed_connection_of_tvms_client_leaves_no_lease(lab: Lab, monkeypatch: pytest.MonkeyPatch):
    """Its request opens the session in the same call; its connection to the tracker stays open until then."""
    from tvm import rpc

    def refused(*_: object, **__: object) -> None:
        raise OSError("no route to the board")

    monkeypatch.setattr(rpc.client, "connect", refused)
    tracker = rpc.connect_tracker(*lab.entrance.address)
    with pytest.raises(RuntimeError, match="after 5 retry"):
        tracker.request(KEY)  # five leases in turn, of two slots
    lab.clean(TAKEN_BACK_S)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["rpcsys", "tvm"])
def test_thousands_of_abandoned_leases_leave_nothing(daemons: Daemons, kind: str):
    lab = Lab(daemons, "direct")
    ways = itertools.cycle(leave for other, leave in WAYS if other == kind and leave != release_with_a_problem)
    for _ in range(MANY):
        client = AbandoningClient(lab.entrance.address, kind)
        next(ways)(client)
        client.close()
    lab.clean(TAKEN_BACK_S)
    assert "closed the connection" not in lab.server.stderr()
    assert lab.server.stderr().count("registered with the tracker") == 1
    figures = metrics(lab.tracker)
    assert figures.count('outcome="unused"') > 0


def metrics(tracker: Daemon) -> str:
    where = "http://127.0.0.1:{}/metrics".format(tracker.ready["http_port"])
    with urllib.request.urlopen(where, timeout=START_S) as page:
        return page.read().decode()
