"""A tracker with a state directory: killed at any time, without disk space, and restarted."""

import contextlib
import json
import os
import resource
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from rpcsys.client import connect_tracker
from rpcsys.errors import WaitTimeout
from tests.live.daemons import ROOT, free_port, wait_until
from tests.live.probe import TrackerProbe
from tests.live.stored import hello, present, register, rows, until

KILLED_S = 1.0
"""The time before a kill whose leases may be lost; a busy machine adds SLACK_S."""
SLACK_S = 4.0


class Load(threading.Thread):
    """A server and a client that lease without pause; ``over``: the time of each ended lease."""

    def __init__(self, tracker, key="load"):
        super().__init__()
        self.key = key
        self.over = []
        self._halt = threading.Event()
        self._server, self._client = TrackerProbe(tracker.address), TrackerProbe(tracker.address)
        self.start()

    def run(self):
        try:
            for number in range(10**9):
                self._server.ask([3, self.key, [9090, f"{self.key}:{number}"], None])
                if number:
                    self.over.append(time.monotonic())
                if self._halt.is_set():
                    return
                self._client.lease(self.key)
        except (OSError, EOFError):
            pass  # the tracker was killed

    def stop(self):
        self._halt.set()
        self.join(60)
        self._server.close()
        self._client.close()
        return len(self.over)


# --- killed ------------------------------------------------------------------------------------


def test_a_kill_loses_at_most_a_second_of_history(daemons, tmp_path):
    state, port = tmp_path / "state", 0
    sure = done = 0
    for turn in range(6):
        tracker = daemons.tracker("--state-dir", str(state), "--silent", port=port)
        port = tracker.address[1]
        load = Load(tracker)
        wait_until(lambda load=load: len(load.over) > 50, 60, "leases are made")
        time.sleep(0.37 * turn)  # another part of the second each time
        tracker.kill()
        killed_at = time.monotonic()
        done += load.stop()
        sure += sum(at < killed_at - KILLED_S - SLACK_S for at in load.over)
        assert rows(state, "PRAGMA integrity_check") == [("ok",)]
        (kept,) = rows(state, "SELECT count(*) FROM leases WHERE outcome != 'unknown'")[0]
        assert sure <= kept <= done
    assert rows(state, "SELECT sum(leases) FROM usage") == rows(state, "SELECT count(*) FROM leases")


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_twenty_kills_lose_at_most_a_second_each(daemons, tmp_path):
    """As above, with longer loads."""
    state, port = tmp_path / "state", 0
    sure = done = 0
    for turn in range(20):
        tracker = daemons.tracker("--state-dir", str(state), "--silent", port=port)
        port = tracker.address[1]
        load = Load(tracker)
        wait_until(lambda load=load: len(load.over) > 500, 60, "leases are made")
        time.sleep(1.5 + 0.05 * turn)
        tracker.kill()
        killed_at = time.monotonic()
        done += load.stop()
        sure += sum(at < killed_at - KILLED_S - 1 for at in load.over)
        assert rows(state, "PRAGMA integrity_check") == [("ok",)]
        (kept,) = rows(state, "SELECT count(*) FROM leases WHERE outcome != 'unknown'")[0]
        assert sure <= kept <= done


def test_a_stop_loses_nothing(daemons, tmp_path):
    state = tmp_path / "state"
    tracker = daemons.tracker("--state-dir", str(state))
    load = Load(tracker)
    wait_until(lambda: len(load.over) > 20, 60, "leases are made")
    done = load.stop()
    assert tracker.terminate() == 0
    assert sorted(path.name for path in state.iterdir()) == ["lock", "tracker.sqlite"]
    assert rows(state, "SELECT count(*) FROM leases") == [(done,)]


