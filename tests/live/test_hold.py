"""Holds with real daemons: what attaches shares a board, others wait for it, and every end is known and says why."""

from __future__ import annotations

import os
import signal
import threading

import pytest

import rpcsys
from rpcsys.client import attaching, holds
from rpcsys.errors import SessionLost
from tests.live.daemons import START_S, Daemon, Daemons, queue, wait_free, wait_until
from tests.live.ways import ALLOWED, OPEN

KEY = "board"
BARE = ("--tvm", "off", "--preload", "none", "--allow-pickle", "--grace", "1")
SOON_S = 20.0


@pytest.fixture(autouse=True)
def desk(tmp_path, monkeypatch):
    """A desk without holds."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.delenv(attaching.VARIABLE, raising=False)
    return monkeypatch


@pytest.fixture(scope="module")
def lab(module_daemons) -> Daemon:
    daemons = module_daemons()
    tracker = daemons.tracker()
    daemons.server(KEY, *BARE, "--name", "desk-7", tracker=tracker)
    return tracker


def over(hold: holds.Hold) -> str:
    """Why a hold is over, as who attaches reads it."""
    wait_until(lambda: attaching.read(hold.path).over, SOON_S, "the hold is over")
    with pytest.raises(SessionLost, match=r"the hold of desk-7 is over \(.*\): exit its shell, or type: unset") as told:
        hold.session()
    assert "\n" not in str(told.value)
    return str(told.value)


def check_a_hold(tracker: Daemon, key: str) -> None:
    """What attaches to a hold sees the files of the others, and is a process of its own."""
    with rpcsys.hold(key, tracker=tracker.where, wait_timeout=START_S) as hold:
        with hold.session() as one, hold.session() as two:
            one.upload(b"first", "one.txt")
            assert two.download("one.txt") == b"first"
            assert one.run(os.getpid) != two.run(os.getpid)
        assert attaching.read(hold.path).over == ""
        with hold.session() as later:
            assert later.listdir() == ["one.txt"]
            assert later.get_function("testing.echo")([1, 2]) == [1, 2]
    wait_free(tracker, key, 1, SOON_S)
    with pytest.raises(SessionLost, match="is over, or was released: exit its shell, or type: unset RPCSYS_LEASE"):
        hold.session()


def test_programs_of_a_hold_share_a_board_that_others_wait_for(lab, desk):
    hold = rpcsys.hold(KEY, tracker=lab.where)
    with hold:
        before = dict(os.environ)
        first, second = hold.session(), hold.session()
        assert dict(os.environ) == before
        first.upload(b"here", "file")
        waiting = threading.Thread(target=serve_the_next, args=(lab, found := []))
        waiting.start()
        wait_until(lambda: queue(lab, KEY)["pending"] == 1, SOON_S, "bob waits")
        desk.setenv(attaching.VARIABLE, hold.environment()[attaching.VARIABLE])
        tracker = rpcsys.connect_tracker(lab.address)
        with tracker.request(KEY) as by_key, tracker.request() as by_default:
            assert by_key.listdir() == by_default.listdir() == second.listdir() == ["file"]
        with pytest.raises(rpcsys.errors.UnknownKey):
            tracker.request("other")
        first.close()
        assert second.listdir() == ["file"]
        assert found == []
    waiting.join(SOON_S)
    assert found == [[]], "bob's session begins in an empty folder"


def serve_the_next(tracker: Daemon, found: list) -> None:
    with holds.hold(KEY, tracker=tracker.where, user="bob") as hold, hold.session() as session:
        found.append(session.listdir())


def test_a_crash_ends_one_attached_session_alone(lab):
    with rpcsys.hold(KEY, tracker=lab.where) as hold, hold.session() as other:
        with hold.session() as session, pytest.raises(SessionLost, match="was ended by SIGABRT"):
            session.run(os.abort)
        assert other.listdir() == []


def test_a_killed_holder_frees_the_board(lab):
    with rpcsys.hold(KEY, tracker=lab.where) as hold:
        os.kill(hold.about.pid, signal.SIGKILL)
        assert "its holder, a process on this machine, is gone" in over(hold)
        wait_free(lab, KEY, 1, SOON_S)


def test_time_and_an_operator_end_a_hold(lab):
    with rpcsys.hold(KEY, tracker=lab.where, seconds=1.5) as hold:
        assert "time limit of 1.5 s is over" in over(hold)
    with rpcsys.hold(KEY, tracker=lab.where) as hold, rpcsys.connect_tracker(lab.address) as tracker:
        tracker.end_lease(hold.about.lease["lease"], "the night run needs it")
        assert "the night run needs it" in over(hold)


def test_a_hold_ends_with_its_board(daemons: Daemons):
    tracker = daemons.tracker()
    server = daemons.server(KEY, *BARE, "--name", "desk-7", tracker=tracker)
    with rpcsys.hold(KEY, tracker=tracker.where) as hold:
        server.kill()
        assert "the board is gone, or its server" in over(hold)


@pytest.mark.parametrize("way", [ALLOWED])
def test_a_hold_in_a_closed_lab(daemons: Daemons):
    tracker = daemons.tracker()
    daemons.server(KEY, *BARE, tracker=tracker)
    check_a_hold(tracker, KEY)


@pytest.mark.parametrize("way", [OPEN])
def test_a_hold_through_a_proxy(daemons: Daemons):
    tracker = daemons.tracker()
    proxy = daemons.proxy("--tracker", tracker.where)
    daemons.behind(proxy, KEY, *BARE, flavour="ours").await_ready_line()
    wait_free(tracker, KEY, 1, START_S)
    check_a_hold(tracker, KEY)
