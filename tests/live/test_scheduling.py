"""Scheduling with real daemons: TVM's unmodified client, limits, labels, several devices, operators, health."""

from __future__ import annotations

import contextlib
import json
import os
import platform
import socket
import subprocess
import sys
import threading
import time
from importlib import metadata
from pathlib import Path

import pytest
from packaging.version import Version

import rpcsys
from rpcsys.errors import ServerRefused, ServerUnreachable, SessionError, TrackerError, UnknownKey, WaitTimeout
from tests.live.artefacts import Artefacts
from tests.live.daemons import ROOT, START_S, Daemon, Daemons, kill_all, queue, wait_free, wait_until
from tests.live.probe import TrackerProbe

END_S = 20.0
KEY = "board"


def command(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", *arguments],
        capture_output=True,
        text=True,
        timeout=100,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )


def query(tracker: Daemon, *arguments: str) -> str:
    host, port = tracker.address
    done = command("rpcsys.query", "--host", host, "--port", str(port), *arguments)
    assert (done.returncode, done.stderr) == (0, ""), done
    return done.stdout


def operate(tracker: Daemon, *arguments: str) -> subprocess.CompletedProcess[str]:
    return command("rpcsys", *arguments, "--tracker", tracker.where)


def connect(tracker: Daemon, user: str = "ann") -> rpcsys.Tracker:
    return rpcsys.connect_tracker(tracker.address, user=user)


def server_row(tracker: rpcsys.Tracker) -> dict:
    (row,) = tracker.summary()["servers"]
    return row


# --- TVM's client --------------------------------------------------------------------------------


def tvm_client(tracker: Daemon, source: str, threads: int, seconds: float) -> subprocess.Popen[str]:
    arguments = [source, str(tracker.address[1]), KEY, str(threads), "0.1", str(seconds)]
    return subprocess.Popen(
        [sys.executable, "-m", "tests.live.tvm_client_threads", *arguments],
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )


@pytest.mark.slow
def test_tvm_clients_share_fairly_by_address(daemons: Daemons, record_property):
    pytest.importorskip("tvm")
    tracker = daemons.tracker()
    daemons.server(KEY, tracker=tracker)
    users = []
    try:
        with connect(tracker, "other") as other, other.request(KEY):  # both wait before the first lease
            users = [tvm_client(tracker, "127.0.0.1", 6, 25), tvm_client(tracker, "127.0.0.2", 2, 25)]
            wait_until(lambda: queue(tracker, KEY)["pending"] == 8, 60, "all to wait")
        counts = [int(user.communicate(timeout=90)[0].split()[-1]) for user in users]
    finally:
        kill_all(user.pid for user in users)
    record_property("sessions of six threads from .1 and of two from .2", counts)
    assert min(counts) > 5
    assert max(counts) <= 1.35 * min(counts), "the user with more requests had more sessions"


def test_a_killed_tvm_client_leaves_no_request(daemons: Daemons):
    pytest.importorskip("tvm")
    tracker = daemons.tracker()
    daemons.server(KEY, tracker=tracker)
    with connect(tracker) as mine, mine.request(KEY):
        user = tvm_client(tracker, "127.0.0.2", 3, 60)
        try:
            wait_until(lambda: queue(tracker, KEY)["pending"] == 3, 60, "its requests to wait")
        finally:
            user.kill()
            user.wait()
        wait_until(lambda: queue(tracker, KEY)["pending"] == 0, 5, "its requests to be gone")
    wait_free(tracker, KEY, 1, 10)
    with connect(tracker) as mine, mine.request(KEY, wait_timeout=5) as session:
        assert session.get_function("testing.echo")(1) == 1


