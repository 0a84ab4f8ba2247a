"""For each way to end a lease, log and history have the reason."""

from __future__ import annotations

import contextlib
import subprocess
import sys

import pytest

import rpcsys
from rpcsys.errors import RpcsysError, SessionLost
from tests.live.daemons import ROOT, wait_free, wait_until

KEY = "board"
ASK = """
import sys, time, rpcsys
session = rpcsys.connect_tracker(sys.argv[1], user="ann").request("board")
print("there", flush=True)
time.sleep(600)
"""


def vanished(tracker, session):
    with subprocess.Popen(
        [sys.executable, "-c", ASK, tracker.where], stdout=subprocess.PIPE, cwd=ROOT, text=True
    ) as other:
        try:
            assert other.stdout.readline() == "there\n"
        finally:
            other.kill()


def closed(tracker, session):
    session().close()


def out_of_time(tracker, session):
    with contextlib.suppress(RpcsysError):
        session(session_timeout=1).get_function("testing.sleep")(60.0)


def crashed(tracker, session):
    with pytest.raises(SessionLost, match="the session is over: its process was ended by SIGSEGV"):
        session().get_function("fault.crash")()


def left(tracker, session):
    with pytest.raises(SessionLost, match="its process ended with exit status 3"):
        session().get_function("fault.leave")()


def ended(tracker, session):
    mine = session()
    command = ("lease", "end", mine.lease["lease"], "--reason", "maintenance", "--tracker", tracker.where)
    subprocess.run([sys.executable, "-m", "rpcsys", *command], check=True, cwd=ROOT, timeout=60)
    with pytest.raises(SessionLost, match="ended it: maintenance"):  # the holder is sent the reason
        mine.get_function("testing.sleep")(30.0)


ENDS = {
    vanished: ("lost", "its client is gone"),
    closed: ("closed", "its client closed it"),
    out_of_time: ("timeout", "its time was over"),
    crashed: ("crashed", "its process was ended by SIGSEGV"),
    left: ("crashed", "its process ended with exit status 3"),
    ended: ("ended", "ended it: maintenance"),
}


@pytest.mark.parametrize("end", ENDS, ids=lambda end: end.__name__)
def test_log_and_history_have_the_reason(daemons, tmp_path, end):
    tracker = daemons.tracker("--state-dir", str(tmp_path / "state"))
    flags = ("--tvm", "off", "--import", "tests.live.session_faults", "--grace", "1")
    daemons.server(KEY, *flags, tracker=tracker)
    with rpcsys.connect_tracker(tracker.address, user="ann") as mine:
        end(tracker, lambda **fields: mine.request(KEY, **fields))
        wait_until(mine.history, 30, "the lease to be over")
        (told,) = mine.history()
        outcome, reason = ENDS[end]
        assert (told["outcome"], told["user"], told["key"]) == (outcome, "ann", KEY)
        assert reason in told["reason"]
        assert not told["fault"]
        wait_until(lambda: " over lease=" in tracker.stderr(), 30, "the log has it")
        (line,) = [line for line in tracker.stderr().splitlines() if f" over lease={told['lease']} " in line]
        assert f"outcome={outcome}" in line
        assert reason in line
        wait_free(tracker, KEY, 1, 30)


@pytest.mark.slow
def test_a_killed_server_is_the_reason(daemons, tmp_path):
    tracker = daemons.tracker("--state-dir", str(tmp_path / "state"))
    server = daemons.server(KEY, "--tvm", "off", tracker=tracker)
    with rpcsys.connect_tracker(tracker.address, user="ann") as mine:
        session = mine.request(KEY)
        server.kill()
        wait_until(mine.history, 40, "the lease to be over")
        (told,) = mine.history()
        assert told["outcome"] == "lost"
        assert told["reason"] == f"its server {session.lease['server']} has been gone for 10 s"
        wait_until(lambda: " over lease=" in tracker.stderr(), 30, "the log has it")
