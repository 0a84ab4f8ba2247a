from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest

from rpcsys.errors import RpcsysError, SessionError, UsageError
from rpcsys.lab import Lab
from tests.shown_html import shown

pytestmark = pytest.mark.live

# Starts a lab, prints its pids and its folder, and waits.
HOST_PROGRAM = """
import json, sys, time
from rpcsys.lab import Lab
with Lab({"cpu": 1}) as lab:
    print(json.dumps({"pids": [d.pid for d in lab.daemons], "folder": str(lab.daemons[0].log.parent)}), flush=True)
    time.sleep(120)
"""


def alive(pid: int) -> bool:
    """Whether the process runs; a zombie does not."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"


def eventually(true: Callable[[], bool], within_s: float = 20) -> bool:
    deadline = time.monotonic() + within_s
    while not true():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def below(pid: int) -> list[int]:
    """All descendants of ``pid``."""
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="utf-8").split()
    except OSError:
        return []
    return [int(child) for child in children] + [deeper for child in children for deeper in below(int(child))]


def test_servers_run_inside_the_context_only() -> None:
    with Lab({"cpu": 2, "gpu": 1}) as lab:
        daemons = list(lab.daemons)
        with lab.connect() as tracker:
            queues = tracker.summary()["queue_info"]
        assert {key: queue["free"] for key, queue in queues.items()} == {"cpu": 2, "gpu": 1}
        assert all(alive(daemon.pid) for daemon in daemons)
        assert lab.tracker_address == ("127.0.0.1", daemons[0].port)
    assert not [daemon.name for daemon in daemons if alive(daemon.pid)]
    assert eventually(lambda: not daemons[0].log.parent.exists())


def test_a_lab_starts_again_after_close() -> None:
    lab = Lab({})
    for _ in range(2):
        lab.start()
        with pytest.raises(UsageError, match="runs already"):
            lab.start()
        lab.close()
    with pytest.raises(UsageError, match="not running"):
        _ = lab.tracker_address


def test_a_failed_start_shows_the_log_and_leaves_nothing() -> None:
    before = below(os.getpid())
    lab = Lab({"cpu": 1}, server_args=["--slots", "none"])
    with pytest.raises(RpcsysError, match=r"cpu-0 ended with exit status 2; the end of its log:\n.*--slots"):
        lab.start()
    assert lab.daemons == []
    assert set(below(os.getpid())) <= set(before)


def test_a_lab_has_servers_behind_a_proxy() -> None:
    with Lab({"cpu": 2}, proxy=True) as lab:
        tracker, proxy, *servers = lab.daemons
        assert [daemon.port > 0 for daemon in lab.daemons] == [True, True, False, False]
        with lab.connect() as client, client.request("cpu") as session:
            assert session.lease["port"] == proxy.port != tracker.port
            assert session.get_function("testing.echo")("there and back") == "there and back"
            assert client.summary()["queue_info"]["cpu"]["free"] == 1
    assert not [daemon.name for daemon in (tracker, proxy, *servers) if alive(daemon.pid)]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_lab_ends_with_its_program(number: signal.Signals) -> None:
    program = subprocess.Popen(
        [sys.executable, "-c", HOST_PROGRAM], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    try:
        assert program.stdout is not None
        lab = json.loads(program.stdout.readline())
        started = below(program.pid)
        assert set(lab["pids"]) <= set(started)
        program.send_signal(number)
        program.wait(30)
        assert eventually(lambda: not [pid for pid in started if alive(pid)])
        assert eventually(lambda: not Path(lab["folder"]).exists())
    finally:
        program.kill()
        program.wait()
        program.stdout.close()


@pytest.mark.parametrize("processes", [1, 2, 3])
def test_an_interrupted_start_leaves_no_process(processes: int) -> None:
    program = subprocess.Popen(
        [sys.executable, "-c", HOST_PROGRAM], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        assert eventually(lambda: len(below(program.pid)) >= processes)  # the guard, the tracker, the server
        started = below(program.pid)
        program.send_signal(signal.SIGINT)
        program.wait(30)
        assert eventually(lambda: not [pid for pid in started if alive(pid)])
    finally:
        program.kill()
        program.wait()


def test_closing_ends_a_session_that_is_still_open() -> None:
    with Lab({"cpu": 1}) as lab, lab.connect() as tracker:
        session = tracker.request("cpu")
        pid = session.info["pid"]
        lab.close()
        assert not alive(pid)
        with pytest.raises(SessionError):
            session.ping()
        session.close()


def test_a_lab_serves_what_is_deployed_by_the_inference_protocol(tmp_path: Path) -> None:
    from rpcsys.client.deploying import Deployment
    from tests.live.deployed import onnx_model

    with Lab({"edge": 1}, gateway=True) as lab:
        server = next(daemon for daemon in lab.daemons if daemon.name == "edge-0")
        with Deployment(("127.0.0.1", server.port)) as deployment:
            deployment.put(onnx_model(tmp_path / "scale.onnx", 2.0))
        url = "http://{}:{}/v2/models/scale".format(*lab.inference_address)
        assert eventually(lambda: called(url, [1.0, 2.5]) == [2.0, 5.0])
        assert lab.grpc_address[1] != lab.inference_address[1]
    with pytest.raises(UsageError, match="no gateway that runs"):
        _ = lab.inference_address


def called(url: str, x: list[float]) -> list[float] | None:
    """``y`` of a model of one input ``x``, FP32; None while there is no such model."""
    given = {"name": "x", "shape": [len(x)], "datatype": "FP32", "data": x}
    try:
        with urllib.request.urlopen(f"{url}/infer", json.dumps({"inputs": [given]}).encode(), timeout=20) as answer:
            found: list[float] = json.load(answer)["outputs"][0]["data"]
            return found
    except urllib.error.HTTPError as error:
        if error.code not in (404, 503):
            raise
        return None


def test_a_lab_shows_its_daemons_in_a_notebook() -> None:
    lab = Lab({"cpu": 1})
    assert (repr(lab), shown(lab).cells[:3]) == ("<lab of cpu, closed>", ["lab on this machine", "tracker", "closed"])
    with lab:
        told = shown(lab)
        assert {"tracker", "cpu-0", "{}:{}".format(*lab.tracker_address), "runs"} <= {*told.cells}
        lab.daemons[1].process.kill()
        assert eventually(lambda: "ended with status -9" in shown(lab).cells)