@pytest.mark.parametrize("flavour", ["ours", "ctypes"])
def test_a_limit_by_key_ends_a_tvm_session_with_its_own_error(daemons: Daemons, artefacts: Artefacts, flavour: str):
    rpc = pytest.importorskip("tvm.rpc")
    tracker = daemons.tracker("--max-session", f"{KEY}=3", "--max-session", "other=1")
    daemons.server(KEY, tracker=tracker, flavour=flavour)
    began = time.monotonic()
    remote = rpc.connect_tracker(*tracker.address).request(KEY)  # without a limit of its own
    (lease,) = connect(tracker).leases()
    assert (lease["limit_s"], lease["holder"]) == (3, "127.0.0.1")
    remote.upload(str(artefacts.session_faults))
    nap = remote.load_module(artefacts.session_faults.name)["nap"]
    with pytest.raises(Exception, match=r"time limit of 3 s .*--max-session") as caught:
        nap()
    assert type(caught.value).__name__ == "RPCSessionTimeoutError"
    assert 2 < time.monotonic() - began < 15
    del remote, nap, caught
    wait_free(tracker, KEY, 1, 10)


def test_leases_of_tvms_own_server_have_no_limit(daemons: Daemons):
    rpc = pytest.importorskip("tvm.rpc")
    tracker = daemons.tracker("--max-session", f"{KEY}=3")
    daemons.server(KEY, tracker=tracker, flavour="tvm")
    mine = connect(tracker)
    remote = rpc.connect_tracker(*tracker.address).request(KEY)
    (lease,) = mine.leases()
    assert (lease["state"], lease["limit_s"], lease["until_s"]) == ("silent", None, None)
    assert server_row(mine)["limits"] is False
    assert "cannot be limited" in query(tracker, "leases")
    refused = operate(tracker, "lease", "end", lease["lease"])
    assert (refused.returncode, refused.stdout) == (1, "")
    assert "TVM's own" in refused.stderr
    del remote
    wait_until(lambda: mine.leases() == [], END_S, "the lease to end with the next offer")
    mine.close()


# --- our client ------------------------------------------------------------------------------------


def test_labels_select_one_board_or_boards_of_a_kind(daemons: Daemons):
    tracker = daemons.tracker()
    for offers, name in enumerate(("one", "two"), start=1):
        flags = ("--name", name, "--label", f"rev={offers}", "--tvm", "off")
        daemons.server(KEY, *flags, tracker=tracker, offers=offers)
    with connect(tracker) as mine:
        with mine.request(KEY, labels={"name": "two"}) as session:
            assert session.lease["server"] == "two"
            with pytest.raises(WaitTimeout):
                mine.request(labels={"rev": "2"}, wait_timeout=0.2)
            with mine.request(labels={"rev": "1", "cores": ">=1", "arch": os.uname().machine}) as other:
                assert other.lease["server"] == "one"
        with pytest.raises(UnknownKey, match="rev=3"):
            mine.request(KEY, labels={"rev": "3"}, wait_timeout=10)


def test_versions_select_boards(daemons: Daemons, tmp_path: Path):
    """They are those of a session's own environment, and stand in labels, in the session's info and in tables."""
    folder = tmp_path / "older"
    (folder / "tvm").mkdir(parents=True)
    (folder / "tvm" / "__init__.py").touch()
    (folder / "apache_tvm-0.9.1.dist-info").mkdir()
    older = {**os.environ, "PYTHONPATH": f"{folder}{os.pathsep}{ROOT}"}
    tracker = daemons.tracker()
    new = ("--name", "new", "--tvm", "off", "--label", "driver=535.129.03")
    daemons.server(KEY, *new, tracker=tracker, offers=1)
    old = ("--name", "old", "--tvm", "off", *(word for n in range(24) for word in ("--label", f"l{n}=x")))
    daemons.server(KEY, *old, tracker=tracker, offers=2, env=older)
    here = {"python": platform.python_version(), "kernel": os.uname().release, "numpy": metadata.version("numpy")}
    with connect(tracker) as mine:
        for labels, name in (
            ({"tvm": ">=0.22"}, "new"),
            ({"tvm": "<0.22", "python": ">=3.8"}, "old"),
            ({"tvm": "=0.9.*"}, "old"),
            ({"driver": ">=535.54"}, "new"),
        ):
            with mine.request(labels=labels, wait_timeout=END_S) as session:
                assert session.lease["server"] == name
                found = session.info["capabilities"]["versions"]
            rows = {row["name"]: row["labels"] for row in mine.summary()["servers"]}
            assert {**here, "tvm": found["tvm"]}.items() <= rows[name].items() & found.items()
            assert Version(found["tvm"]) < Version("0.22") if name == "old" else Version(found["tvm"]) > Version("0.22")
        with pytest.raises(UnknownKey, match=r"no server is 'board' with tvm>=9; there are tvm=0\.\S+, tvm=0\.9\.1"):
            mine.request(KEY, labels={"tvm": ">=9"}, wait_timeout=10)
        with pytest.raises(TrackerError, match="which is no number and no version"):
            mine.request(KEY, labels={"tvm": ">=new"}, wait_timeout=10)
    table = [line.split() for line in query(tracker).partition("\nVersions\n")[2].splitlines()]
    place = table[0].index("tvm")
    assert [(row[0], row[place]) for row in table[1:]] == [("new", metadata.version("apache-tvm")), ("old", "0.9.1")]


