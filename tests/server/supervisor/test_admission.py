"""How clients come in, as transcripts of a whole server."""

from __future__ import annotations

import pytest

from rpcsys.server.supervisor import actions as do
from rpcsys.server.supervisor import events as ev
from rpcsys.server.supervisor.admission import HANDSHAKE_S, MAX_OPENINGS, MAX_WAITING
from tests.server.transcripts import Transcript, kinds, only, taken


def test_a_waiting_client_that_leaves_is_forgotten(direct):
    for conn in (1, 2, 3, 4):
        direct.visit(conn)
    assert direct.say(ev.HungUp, 3) == [do.Drop(3)]
    direct.say(ev.HungUp, 1)
    direct.say(ev.ChildReady, 3)
    assert [action.conn for action in only(direct.bury(1), do.Start)] == [4]


def test_only_so_many_wait(direct):
    for conn in range(MAX_WAITING + 2):
        direct.visit(conn)
    assert direct.visit(999) == [do.Refuse(999, "mismatch")]


@pytest.mark.parametrize(
    ("fields", "how"),
    [
        ({"key": "other"}, "mismatch"),
        ({"session": "rpcsys/9"}, "version"),
        ({"serve": "x", "session": None}, "version"),
    ],
)
def test_refused(direct, fields, how):
    assert direct.visit(1, **fields) == [do.Refuse(1, how)]


def test_a_module_where_nothing_is_deployed(direct):
    (away,) = direct.visit(1, serve="resnet")
    assert (away.conn, away.kind, away.fresh) == (1, "ServerRefused", True)
    assert "start it with --deploy" in away.text


def test_a_server_is_no_client(direct):
    direct.say(ev.Accepted, 1, "peer")
    assert direct.say(ev.Opened, 1, "peer", "server", "k") == [do.Refuse(1, "mismatch")]


def test_tvm_clients_only_where_they_can_be_served():
    script = Transcript(tvm=False)
    script.boot()
    assert script.visit(1, session=None) == [do.Refuse(1, "mismatch")]
    assert kinds(script.visit(2)) == [do.Start]


def test_half_a_greeting_and_silence(direct):
    direct.say(ev.Accepted, 1, "peer")
    assert direct.tick(HANDSHAKE_S - 0.1) == []
    assert direct.tick(0.2) == [do.Drop(1)]


def test_garbage_is_dropped_with_a_line(direct):
    direct.say(ev.Accepted, 1, "peer")
    assert direct.say(ev.Broken, 1, "not the opening of a session") == [do.Drop(1)]
    assert "connection from peer dropped: not the opening of a session" in direct.logged()


def test_of_too_many_strangers_the_oldest_goes(direct):
    for conn in range(MAX_OPENINGS):
        assert direct.say(ev.Accepted, conn, "peer") == []
    assert direct.say(ev.Accepted, MAX_OPENINGS, "peer") == [do.Drop(0)]


def test_a_client_faster_than_the_trackers_word_is_held_back(tracked):
    assert tracked.visit(5, "k:1") == []
    started, report = taken(tracked, limit_s=30.0)
    assert (started.lease, started.limit_s) == ("L1", 30.0)
    assert report == do.ReportStart("L1", 1, "peer5")


def test_but_not_for_long(tracked):
    tracked.visit(5, "k:1")
    (started,) = tracked.tick(3)
    assert started.lease is None
    assert taken(tracked) == [do.ReportStart("L1", 1, "peer5")]


def test_nor_when_the_tracker_is_gone(tracked):
    tracked.visit(5, "k:1")
    assert kinds(tracked.say(ev.LinkDown, "gone")) == [do.Start]


def test_clients_of_a_board_that_is_not_clean_are_turned_away():
    script = Transcript(slots=1)
    script.boot()
    script.visit(1)
    script.visit(2)
    script.say(ev.ChildDead, 1, 0)
    assert script.say(ev.Removed, 1, (), ("/tmp/x",)) == [do.Refuse(2, "mismatch")]
    assert script.visit(3) == [do.Refuse(3, "mismatch")]
    script.replay()
