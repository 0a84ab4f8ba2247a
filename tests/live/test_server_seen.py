"""A device server's metrics, HTTP pages and log."""

import json
import urllib.request

import pytest

import rpcsys
from rpcsys.client import connect_tracker
from rpcsys.errors import RpcsysError
from tests.live.daemons import free_port, wait_until


def get(port, path):
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=30) as reply:
        return reply.read().decode()


def test_metrics_count_sessions(daemons):
    port = free_port()
    server = daemons.server("rpi4", "--http-port", str(port), "--slots", "2")
    assert server.ready["http_port"] == port
    assert get(port, "/healthz") == "ok\n"
    with rpcsys.connect("127.0.0.1", server.address[1], key="rpi4") as session:
        assert session.get_function("testing.echo")(1) == 1
        now = get(port, "/metrics")
        assert 'rpcsys_server_running{key="rpi4"} 1\n' in now
        assert 'rpcsys_server_slots{key="rpi4"} 2\n' in now
    closed = 'rpcsys_server_sessions_total{key="rpi4",outcome="closed"} 1\n'
    wait_until(lambda: closed in get(port, "/metrics"), 30, "the session is counted")
    assert 'rpcsys_server_session_seconds_count{key="rpi4"} 1\n' in get(port, "/metrics")


def test_a_server_without_the_flag_has_no_port(daemons):
    assert daemons.server("rpi4").ready["http_port"] is None


@pytest.mark.parametrize("form", ["text", "json"])
def test_a_lease_can_be_followed_in_the_servers_log(daemons, form):
    tracker = daemons.tracker("--log-format", form)
    server = daemons.server("rpi4", "--log-format", form, tracker=tracker)
    with connect_tracker(tracker.address) as viewer:
        with viewer.request("rpi4") as session:
            (lease,) = (row["lease"] for row in viewer.summary()["leases"])
            session.get_function("testing.echo")(1)
        with pytest.raises(RpcsysError), viewer.request("rpi4") as session:
            session.get_function("testing.fail")("bad")
    wait_until(lambda: server.stderr().count("ended") >= 2, 30, "both are over")
    wait_until(lambda: tracker.stderr().count("over") >= 2, 30, "the tracker knows")
    lines = server.stderr().splitlines()
    if form == "text":
        assert [line for line in lines if f"lease={lease}" in line and "ended" in line]
        assert [line for line in tracker.stderr().splitlines() if f" over lease={lease}" in line]
        return
    told = [json.loads(line) for line in lines]
    (ended,) = (line for line in told if line.get("lease") == lease and line["event"] == "ended")
    assert ended["outcome"] == "closed"
    assert ended["daemon"] == "rpcsys-server"
    assert ended["message"].startswith("session ")
    assert all({"time", "level", "daemon", "message"} <= set(line) for line in told)
