"""The admission of clients, as transcripts of a whole server."""

from __future__ import annotations

import pytest

from rpcsys.link.openings import EACH, MOMENT_S, OPENING_S
from rpcsys.server.supervisor import actions as do
from rpcsys.server.supervisor import events as ev
from rpcsys.server.supervisor.admission import MAX_OPENINGS, MAX_WAITING
from tests.server.transcripts import NAME, SEED, WHOLE, Transcript, kinds, only, pinned_server, taken


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
    assert direct.tick(OPENING_S - 0.1) == []
    assert direct.tick(0.2) == [do.Drop(1)]


def test_an_invalid_opening_is_dropped_and_logged(direct):
    direct.post(ev.Accepted, 1, "peer")
    assert direct.post(ev.Broken, 1, "not the opening of a session") == [do.Drop(1)]
    assert "connection from peer dropped: not the opening of a session" in direct.logged()


def test_one_opening_too_many_drops_the_oldest_of_the_address_with_the_most(direct):
    direct.post(ev.Accepted, 0, "10.0.0.1:50000")
    for conn in range(1, MAX_OPENINGS):
        assert direct.post(ev.Accepted, conn, f"10.0.0.2:{conn}") == []
    assert direct.post(ev.Accepted, MAX_OPENINGS, "10.0.0.3:1") == [do.Drop(1)]
    assert direct.state.admission.unauthorized == {"crowd": 1}


def test_an_address_has_sixteen_openings_that_last(direct):
    for conn in range(EACH + 5):
        direct.post(ev.Accepted, conn, f"2001:db8::{conn}:1")
    direct.post(ev.Accepted, 99, "2001:db8:0:1::1:1")
    assert direct.tick(MOMENT_S + 0.1) == [do.Drop(conn) for conn in range(EACH, EACH + 5)]
    assert len(direct.tick(OPENING_S)) == EACH + 1
    assert direct.state.admission.unauthorized == {"silent": EACH + 6}


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


# ---------------------------------------------------------------- encrypted sessions


@pytest.fixture
def pinned():
    """A server in a lab, with one slot and one match key."""
    script = pinned_server()
    yield script
    script.replay()


@pytest.fixture
def standing():
    script = Transcript(pinned=True, standing=WHOLE, standing_seed=SEED, slots=2)
    script.boot()
    yield script
    script.replay()


@pytest.mark.parametrize("said", ["k", f"k:t1-{'2f' * 32}", NAME + "-", "k:1"])
def test_only_the_public_name_of_an_offered_key_is_admitted(pinned, said):
    taken(pinned, WHOLE)
    assert pinned.greet(5, said) == [do.Refuse(5, "mismatch")]
    assert kinds(pinned.greet(6, NAME)) == [do.Start, do.ReportStart]
    assert pinned.greet(7, NAME) == [do.Refuse(7, "mismatch")]


def test_a_whole_key_in_the_clear_is_refused_and_void(pinned):
    taken(pinned, WHOLE)
    actions = pinned.greet(5, WHOLE)
    assert only(actions, do.Refuse) == [do.Refuse(5, "mismatch")]
    assert only(actions, do.ReportEnd) == [do.ReportEnd("L1", 1, "unused")]
    assert pinned.greet(6, NAME)[:1] == [do.Refuse(6, "mismatch")]


def test_a_whole_key_in_the_clear_is_admitted_where_the_tracker_says_so(pinned):
    taken(pinned, WHOLE, plain=True)
    (start, *_) = pinned.greet(5, WHOLE)
    assert (type(start), start.pinned, start.seed) == (do.Start, "", "")


@pytest.mark.parametrize(("session", "refusal"), [("rpcsys/1", do.TurnAway), (None, do.Refuse)])
@pytest.mark.parametrize("plain", [True, False])
def test_one_that_is_faster_than_the_trackers_word_waits_for_it(pinned, plain, session, refusal):
    assert pinned.greet(5, WHOLE, session=session) == []
    actions = taken(pinned, WHOLE, plain=plain)
    assert (do.Start in kinds(actions), refusal in kinds(actions)) == (plain, not plain)
    assert pinned.state.admission.unauthorized["clear"] == (0 if plain else 1)
    assert only(actions, do.ReportEnd) == ([] if plain else [do.ReportEnd("L1", 1, "unused")])


def test_the_session_gets_its_private_key_and_the_server_forgets_it(pinned):
    taken(pinned, WHOLE)
    start = pinned.greet(6, NAME)[0]
    assert (start.pinned, start.seed) == (WHOLE, SEED)
    (session,) = pinned.state.slots.sessions.values()
    assert session.seed == ""
    assert not pinned.state.offers.keys


def test_an_attempt_that_proves_nothing_ends_as_unused_and_the_board_offers_anew(pinned):
    taken(pinned, WHOLE)
    pinned.greet(6, NAME)
    pinned.post(ev.ChildDone, 1, "unused")
    actions = pinned.child_dies(1)
    assert only(actions, do.Finish) == [do.Finish(1, 6, pinned=WHOLE)]
    assert only(actions, do.ReportEnd) == [do.ReportEnd("L1", 1, "unused")]
    assert only(actions, do.Offer) == [do.Offer()]


def test_what_the_greeting_in_the_clear_says_beside_the_name_counts_for_nothing(pinned):
    taken(pinned, WHOLE)
    assert pinned.greet(6, NAME, timeout_s=1.0)[0].limit_s is None


@pytest.mark.parametrize("said", [NAME, "k"])
def test_clear_sessions_are_refused(standing, pinned, said):
    for script in (standing, pinned):
        assert script.greet(1, "k", session=None)[0] == do.Refuse(1, "mismatch")
        away = script.greet(2, said, serve="net")[0]
        assert (away.kind, away.fresh) == ("ServerRefused", True)
        assert away.text.startswith("this server serves encrypted connections only")


def test_a_standing_key_serves_many(standing):
    assert [kinds(standing.greet(conn, NAME)) for conn in (1, 2)] == [[do.Start], [do.Start]]
    starts = [action for _, actions in standing.log for action in only(actions, do.Start)]
    assert {(start.pinned, start.seed) for start in starts} == {(WHOLE, SEED)}
    for conn, said in enumerate(("k", WHOLE, "", f"k:t1-{'2f' * 32}"), 3):
        assert standing.greet(conn, said) == [do.Refuse(conn, "mismatch")]


def test_the_reason_of_an_ended_session_goes_out_as_its_last_words(standing):
    standing.greet(1, NAME)
    standing.post(ev.MemoryExceeded, 1)
    (finish,) = only(standing.child_dies(1, -9), do.Finish)
    assert finish.pinned == WHOLE


def test_no_connection_waits_under_the_plain_key():
    script = Transcript(tracked=True, pinned=True, proxies=("proxy:9090",))
    script.boot()
    script.post(ev.LinkDown, "no tracker", none=True)
    script.tick(60)
    assert not only(script.out, do.Park)
