"""A tracker on a machine with the wrong time: between its runs, and while it runs."""

import sys

import pytest

from rpcsys.client import connect_tracker
from tests.live.daemons import wait_until
from tests.live.test_remembering import Load, hello, register, rows, until

DAY = 86400

WRONG = """
import sys, time
right, place = time.time, sys.argv.pop(1)
time.time = lambda: right() + float(open(place).read())
from rpcsys.tracker.__main__ import main
sys.exit(main())
"""


@pytest.fixture
def wrong(daemons, tmp_path):
    """A function that starts a tracker with its clock ``days`` ahead, and the file with that time in seconds."""
    place = tmp_path / "ahead"

    def start(days):
        place.write_text(str(days * DAY))
        flags = ("--host", "127.0.0.1", "--port", "0", "--silent", "--state-dir", str(tmp_path / "state"))
        tracker = daemons.launch("tracker", [sys.executable, "-c", WRONG, str(place), *flags])
        tracker.await_ready_line()
        return tracker

    return start, place


def live(tracker, key):
    """Make some leases and one waiting request; its ``why`` has correct times. The number of leases."""
    load = Load(tracker, key)
    wait_until(lambda: len(load.over) > 20, 60, "leases are made")
    board, holder, waiter = (register(tracker, "board", key="held"), hello(tracker, "ann"), hello(tracker, "bob"))
    board.ask([3, "held", [9090, "held:1"], None])
    holder.send({"op": "request", "id": 1, "key": "held"})
    (lease,) = until(holder, lambda m: "leases" in m)["leases"]
    waiter.send({"op": "request", "id": 1, "key": "held"})
    queued = until(waiter, lambda m: m.get("event") == "queued")
    assert all(abs(held["since_s"]) < 300 for held in queued["holders"])
    waiter.send({"op": "why", "id": 2, "request": 1})
    why = until(waiter, lambda m: m.get("id") == 2 and "event" not in m)
    assert why["ok"], why
    spent = [row["spent_s"] for row in why["why"]["queue"]]
    assert all(0 <= each < 300 for each in spent)
    with connect_tracker(tracker.address) as viewer:
        assert viewer.why("held")["waiting"] == 1
        assert viewer.summary()
    told = {"lease": lease["lease"], "epoch": lease["epoch"], "outcome": "closed"}
    board.send({"op": "lease_ended", "id": 9, **told})
    assert until(board, lambda m: isinstance(m, dict) and m.get("id") == 9)["ok"]
    for probe in (board, holder, waiter):
        probe.close()
    return load.stop()


@pytest.mark.slow
def test_a_clock_that_jumps_between_runs_loses_no_lease(wrong, tmp_path):
    start, _ = wrong
    done = 0
    for run, days in enumerate((0, 400, 0, 91, -50, 0, 91.5, 0)):
        tracker = start(days)
        done += live(tracker, f"load-{run}")
        assert tracker.terminate() == 0
        assert tracker.stderr() == ""
        (kept,) = rows(tmp_path / "state", "SELECT count(*) FROM leases WHERE key LIKE 'load-%'")[0]
        assert kept == done


def test_a_clock_that_jumps_during_a_run_changes_nothing(wrong):
    start, place = wrong
    tracker = start(0)
    for days in (400, -400, 0.001, -20_000):
        place.write_text(str(days * DAY))
        live(tracker, f"load-{days}")
    assert tracker.terminate() == 0
    assert "Traceback" not in tracker.stderr()