def test_several_devices_are_granted_together_or_not_at_all(daemons: Daemons):
    tracker = daemons.tracker()
    daemons.server(KEY, "--slots", "2", "--tvm", "off", tracker=tracker, offers=2)
    with connect(tracker) as mine:
        pair = mine.request(KEY, count=2)
        assert len({session.lease["lease"] for session in pair}) == 2
        assert [session.get_function("testing.echo")(n) for n, session in enumerate(pair)] == [0, 1]
        pair[0].close()
        wait_free(tracker, KEY, 1, END_S)
        with pytest.raises(WaitTimeout):
            mine.request(KEY, count=2, wait_timeout=0.3)
        with mine.request(KEY, wait_timeout=5):
            pass
        pair[1].close()


def test_a_lease_is_renewed_and_ended_by_an_operator(daemons: Daemons):
    tracker = daemons.tracker("--max-session", f"{KEY}=60")
    daemons.server(KEY, "--tvm", "off", tracker=tracker)
    with connect(tracker) as mine:
        session = mine.request(KEY, session_timeout=2)
        assert mine.renew(session, 8) == pytest.approx(8, abs=2)
        deadline = time.monotonic() + 4
        while time.monotonic() < deadline:  # twice its first limit
            session.get_function("testing.sleep")(0.2)
        assert mine.renew(session, 1000) == 60, "the key's limit holds"
        with daemons.as_other(tracker), pytest.raises(TrackerError):
            connect(tracker, "bob").renew(session, 10)
        name = session.lease["lease"]
        shown = [json.loads(line) for line in query(tracker, "leases", "--json").splitlines()]
        assert [(row["lease"], row["holder"]) for row in shown] == [(name, "ann")]
        assert operate(tracker, "lease", "end", name, "--reason", "maintenance").returncode == 0
        with pytest.raises(SessionError):
            session.get_function("testing.sleep")(20.0)
        wait_until(lambda: mine.leases() == [], END_S, "the lease to end")
        assert operate(tracker, "lease", "end", name).returncode == 1


def test_why_names_the_holder_and_the_time_left(daemons: Daemons):
    tracker = daemons.tracker("--max-session", f"{KEY}=600")
    daemons.server(KEY, "--name", "desk", "--tvm", "off", tracker=tracker)
    told: list[dict] = []
    with daemons.as_other(tracker):
        other = connect(tracker, "bob")
        held = other.request(KEY)
    with other, connect(tracker) as mine:
        with pytest.raises(WaitTimeout, match=r"taken by bob$"):
            mine.request(KEY, wait_timeout=0.2, on_queued=told.append)
        (holder,) = told[0]["holders"]
        assert (told[0]["position"], holder["user"], told[0]["eta_s"]) == (1, "bob", None)
        assert 590 < holder["until_s"] <= 600
        text = query(tracker, "--why", KEY)
        assert "1 of 1 devices are taken" in text
        assert "bob@127.0.0.1" in text
        assert mine.why(KEY)["holders"][0]["server"] == "desk"
        held.close()


def test_ctrl_c_leaves_the_queue_at_once(daemons: Daemons):
    tracker = daemons.tracker()
    daemons.server(KEY, "--tvm", "off", tracker=tracker)
    code = f"import rpcsys; rpcsys.connect_tracker({tracker.address!r}).request({KEY!r})"
    with connect(tracker) as mine, mine.request(KEY):
        waiting = subprocess.Popen(
            [sys.executable, "-c", code], stderr=subprocess.DEVNULL, env={**os.environ, "PYTHONPATH": str(ROOT)}
        )
        try:
            wait_until(lambda: queue(tracker, KEY)["pending"] == 1, END_S, "it to wait")
            waiting.send_signal(2)
            wait_until(lambda: queue(tracker, KEY)["pending"] == 0, 5, "it to be gone")
        finally:
            waiting.kill()
            waiting.wait()


