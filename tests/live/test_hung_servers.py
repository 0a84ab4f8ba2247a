"""Servers and trackers that hang with open connections: the tracker does not lease servers that do not answer."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import pytest

import rpcsys
from tests.live.daemons import START_S, Daemon, Daemons, queue, wait_free, wait_until

pytestmark = pytest.mark.slow

KEY = "board"
FLAGS = ("--tvm", "off", "--preload", "none")
WITHDRAWN_S = 25.0
"""The documented limit is 15 s; this machine may be busy."""
BACK_S = 10.0
TRACKER_STOPPED_S = 30.0


@contextlib.contextmanager
def stopped(daemon: Daemon) -> Iterator[None]:
    os.kill(daemon.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(daemon.pid, signal.SIGCONT)


@pytest.mark.parametrize("route", ["direct", "proxied"])
def test_a_stopped_server_is_not_offered_until_it_resumes(daemons: Daemons, route: str):
    tracker = daemons.tracker()
    if route == "direct":
        server = daemons.server(KEY, *FLAGS, tracker=tracker)
    else:
        server = daemons.behind(daemons.proxy("--tracker", tracker.where), KEY, *FLAGS, flavour="ours")
        wait_free(tracker, KEY, 1, START_S)
    sessions: list[rpcsys.Session] = []
    with rpcsys.connect_tracker(tracker.address) as viewer:
        with stopped(server):
            wait_until(lambda: queue(tracker, KEY)["free"] == 0, WITHDRAWN_S, "it is withdrawn")
            (row,) = viewer.summary()["servers"]
            assert (row["state"], row["free"]) == ("unhealthy", 0)
            assert "does not answer" in row["reason"]
            assert "does not answer" in query(tracker, "--why", KEY)
            waiting = threading.Thread(target=lambda: sessions.append(viewer.request(KEY)))
            waiting.start()
            wait_until(lambda: queue(tracker, KEY)["pending"] == 1, START_S, "the request waits")
        waiting.join(START_S)
        (session,) = sessions
        assert session.get_function("testing.echo")(1) == 1
        session.close()
        wait_free(tracker, KEY, 1, BACK_S)
        (row,) = viewer.summary()["servers"]
        assert (row["state"], viewer.leases()) == ("ok", [])


def query(tracker: Daemon, *words: str) -> str:
    """The output of query_tracker."""
    host, port = tracker.address
    command = [sys.executable, "-m", "rpcsys.query", "--host", host, "--port", str(port), *words]
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=START_S).stdout


def test_a_session_on_a_stopped_server_keeps_running(daemons: Daemons):
    tracker = daemons.tracker()
    server = daemons.server(KEY, *FLAGS, "--slots", "2", tracker=tracker, offers=2)
    with rpcsys.connect_tracker(tracker.address) as viewer, viewer.request(KEY) as session:
        echo = session.get_function("testing.echo")
        wait_until(
            lambda: [row["state"] for row in viewer.leases()] == ["running"], BACK_S, "the tracker knows that it runs"
        )
        with stopped(server):
            wait_until(lambda: queue(tracker, KEY)["free"] == 0, WITHDRAWN_S, "it is withdrawn")
            assert echo(1) == 1
            assert [row["state"] for row in viewer.leases()] == ["running"]
        wait_free(tracker, KEY, 1, BACK_S)
        assert echo(2) == 2


def test_a_stopped_tracker_marks_no_server_unhealthy(daemons: Daemons):
    tracker = daemons.tracker()
    for number in range(3):
        daemons.server(KEY, *FLAGS, tracker=tracker, offers=number + 1)
    with stopped(tracker):
        time.sleep(TRACKER_STOPPED_S)
    for _ in range(50):
        assert queue(tracker, KEY)["free"] == 3
        time.sleep(0.1)
    assert "unhealthy" not in tracker.stderr()


def test_tvms_servers_get_no_heartbeat(daemons: Daemons):
    pytest.importorskip("tvm")
    tracker = daemons.tracker()
    daemons.server(KEY, tracker=tracker, flavour="tvm")
    for _ in range(160):
        assert queue(tracker, KEY)["free"] == 1
        time.sleep(0.1)