def test_leases_queues_and_drains_survive_a_kill(daemons, tmp_path):
    state = tmp_path / "state"
    tracker = daemons.tracker("--state-dir", str(state), "--max-session", "rpi4=900")
    server, idle = register(tracker, "board"), register(tracker, "other", key="gpu")
    server.ask([3, "rpi4", [9090, "rpi4:1"], None])
    holder = hello(tracker, "holder")
    holder.send({"op": "request", "id": 1, "key": "rpi4"})
    (lease,) = until(holder, lambda m: "leases" in m)["leases"]
    server.send({"op": "lease_started", "id": 5, "lease": lease["lease"], "epoch": lease["epoch"]})
    tickets = []
    for user in ("ann", "bob", "carol"):
        client = hello(tracker, user)
        client.send({"op": "request", "id": 1, "key": "rpi4"})
        tickets.append((user, until(client, lambda m: "ticket" in m)["ticket"]))
    operator = hello(tracker, "operator")
    assert operator.ask({"op": "drain", "id": 1, "server": "other"})["ok"]
    wanted = {("granted", lease["lease"]), ("begun", lease["lease"]), ("drained", "other")}
    wanted |= {("waiting", ticket) for _, ticket in tickets}
    wait_until(lambda: wanted <= present(state), 30, "all is stored")
    tracker.kill()
    for probe in (server, idle, holder, client, operator):
        probe.close()

    again = daemons.tracker("--state-dir", str(state), "--max-session", "rpi4=900", port=tracker.address[1])
    clients = {}
    for user, ticket in reversed(tickets):  # the order of reconnection does not matter
        clients[user] = hello(again, user)
        clients[user].send({"op": "request", "id": 1, "key": "rpi4", "ticket": ticket})
    running = [{"lease": lease["lease"], "epoch": lease["epoch"], "since_s": 1.0}]
    server = register(again, "board", running=running)
    idle = register(again, "other", key="gpu")
    viewer = connect_tracker(again.address)
    summary = viewer.summary()
    (held,) = summary["leases"]
    assert (held["lease"], held["holder"], held["state"]) == (lease["lease"], "holder", "running")
    assert held["limit_s"] == 900
    states = {row["name"]: row["state"] for row in summary["servers"]}
    assert states == {"board": "ok", "other": "drained"}
    server.send({"op": "lease_ended", "id": 6, "lease": lease["lease"], "epoch": lease["epoch"], "outcome": "closed"})
    for number, (user, _) in enumerate(tickets):
        server.send([3, "rpi4", [9090, f"rpi4:next-{number}"], None])
        (next_lease,) = until(clients[user], lambda m: "leases" in m)["leases"]
        assert next_lease["matchkey"] == f"rpi4:next-{number}"
    wait_until(lambda: viewer.history(limit=1), 30, "the first lease is in the history")
    (over,) = viewer.history()
    assert (over["lease"], over["user"], over["outcome"]) == (lease["lease"], "holder", "closed")
    assert over["begun"] is not None
    viewer.close()
    idle.close()


def test_set_aside_survives_a_reconnection_and_a_restart(daemons, tmp_path):
    flags = ("--state-dir", str(tmp_path / "state"))
    tracker = daemons.tracker(*flags)
    server, client = register(tracker, "board"), hello(tracker, "ann")
    for number in range(3):
        server.send([3, "rpi4", [9090, f"rpi4:{number}"], None])
        client.send({"op": "request", "id": number, "key": "rpi4"})
        (lease,) = until(client, lambda m: "leases" in m)["leases"]
        named = {"lease": lease["lease"], "epoch": lease["epoch"]}
        ended = {"op": "lease_ended", "id": number, **named, "outcome": "crashed", "fault": "no process"}
        server.send(ended)
        until(server, lambda m, number=number: isinstance(m, dict) and m.get("id") == number and "ok" in m)

    def board(where):
        with connect_tracker(where.address) as viewer:
            (row,) = viewer.summary()["servers"]
        return row["state"], row["reason"]

    assert board(tracker) == ("set aside", "no process")
    server.close()
    wait_until(lambda: "gone server=board" in tracker.stderr(), 30, "it is gone")
    server = register(tracker, "board")
    assert board(tracker)[0] == "set aside"
    wait_until(lambda: ("set_aside", "board") in present(tmp_path / "state"), 30, "it is stored")
    tracker.kill()
    for probe in (server, client):
        probe.close()
    again = daemons.tracker(*flags, port=tracker.address[1])
    server = register(again, "board")
    assert board(again) == ("set aside", "no process")
    assert server.ask([3, "rpi4", [9090, "rpi4:next"], None]) == 0
    with connect_tracker(again.address) as mine, pytest.raises(WaitTimeout):
        mine.request("rpi4", wait_timeout=0.5)
    server.close()


