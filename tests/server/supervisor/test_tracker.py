"""Leases and reports to trackers, as transcripts of a whole server."""

from __future__ import annotations

import pytest

from rpcsys.server.supervisor import actions as do
from rpcsys.server.supervisor import events as ev
from tests.server.deployed import ONE
from tests.server.transcripts import Transcript, only, taken

# With our tracker


def test_a_lease_from_start_to_end(tracked):
    taken(tracked, limit_s=60.0)
    started, report = tracked.greet(5, "k:1")
    assert (started.lease, started.limit_s) == ("L1", 60.0)
    assert report == do.ReportStart("L1", 1, "peer5")
    tracked.post(ev.ChildDone, 1, "closed")
    actions = tracked.child_dies(1, 0, ("sleep",))
    assert do.ReportEnd("L1", 1, "closed", ("sleep",)) in actions
    assert tracked.offers(actions) == ["k:2"]


def test_the_match_key_of_a_refused_client_is_replaced_at_once(tracked):
    taken(tracked)
    assert tracked.greet(5, "k:1", "rpcsys/9") == [do.Refuse(5, "version"), do.ReportEnd("L1", 1, "unused"), do.Offer()]


def test_the_tracker_revokes_an_unused_lease(tracked):
    taken(tracked)
    assert tracked.post(ev.LeaseRevoked, "L1", 1, "unused") == [do.ReportEnd("L1", 1, "unused"), do.Offer()]


def test_the_end_of_every_revoked_lease_is_reported(tracked):
    """The tracker may have missed an earlier report of the end."""
    for reason in ("unused", "released", "operator"):
        assert tracked.post(ev.LeaseRevoked, "L0", 1, reason) == [do.ReportEnd("L0", 1, "unused")]


def test_an_open_session_survives_the_revocation_of_an_unused_lease(tracked):
    taken(tracked)
    tracked.greet(5, "k:1")
    assert tracked.post(ev.LeaseRevoked, "L1", 1, "unused") == []


def test_the_tracker_ends_a_session(tracked):
    taken(tracked)
    tracked.greet(5, "k:1")
    assert tracked.post(ev.LeaseRevoked, "L1", 0, "operator") == [do.ReportEnd("L1", 0, "unused")]  # an older lease
    assert tracked.post(ev.LeaseRevoked, "L1", 1, "operator") == [do.Kill(1), do.Spawn(2)]
    assert do.ReportEnd("L1", 1, "ended") in tracked.child_dies(1, -9)


def test_a_server_registers_again_after_a_lost_link(tracked):
    taken(tracked)
    tracked.greet(5, "k:1")
    assert tracked.post(ev.LinkDown, "it closed the connection") == []
    tracked.post(ev.ChildDone, 1, "closed")
    tracked.child_dies(1)
    assert tracked.tick(0.2) == [do.Connect()]
    (register,) = tracked.post(ev.LinkUp, True)
    assert register == do.RegisterServer()
    assert tracked.post(ev.Registered) == [do.ReportEnd("L1", 1, "closed"), do.Offer()]
    assert tracked.logged().count("it closed the connection; trying again until it is back") == 1


def test_an_end_is_reported_until_it_is_confirmed(tracked):
    """A report sent just before a connection broke may be lost."""
    ended = do.ReportEnd("L1", 1, "unused")
    taken(tracked)
    assert ended in tracked.tick(8)
    for _ in range(2):
        tracked.post(ev.LinkDown, "reset")
        tracked.tick(5)
        tracked.post(ev.LinkUp, True)
        assert ended in tracked.post(ev.Registered)
    tracked.post(ev.EndConfirmed, "L1", 1)
    tracked.post(ev.LinkDown, "reset")
    tracked.tick(5)
    tracked.post(ev.LinkUp, True)
    assert only(tracked.post(ev.Registered), do.ReportEnd) == []


def test_withdrawing_offers_reports_their_leases():
    """They are reported on the next connection: closing this one is what withdraws the offers."""
    script = Transcript(tracked=True, slots=2)
    script.boot()
    assert script.register() == ["k:1", "k:2"]
    taken(script, "k:1", "L1")
    taken(script, "k:2", "L2")
    script.greet(5, "k:1")
    script.post(ev.ChildDone, 1, "closed")
    script.post(ev.ChildDead, 1, 0, ())
    assert do.Disconnect() in script.post(ev.Removed, 1, left=("a folder",))
    script.tick(0.2)
    script.post(ev.LinkUp, True)
    assert do.ReportEnd("L2", 1, "unused") in script.post(ev.Registered)
    script.replay()