def test_a_drained_server_gets_no_new_lease(daemons: Daemons):
    tracker = daemons.tracker()
    daemons.server(KEY, "--name", "desk", "--tvm", "off", tracker=tracker)
    with connect(tracker) as mine:
        name = server_row(mine)["name"]
        session = mine.request(KEY)
        assert operate(tracker, "drain", name).returncode == 0
        assert session.get_function("testing.echo")(1) == 1
        session.close()
        wait_until(lambda: server_row(mine)["running"] == 0, END_S, "the session to end")
        assert server_row(mine)["state"] == "drained"
        with pytest.raises(WaitTimeout, match=rf"{name} is drained by .*: type rpcsys enable {name}$"):
            mine.request(KEY, wait_timeout=0.5)
        assert operate(tracker, "enable", name).returncode == 0
        mine.request(KEY, wait_timeout=END_S).close()
        wrong = operate(tracker, "drain", "dask")
        assert (wrong.returncode, wrong.stdout) == (1, "")
        assert "desk" in wrong.stderr


# --- health ----------------------------------------------------------------------------------------


def test_a_failed_health_check_stops_offers_until_the_recovery(daemons: Daemons, tmp_path):
    tracker = daemons.tracker()
    fit, power = tmp_path / "fit", tmp_path / "power"
    daemons.server(
        KEY,
        *("--health-check", f"test -e {fit} || {{ echo the camera is gone; exit 3; }}"),
        *("--recover", f"if test -e {power}; then touch {fit}; fi"),
        *("--tvm", "off"),
        tracker=tracker,
        offers=0,
    )
    with connect(tracker) as mine:
        wait_until(
            lambda: [row["state"] for row in mine.summary()["servers"]] == ["unhealthy"],
            START_S,
            "the server to report it",
        )
        assert "status 3: the camera is gone" in server_row(mine)["reason"]
        assert "the camera is gone" in query(tracker, "--why", KEY)
        with pytest.raises(WaitTimeout, match=r"is unhealthy: .*the camera is gone"):
            mine.request(KEY, wait_timeout=0.3)
        power.touch()
        mine.request(KEY, wait_timeout=60).close()
        assert server_row(mine)["state"] == "ok"
        fit.unlink()  # the health check runs after each session
        mine.request(KEY, wait_timeout=60).close()


@pytest.mark.open_lab("its server is scripted, and offers match keys that are not pinned")
def test_a_server_whose_sessions_fail_is_set_aside(daemons: Daemons):
    """The server accepts connections and opens no session."""
    tracker = daemons.tracker()
    with socket.create_server(("127.0.0.1", 0)) as listener, TrackerProbe(tracker.address) as probe:
        port = listener.getsockname()[1]
        probe.ask([1, {"op": "hello", "version": "0"}])
        probe.ask({"op": "register", "id": 1, "key": KEY, "name": "bad", "port": port})
        for number in range(5):
            assert probe.ask([3, KEY, [port, f"{KEY}:{number}"], None]) == 0
        threading.Thread(target=refuse_all, args=(listener, probe), daemon=True).start()
        with connect(tracker) as mine:
            with pytest.raises((ServerRefused, ServerUnreachable)):
                mine.request(KEY)
            row = server_row(mine)
            assert (row["state"], row["free"]) == ("set aside", 0)
            assert "could not open a session" in row["reason"]
            daemons.server(KEY, "--tvm", "off", tracker=tracker)
            mine.request(KEY, wait_timeout=5).close()


def refuse_all(listener: socket.socket, probe: TrackerProbe) -> None:
    """Confirm each lease, so that its reported problem counts, and close its client's connection."""
    with contextlib.suppress(OSError, EOFError):
        while True:
            with listener.accept()[0]:
                op = ""
                while op != "taken":
                    message = probe.receive()
                    op = message.get("op", "")
                    probe.send({"id": message["id"], "ok": True})