def test_a_lease_with_an_unknown_end_has_the_outcome_unknown(daemons, tmp_path):
    state = tmp_path / "state"
    tracker = daemons.tracker("--state-dir", str(state))
    with TrackerProbe(tracker.address) as server, TrackerProbe(tracker.address) as client:
        server.ask([3, "rpi4", [9090, "rpi4:1"], None])
        client.lease("rpi4")
        wait_until(lambda: present(state), 30, "it is stored")
        tracker.kill()
    daemons.tracker("--state-dir", str(state))
    wait_until(lambda: rows(state, "SELECT outcome FROM leases") == [("unknown",)], 30, "it is over")
    assert {kind for kind, _ in present(state)} <= {"joined", "unheard"}


# --- second trackers, disks --------------------------------------------------------------------


def test_a_second_tracker_in_the_same_directory_is_refused_in_one_line(daemons, tmp_path):
    tracker = daemons.tracker("--state-dir", str(tmp_path / "state"))
    command = [sys.executable, "-m", "rpcsys.tracker", "--host", "127.0.0.1", "--port", "0"]
    done = subprocess.run(
        [*command, "--state-dir", str(tmp_path / "state")],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1
    assert f"in use by another tracker (process {tracker.pid})" in done.stderr
    tracker.kill()
    daemons.tracker("--state-dir", str(tmp_path / "state"))  # the lock of a killed tracker is free


@pytest.mark.open_lab("a lab's audit log tells of the full disk, too")
def test_a_file_size_limit_stops_only_history(daemons, tmp_path):
    state = tmp_path / "state"
    tracker = daemons.tracker("--state-dir", str(state), "--silent")
    first = Load(tracker)
    wait_until(lambda: rows(state, "SELECT count(*) FROM leases")[0][0] > 20, 60, "history is written")
    # The kernel refuses to extend a file, as on a full disk.
    size = max(path.stat().st_size for path in state.iterdir())
    resource.prlimit(tracker.pid, resource.RLIMIT_FSIZE, (size + 1000, resource.RLIM_INFINITY))
    wait_until(lambda: "history stops" in tracker.stderr(), 60, "history stops")
    before = len(first.over)
    wait_until(lambda: len(first.over) > before + 1000, 60, "devices are handed out all the same")
    assert tracker.stderr().count("\n") == 1
    resource.prlimit(tracker.pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    wait_until(lambda: "history goes on" in tracker.stderr(), 60, "history continues")
    done = first.stop()
    assert tracker.terminate() == 0
    assert tracker.stderr().count("\n") == 2
    assert "0 records of it are missing" in tracker.stderr()
    assert rows(state, "SELECT count(*) FROM leases") == [(done,)]
    assert rows(state, "PRAGMA integrity_check") == [("ok",)]


@pytest.fixture
def small_disk(tmp_path, daemons):
    """A tracker with its state directory on a disk of 24 MB in its own mount namespace, and the path of that disk."""
    place = tmp_path / "disk"
    place.mkdir()
    mount = f'mount -t tmpfs -o size=24m disk {place} && exec "$@"'
    apart = ["unshare", "--mount", *(["--map-root-user"] if os.getuid() else []), "sh", "-c", mount, "sh"]
    if subprocess.run([*apart, "true"], capture_output=True, timeout=30, check=False).returncode:
        pytest.skip("no right to mount here")
    command = [sys.executable, "-m", "rpcsys.tracker", "--host", "127.0.0.1", "--port", "0", "--silent"]
    tracker = daemons.launch("tracker", [*apart, *command, "--state-dir", str(place / "state")])
    tracker.await_ready_line()
    return tracker, Path(f"/proc/{tracker.pid}/root{place}")


def fill(path):
    """Fill the disk with the file ``path``."""
    with path.open("wb", buffering=0) as filler, contextlib.suppress(OSError):
        while filler.write(bytes(4096)):
            pass
    assert shutil.disk_usage(path).free == 0


def test_a_full_disk_stops_only_history(small_disk, tmp_path):
    tracker, disk = small_disk
    load = Load(tracker)
    with connect_tracker(tracker.address) as viewer:

        def written():
            return sum(row["leases"] for row in viewer.usage())

        wait_until(lambda: written() > 20, 60, "history is written")
        fill(disk / "filler")
        wait_until(lambda: "history stops" in tracker.stderr(), 60, "history stops")
        before = len(load.over)
        wait_until(lambda: len(load.over) > before + 1000, 60, "devices are handed out all the same")
        assert load.key in viewer.summary()["queue_info"]
        assert tracker.stderr().count("\n") == 1
        (disk / "filler").unlink()
        wait_until(lambda: "history goes on" in tracker.stderr(), 60, "history continues")
        done = load.stop()
        wait_until(lambda: written() == done, 30, "all of it is there")
    assert "0 records of it are missing" in tracker.stderr()
    assert tracker.stderr().count("\n") == 2
    shutil.copytree(disk / "state", tmp_path / "copy")
    assert rows(tmp_path / "copy", "PRAGMA integrity_check") == [("ok",)]
    assert rows(tmp_path / "copy", "SELECT count(*) FROM leases") == [(done,)]
    assert tracker.terminate() == 0


def test_a_tracker_starts_without_history_under_a_file_size_limit(daemons, tmp_path):
    state = tmp_path / "state"
    command = [sys.executable, "-m", "rpcsys.tracker", "--host", "127.0.0.1", "--port", "0", "--silent"]
    limited = ["sh", "-c", 'ulimit -S -f 8; exec "$@"', "sh", *command, "--state-dir", str(state)]
    tracker = daemons.launch("tracker", limited)
    tracker.await_ready_line()
    load = Load(tracker)
    wait_until(lambda: len(load.over) > 500, 60, "devices are handed out")
    assert tracker.stderr().count("\n") == 1
    assert "history stops" in tracker.stderr()
    resource.prlimit(tracker.pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    wait_until(lambda: "history goes on" in tracker.stderr(), 60, "history continues")
    done = load.stop()
    assert tracker.terminate() == 0
    assert rows(state, "SELECT count(*) FROM leases") == [(done,)]


def test_a_tracker_starts_without_history_on_a_full_disk(daemons, tmp_path):
    """It starts without history and with its stored state; history continues when there is space."""
    place = tmp_path / "disk"
    place.mkdir()
    mount = f'mount -t tmpfs -o size=4m disk {place} && exec "$@"'
    apart = ["unshare", "--mount", *(["--map-root-user"] if os.getuid() else []), "sh", "-c", mount, "sh"]
    if subprocess.run([*apart, "true"], capture_output=True, timeout=30, check=False).returncode:
        pytest.skip("no right to mount here")
    state = tmp_path / "state"
    tracker = daemons.tracker("--state-dir", str(state))
    board, operator = register(tracker, "board"), hello(tracker, "operator")
    assert operator.ask({"op": "drain", "id": 1, "server": "board"})["ok"]
    assert tracker.terminate() == 0
    fill_and_serve = f"cp -r {state} {place}/ && (cat /dev/zero >{place}/filler || true) 2>/dev/null"
    command = f"{sys.executable} -m rpcsys.tracker --host 127.0.0.1 --port 0 --silent --state-dir {place}/state"
    again = daemons.launch("tracker", [*apart, "sh", "-c", f"{fill_and_serve}; exec {command}"])
    again.await_ready_line()
    disk = Path(f"/proc/{again.pid}/root{place}")
    assert shutil.disk_usage(disk).free == 0
    board = register(again, "board")
    with connect_tracker(again.address) as viewer:
        assert [row["state"] for row in viewer.summary()["servers"]] == ["drained"]
        load = Load(again)
        wait_until(lambda: len(load.over) > 1000, 60, "devices are handed out")
        assert "history stops" in again.stderr()
        assert again.stderr().count("\n") == 1
        done = load.stop()  # its history would fill this small disk
        (disk / "filler").unlink()
        wait_until(lambda: "history goes on" in again.stderr(), 60, "history continues")
        wait_until(lambda: sum(row["leases"] for row in viewer.usage()) == done, 30, "all of it is there")
    shutil.copytree(disk / "state", tmp_path / "copy")
    assert ("drained", "board") in present(tmp_path / "copy")
    assert again.terminate() == 0
    for probe in (operator, board):
        probe.close()


# --- logs --------------------------------------------------------------------------------------


def conversation(tracker):
    """Make one lease from request to end; its id."""
    server, client = register(tracker, "board"), hello(tracker, "ann")
    client.send({"op": "request", "id": 1, "key": "rpi4"})
    until(client, lambda m: m.get("event") == "queued")
    server.ask([3, "rpi4", [9090, "rpi4:1"], None])
    (lease,) = until(client, lambda m: "leases" in m)["leases"]
    told = {"lease": lease["lease"], "epoch": lease["epoch"]}
    server.send({"op": "lease_started", "id": 5, **told, "peer": "127.0.0.1:5"})
    server.send({"op": "lease_ended", "id": 6, **told, "outcome": "crashed", "cleaned": {"processes": 2}})
    until(server, lambda m: m.get("id") == 6 and m.get("ok"))
    server.close()
    client.close()
    wait_until(lambda: "gone" in tracker.stderr(), 30, "the log is complete")
    return lease["lease"]


def test_a_lease_can_be_followed_in_the_log(daemons):
    tracker = daemons.tracker()
    lease = conversation(tracker)
    lines = [line.split(None, 5)[4:] for line in tracker.stderr().splitlines() if f"lease={lease}" in line]
    assert [line[0] for line in lines] == ["granted", "begun", "over"]
    assert "user=ann" in lines[0][1]
    assert "outcome=crashed" in lines[2][1]
    assert 'cleaned={"processes":2}' in lines[2][1]


def test_the_log_is_json_with_log_format_json(daemons):
    tracker = daemons.tracker("--log-format", "json")
    lease = conversation(tracker)
    tracker.terminate()
    told = [json.loads(line) for line in tracker.stderr().splitlines()]
    assert all({"time", "level", "daemon"} <= set(line) for line in told)
    assert [line["event"] for line in told if line.get("lease") == lease] == ["granted", "begun", "over"]
    events = [line["event"] for line in told if "event" in line]
    assert events == ["joined", "waiting", "granted", "waited", "begun", "over", "gone"]
    assert "serving on" in told[0]["message"]


def test_an_unread_log_delays_no_lease(daemons, tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDWR)
    command = [sys.executable, "-m", "rpcsys.tracker", "--host", "127.0.0.1", "--port", str(free_port())]
    tracker = daemons.launch("tracker", ["sh", "-c", 'exec "$@" 2>"$0"', str(pipe), *command])
    try:
        tracker.await_ready_line()
        load = Load(tracker)
        wait_until(lambda: len(load.over) > 1000, 60, "leases are made beyond what the pipe holds")
        load.stop()
        tracker.terminate()
    finally:
        os.close(reader)
