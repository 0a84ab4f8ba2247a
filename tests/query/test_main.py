"""query_tracker as a process, with our tracker and TVM's."""

import json
import os
import signal
import subprocess
import sys

import pytest

from tests.live.conftest import daemons, way  # noqa: F401 (fixtures)
from tests.live.daemons import ROOT, free_port
from tests.live.probe import TrackerProbe

pytestmark = pytest.mark.live


def run(module, *arguments, env=None):
    return subprocess.run(
        [sys.executable, "-m", module, *arguments],
        capture_output=True,
        text=True,
        timeout=100,
        env={**os.environ, "PYTHONPATH": str(ROOT), **(env or {})},
    )


def query(*arguments, env=None):
    return run("rpcsys.query", *arguments, env=env)


def fill(tracker, *, colons):
    """Make a lab: two servers of one key, one of them busy, one server of another key, and waiting requests."""
    peers = [TrackerProbe(tracker.address) for _ in range(6)]
    for number, (peer, key) in enumerate(
        zip(peers, ["rpi4", "rpi4", "127.0.0.1:5" if colons else "gpu"], strict=False)
    ):
        peer.ask([5, {"key": f"server:{key}", "addr": [None, 9090 + number]}])
        peer.ask([3, key, [9090 + number, f"{key}:{number}"], None])
    peers[3].ask([4, "rpi4", "", 1])
    for peer in peers[4:]:
        peer.send([4, "a-key-that-nobody-serves", "", 1])
        peer.send([1])
        assert peer.receive() == 0
    return peers


@pytest.mark.parametrize("flavour", ["ours", "tvm"])
def test_prints_what_tvms_tool_prints(daemons, flavour):  # noqa: F811
    tracker = daemons.tracker(flavour=flavour)
    peers = fill(tracker, colons=False)
    where = ("--host", "127.0.0.1", "--port", str(tracker.address[1]))
    ours, theirs = query(*where), run("tvm.exec.query_rpc_tracker", *where)
    assert (ours.returncode, ours.stderr) == (0, "")
    assert ours.stdout == theirs.stdout
    assert "rpi4                       2      1     0      \n" in ours.stdout
    for peer in peers:
        peer.close()


def test_keys_with_colons_and_the_summary_as_json(daemons):  # noqa: F811
    tracker = daemons.tracker()
    peers = fill(tracker, colons=True)
    env = {"RPCSYS_TRACKER_HOST": "127.0.0.1", "RPCSYS_TRACKER_PORT": str(tracker.address[1])}
    assert "127.0.0.1:5                1      1     0      \n" in query(env=env).stdout
    summary = json.loads(query("--json", env=env).stdout)
    assert summary["queue_info"]["127.0.0.1:5"] == {"free": 1, "pending": 0}
    assert {"queue_info", "server_info", "servers", "leases"} == summary.keys()
    for peer in peers:
        peer.close()


@pytest.mark.parametrize("how", [[], ["--json"]])
def test_watch_prints_until_it_is_interrupted(daemons, how):  # noqa: F811
    tracker = daemons.tracker()
    process = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "rpcsys.query",
            "--port",
            str(tracker.address[1]),
            "--host",
            "127.0.0.1",
            "--watch",
            *how,
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )
    seen = 0
    for line in process.stdout:
        seen += line.startswith(("Tracker address", "{"))
        if seen == 3:
            break
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (0, "")


def test_the_trackers_address_and_json_at_either_place(daemons):  # noqa: F811
    tracker = daemons.tracker()
    peers = fill(tracker, colons=False)
    where, port = tracker.where, str(tracker.address[1])
    for arguments, env in (
        (["--tracker", where, "--json", "leases"], {}),
        (["leases", "--tracker", where, "--json"], {}),
        (["--json", "leases"], {"RPCSYS_TRACKER": where}),
        (["--host", where, "leases", "--json"], {}),
        (["--host", where, "--port", port, "leases", "--json"], {}),
        (["--host", "127.0.0.1", "--json", "leases", "--port", port], {"RPCSYS_TRACKER": "127.0.0.1:1"}),
        (["--tracker", f"127.0.0.1:1,{where}", "--json", "leases"], {}),
        (["--host", f"{where},127.0.0.1:1", "--json", "leases"], {}),
        (["--json", "leases"], {"RPCSYS_TRACKER": f"127.0.0.1:1,{where}"}),
    ):
        done = query(*arguments, env=env)
        assert (done.returncode, done.stderr) == (0, "")
        assert json.loads(done.stdout)["key"] == "rpi4"
    for peer in peers:
        peer.close()


def test_help_has_a_short_flag():
    assert query("-h").stdout == query("--help").stdout != ""
    assert "--since" in query("history", "-h").stdout


def test_no_tracker_is_one_line_and_status_1():
    done = query("--host", "127.0.0.1", "--port", str(free_port()))
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr.startswith("query_tracker: error: no tracker at 127.0.0.1:")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "env"),
    [
        (["--port", "x"], {}),
        (["--port", "0"], {}),
        (["--prot", "1"], {}),
        (["extra"], {}),
        ([], {"TVM_TRACKER_PORT": "many", "RPCSYS_TRACKER_PORT": ""}),
    ],
)
def test_bad_flags_are_one_line_and_status_2(arguments, env):
    done = query(*arguments, env=env)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1
