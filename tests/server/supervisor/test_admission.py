"""The admission of clients, as transcripts of a whole server."""

from __future__ import annotations

import pytest

from rpcsys.server.supervisor import actions as do
from rpcsys.server.supervisor import events as ev
from rpcsys.server.supervisor.admission import HANDSHAKE_S, MAX_OPENINGS, MAX_WAITING
from tests.server.transcripts import Transcript, kinds, only, taken


def test_a_waiting_client_that_hangs_up_is_dropped(direct):
    for conn in (1, 2, 3, 4):
        direct.greet(conn)
    assert direct.post(ev.HungUp, 3) == [do.Drop(3)]
    direct.post(ev.HungUp, 1)
    direct.post(ev.ChildReady, 3)
    assert [action.conn for action in only(direct.child_dies(1), do.Start)] == [4]


def test_the_number_of_waiting_clients_is_bounded(direct):
    for conn in range(MAX_WAITING + 2):
        direct.greet(conn)
    assert direct.greet(999) == [do.Refuse(999, "mismatch")]


@pytest.mark.parametrize(
    ("fields", "how"),
    [
        ({"key": "other"}, "mismatch"),
        ({"session": "rpcsys/9"}, "version"),
        ({"serve": "x", "session": None}, "version"),
    ],
)
def test_an_invalid_greeting_is_refused(direct, fields, how):
    assert direct.greet(1, **fields) == [do.Refuse(1, how)]


def test_a_deployed_module_is_refused_without_deploy(direct):
    (away,) = direct.greet(1, serve="resnet")
    assert (away.conn, away.kind, away.fresh) == (1, "ServerRefused", True)
    assert "start it with --deploy" in away.text


def test_a_server_is_refused(direct):
    direct.post(ev.Accepted, 1, "peer")
    assert direct.post(ev.Opened, 1, "peer", "server", "k") == [do.Refuse(1, "mismatch")]


def test_tvm_clients_are_refused_without_tvm():
    script = Transcript(tvm=False)
    script.boot()
    assert script.greet(1, session=None) == [do.Refuse(1, "mismatch")]
    assert kinds(script.greet(2)) == [do.Start]


def test_an_incomplete_greeting_is_dropped_after_its_timeout(direct):
    direct.post(ev.Accepted, 1, "peer")
    assert direct.tick(HANDSHAKE_S - 0.1) == []
    assert direct.tick(0.2) == [do.Drop(1)]


def test_an_invalid_opening_is_dropped_and_logged(direct):
    direct.post(ev.Accepted, 1, "peer")
    assert direct.post(ev.Broken, 1, "not the opening of a session") == [do.Drop(1)]
    assert "connection from peer dropped: not the opening of a session" in direct.logged()


def test_one_opening_too_many_drops_the_oldest(direct):
    for conn in range(MAX_OPENINGS):
        assert direct.post(ev.Accepted, conn, "peer") == []
    assert direct.post(ev.Accepted, MAX_OPENINGS, "peer") == [do.Drop(0)]


def test_a_client_waits_for_the_trackers_message_about_its_lease(tracked):
    assert tracked.greet(5, "k:1") == []
    started, report = taken(tracked, limit_s=30.0)
    assert (started.lease, started.limit_s) == ("L1", 30.0)
    assert report == do.ReportStart("L1", 1, "peer5")


def test_the_wait_for_the_trackers_message_is_bounded(tracked):
    tracked.greet(5, "k:1")
    (started,) = tracked.tick(3)
    assert started.lease is None
    assert taken(tracked) == [do.ReportStart("L1", 1, "peer5")]


def test_a_lost_link_ends_the_wait_for_the_trackers_message(tracked):
    tracked.greet(5, "k:1")
    assert kinds(tracked.post(ev.LinkDown, "gone")) == [do.Start]


def test_a_board_that_is_not_clean_refuses_clients():
    script = Transcript(slots=1)
    script.boot()
    script.greet(1)
    script.greet(2)
    script.post(ev.ChildDead, 1, 0)
    assert script.post(ev.Removed, 1, (), ("/tmp/x",)) == [do.Refuse(2, "mismatch")]
    assert script.greet(3) == [do.Refuse(3, "mismatch")]
    script.replay()
