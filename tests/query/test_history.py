"""`query_tracker history` and `usage`, with a tracker that has a history."""

import json
import subprocess
import sys
import time

import pytest

from rpcsys.client import connect_tracker
from rpcsys.errors import TrackerError
from rpcsys.tracker.store import HistoryStore
from tests.live.conftest import daemons, way  # noqa: F401 (fixtures)
from tests.live.probe import TrackerProbe
from tests.tracker import entries

pytestmark = pytest.mark.live


def run(*arguments):
    command = [sys.executable, "-m", "rpcsys.query", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


@pytest.fixture
def remembering(daemons, tmp_path):  # noqa: F811
    """A tracker with 2,500 past leases of three users, the last of which ended just now."""
    store, now = HistoryStore(tmp_path / "state", history_days=90), time.time()
    for number in range(2500):
        user, key = ("ann", "bob", "carol")[number % 3], ("rpi4", "gpu")[number % 2]
        at = now - 10 * (2500 - number)
        lost = {"outcome": "lost", "reason": "its client vanished"} if number == 2499 else {}
        store.note(entries.over(f"x-{number}", at, user=user, key=key, held_s=6.0, since=at - 6, **lost))
    store.close()
    return daemons.tracker("--state-dir", str(tmp_path / "state"))


def test_history_as_table_and_as_json(remembering):
    address = ("--host", *remembering.address[:1], "--port", remembering.address[1])
    done = run(*address, "history", "--limit", 3)
    assert done.returncode == 0, done.stderr
    head, *rows = done.stdout.splitlines()
    assert head.split() == ["ended", "held", "waited", "key", "server", "user", "outcome", "lease"]
    assert [row.split()[-1] for row in rows] == ["x-2499", "x-2498", "x-2497"]
    assert "lost (its client vanished)" in rows[0]
    assert "ann@10.0.0.5" in rows[0]
    done = run("history", *address, "--all", "--json", "--key", "gpu", "--user", "bob")
    leases = [json.loads(line) for line in done.stdout.splitlines()]
    assert [lease["lease"] for lease in leases] == [f"x-{n}" for n in range(2499, 0, -1) if n % 6 == 1]
    done = run("history", *address, "--since", "1h", "--all", "--json")
    assert 355 <= len(done.stdout.splitlines()) <= 360
    assert run("history", *address, "--since", "2100-01-01 12:00", "--json").stdout == ""


def test_usage(remembering):
    address = ("--host", *remembering.address[:1], "--port", remembering.address[1])
    done = run("usage", *address)
    head, *rows = done.stdout.splitlines()
    assert head.split() == ["user", "key", "leases", "held", "waited", "faults"]
    assert len(rows) == 6
    done = run(*address, "usage", "--json", "--user", "ann", "--key", "rpi4")
    (row,) = json.loads(done.stdout)
    assert row["leases"] == 417
    assert row["held_s"] == pytest.approx(417 * 6.0)


def test_the_client_reads_the_history_in_pages(remembering):
    with connect_tracker(remembering.address) as tracker:
        leases = tracker.history(limit=None)
        assert [lease["lease"] for lease in leases] == [f"x-{n}" for n in range(2499, -1, -1)]
        assert len(tracker.history(limit=1001)) == 1001
        assert tracker.history(server="nobody") == []
        assert sum(row["leases"] for row in tracker.usage()) == 2500


def test_without_a_subcommand_the_summary_is_printed(remembering):
    host, port = remembering.address
    done = run("--host", host, "--port", port)
    assert done.returncode == 0
    lines = done.stdout.splitlines()
    assert lines[0] == f"Tracker address {host}:{port}"
    assert "Server List" in lines
    assert "Queue Status" in lines


@pytest.mark.parametrize(
    "arguments",
    [
        ["history", "--since", "yesterday"],
        ["history", "--limit", "0"],
        ["usage", "--since", "2026-13-01"],
        ["nonsense"],
    ],
)
def test_an_invalid_argument_is_one_line_and_status_2(arguments):
    done = run(*arguments)
    assert done.returncode == 2
    assert done.stderr.startswith("query_tracker: error: ")
    assert done.stderr.count("\n") == 1


def test_a_tracker_without_history_names_the_flag(daemons):  # noqa: F811
    tracker = daemons.tracker()
    for subcommand in "history", "usage":
        done = run("--port", tracker.address[1], subcommand)
        assert done.returncode == 1
        assert "--state-dir" in done.stderr
        assert done.stderr.count("\n") == 1


def test_tvms_tracker_has_no_history(monkeypatch, daemons):  # noqa: F811
    from rpcsys.client import listings

    link = type("Link", (), {"ours": False})()
    with pytest.raises(TrackerError, match="keeps no history"):
        next(listings.leases(link))


def test_a_lease_is_in_the_history_soon_after_its_end(daemons, tmp_path):  # noqa: F811
    tracker = daemons.tracker("--state-dir", str(tmp_path))
    with TrackerProbe(tracker.address) as server, TrackerProbe(tracker.address) as client:
        for number in range(3):
            server.ask([3, "rpi4", [9090, f"rpi4:{number}"], None])
            if number < 2:
                client.lease("rpi4")
        with connect_tracker(tracker.address) as viewer:
            end = time.monotonic() + 30
            while len(leases := viewer.history()) < 2 and time.monotonic() < end:
                time.sleep(0.05)
    assert [lease["how"] for lease in leases] == ["silent", "silent"]
    assert leases[0]["user"] == "127.0.0.1"