def test_running_leases_are_in_the_registration(tracked):
    taken(tracked)
    tracked.greet(5, "k:1")
    tracked.post(ev.LinkDown, "gone", after=4.0)
    tracked.tick(0.2)
    (register,) = tracked.post(ev.LinkUp, True)
    ((lease, epoch, since),) = register.running
    assert (lease, epoch) == ("L1", 1)
    assert since == pytest.approx(4.2)


def test_a_session_that_begins_during_the_registration_is_reported(tracked):
    """The registration lacks it, and the tracker would end its lease."""
    taken(tracked)
    tracked.post(ev.LinkDown, "gone")
    tracked.tick(0.2)
    assert tracked.post(ev.LinkUp, True) == [do.RegisterServer(())]
    assert do.ReportStart("L1", 1, "peer5") not in tracked.greet(5, "k:1")
    assert tracked.post(ev.Registered) == [do.ReportStart("L1", 1, "peer5")]
    tracked.post(ev.LinkDown, "gone", after=3.0)
    tracked.tick(0.2)
    assert [lease for lease, _, _ in tracked.post(ev.LinkUp, True)[0].running] == ["L1"]
    assert tracked.post(ev.Registered) == []


# Reports of ends


def test_the_lease_of_a_tvm_session_has_the_outcome_memory(tracked):
    tracked.post(ev.KeyTaken, "L", 1, "k:1", "me", "1.2.3.4")
    tracked.greet(1, key="k:1", session=None)
    tracked.post(ev.MemoryExceeded, 1)
    (ended,) = only(tracked.child_dies(1, -9), do.ReportEnd) or only(tracked.out, do.ReportEnd)
    assert (ended.lease, ended.outcome) == ("L", "memory")


@pytest.mark.parametrize(
    ("done", "status", "outcome", "why"),
    [("", -6, "crashed", "its process was ended by SIGABRT"), ("sys.exit()", 0, "ended", "sys.exit()")],
)
def test_the_tracker_gets_the_reason_why_a_process_ended(tracked, done, status, outcome, why):
    tracked.post(ev.KeyTaken, "L", 1, "k:1", "me", "1.2.3.4")
    tracked.greet(1, key="k:1")
    tracked.post(ev.SessionOpened, 1)
    if done:
        tracked.post(ev.ChildDone, 1, outcome, (), done)
    tracked.child_dies(1, status)
    (ended,) = only(tracked.out, do.ReportEnd)
    assert (ended.outcome, ended.fault, ended.why) == (outcome, "", why)


def test_removed_objects_are_in_the_log_and_in_the_lease(tracked):
    tracked.post(ev.KeyTaken, "L", 1, "k:1", "me", "1.2.3.4")
    tracked.greet(1, key="k:1")
    tracked.post(ev.ChildDone, 1, "closed", ("/dev/shm/a",))
    tracked.post(ev.ChildDead, 1, 0, ("sh",), removed=("/dev/shm/b",))
    (ended,) = only(tracked.post(ev.Removed, 1, ("System V queue 3",)), do.ReportEnd)
    assert ended.cleaned == ("sh",)
    assert ended.removed == ("/dev/shm/a", "/dev/shm/b", "System V queue 3")
    assert any("had to be removed: /dev/shm/a, /dev/shm/b, System V" in line for line in tracked.logged())


def test_the_offers_of_a_board_that_is_not_clean_are_withdrawn():
    script = Transcript(tracked=True, slots=2)
    script.boot()
    keys = script.register()
    script.post(ev.KeyTaken, "L", 1, keys[0], "me", "1.2.3.4")
    script.greet(1, key=keys[0])
    script.post(ev.ChildDead, 1, 0)
    assert do.Disconnect() in script.post(ev.Removed, 1, (), ("/tmp/x",))
    assert script.tick(0.1) == [do.Connect()]
    script.replay()


def test_changes_of_deployed_modules_are_reported():
    script = Transcript(tracked=True, deploy=True)
    script.boot()
    script.post(ev.Catalogue, (ONE,))
    script.register()
    (report,) = only(script.out, do.ReportDeployed)
    assert report.modules == (("head", ONE.version, False, 0, 0, 0),)
    script.post(ev.ChildReady, 2)
    assert only(script.post(ev.Loaded, 2), do.ReportDeployed)[0].modules == (("head", ONE.version, True, 0, 0, 0),)
    assert only(script.tick(5.0), do.ReportDeployed) == []
