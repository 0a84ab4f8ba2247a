"""A whole closed lab in one call: what works, and who is kept out."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import numpy as np
import pytest

import rpcsys
from rpcsys import errors, secure_lab, serve
from rpcsys.graph import samples
from rpcsys.lab import Lab
from rpcsys.link import credential
from tests.live.daemons import ROOT, wait_until
from tests.live.deployed import onnx_model
from tests.live.probe import KEEPERS, MISMATCH, SESSION_MAGIC, LabProbe, SessionProbe, TrackerProbe

pytestmark = pytest.mark.live


@pytest.fixture(scope="module", params=[False, True], ids=["direct", "proxied"])
def lab(request):
    with Lab({"rpi4": 2}, proxy=request.param, secure=True, server_args=["--tvm", "off", "--allow-exec"]) as lab:
        KEEPERS[lab.tracker_address[1]] = credential.read(lab.environment["RPCSYS_LAB"]).token
        yield lab


def test_a_device_is_leased_and_used_inside_tls(lab):
    with lab.connect() as tracker, tracker.request("rpi4", wait_timeout=30) as session:
        assert ":t1-" in session.lease["matchkey"]
        array = np.arange(1 << 20, dtype=np.float32)
        there = session.array(array)
        assert np.array_equal(there.numpy(), array)
        session.upload(b"marker" * 1000, "file.bin")
        assert session.download("file.bin") == b"marker" * 1000
        (lease,) = tracker.leases()
        assert (lease["holder"], lease["server"][:5]) == ("keeper", "rpi4-")


def test_programs_run_inside_tls_with_a_terminal_and_without(lab):
    data = os.urandom(8 << 20)
    with lab.connect() as tracker, tracker.request("rpi4", wait_timeout=30) as session:
        assert session.exec(["cat"], stdin=data).stdout == data
        with session.popen(["stty", "size"], terminal=(30, 90)) as process:
            assert process.stdout.read() == b"30 90\r\n"


def test_two_devices_at_once(lab):
    with lab.connect() as tracker:
        sessions = tracker.request("rpi4", count=2, wait_timeout=30)
        assert len({session.lease["matchkey"] for session in sessions}) == 2
        for session in sessions:
            session.close()


def test_another_process_comes_in_with_the_labs_environment(lab):
    command = [sys.executable, "-m", "rpcsys", "query", "--tracker", "{}:{}".format(*lab.tracker_address)]
    own = {**os.environ, "PYTHONPATH": str(ROOT)}
    outside = subprocess.run(command, capture_output=True, text=True, timeout=60, env=own)
    assert outside.returncode == 4
    assert "wants credentials" in outside.stderr
    inside = subprocess.run(command, capture_output=True, text=True, timeout=60, env={**own, **lab.environment})
    assert (inside.returncode, "rpi4" in inside.stdout) == (0, True), inside.stderr


def test_a_stranger_gets_neither_a_lease_nor_a_session(lab):
    with TrackerProbe(lab.tracker_address) as probe:
        assert probe.ask([4, "rpi4", "ann", 1])[0] == -1
    server = next(daemon for daemon in lab.daemons if daemon.name in ("proxy", "rpi4-0"))
    with pytest.raises(errors.RpcsysError):
        rpcsys.connect("127.0.0.1", server.port, key="rpi4", timeout=3)


def test_a_match_key_in_the_clear_is_no_right_to_its_session(lab):
    """Neither the whole match key nor its public name opens a session that is not encrypted."""
    with lab.connect() as tracker, tracker.request("rpi4", wait_timeout=30) as session:
        host, port = session.lease["host"], session.lease["port"]
        used = session.lease["matchkey"]
        with pytest.raises(errors.RpcsysError):
            rpcsys.connect(host, port, key=used, timeout=3)


def test_the_keepers_credential_is_forgotten_with_the_lab():
    with Lab({}, secure=True) as lab:
        address = lab.tracker_address
        KEEPERS[address[1]] = credential.read(lab.environment["RPCSYS_LAB"]).token
        assert credential.for_tracker(*address).member == "keeper"
        assert set(lab.environment) == {"RPCSYS_LAB"}
    assert credential.for_tracker(*address) is None
    assert lab.environment == {}


def test_an_open_lab_has_no_credentials():
    with Lab({}) as lab:
        assert lab.environment == {}


GUEST = """
[tvm]
from = ["127.0.0.0/8"]
[[allow]]
who = ["tvm"]
keys = ["*"]
[[allow]]
who = ["keepers"]
keys = ["rpi4"]
code = false
rights = ["see"]
"""


@pytest.fixture
def ruled():
    """A lab whose keeper may load models only, and which lets TVM's clients of this machine in."""
    with Lab({"rpi4": 1}, secure=True, server_args=["--allow-pickle"]) as lab:
        KEEPERS[lab.tracker_address[1]] = credential.read(lab.environment["RPCSYS_LAB"]).token
        folder = os.path.dirname(lab.environment["RPCSYS_LAB"])
        with open(os.path.join(folder, "lab", "policy.toml"), "w") as file:
            file.write(GUEST)
        yield lab


def refused(lab) -> str:
    """Why a library is not loaded; empty while the former rules hold."""
    with lab.connect() as tracker, tracker.request("rpi4", wait_timeout=30) as session:
        session.upload(b"\x7fELF", "model.so")
        try:
            session.load_module("model.so")
        except errors.RpcsysError as error:
            return str(error) if "code = false" in str(error) else ""
    return ""


def test_who_may_load_models_only_loads_no_code(ruled):
    wait_until(lambda: refused(ruled), 20, "the rules hold")
    with ruled.connect() as tracker, tracker.request("rpi4", wait_timeout=30) as session:
        with pytest.raises(errors.RpcsysError, match=r"code = false"):
            session.run(len, [1])
        session.upload(samples.light_model("squeezenet").SerializeToString(), "model.onnx")
        assert session.load_module("model.onnx").inputs


def test_tvms_client_of_an_allowed_network_comes_in_the_clear(ruled):
    def leased():
        with TrackerProbe(ruled.tracker_address) as probe:
            code, place = probe.ask([4, "rpi4", "ann", 1])
            if code != 0:
                return None
            with SessionProbe(tuple(place[:2]), place[2]) as session:
                return session.code

    assert wait_until(leased, 20, "the rules hold") == SESSION_MAGIC


def test_a_secret_that_was_said_in_the_clear_is_void(lab):
    with LabProbe(lab.tracker_address) as probe:
        probe.hello(KEEPERS[lab.tracker_address[1]])
        probe.send({"op": "request", "id": 1, "key": "rpi4"})
        answer = {}
        while "leases" not in answer:
            answer = probe.receive()
        (lease,) = answer["leases"]
        place = (lease["host"], lease["port"])
        for said in (lease["matchkey"], lease["matchkey"].rpartition("-")[0]):
            with SessionProbe(place, said, "-session=rpcsys/1") as session:
                assert session.code == MISMATCH or session.ended()


def test_a_port_that_is_held_is_nobody_elses_and_a_daemons_by_its_number():
    with secure_lab.hold_port("127.0.0.1") as held, contextlib.ExitStack() as stack:
        port = held.getsockname()[1]
        others = [stack.enter_context(serve.bind("127.0.0.1", 0, 1)) for _ in range(500)]
        assert port not in {other.getsockname()[1] for other in others}
        for _ in range(2):  # also when it starts again
            with serve.bind("127.0.0.1", port, port + 1) as listener:
                with socket.create_connection(("127.0.0.1", port)) as client:
                    assert listener.accept()[0].getpeername() == client.getsockname()
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port))


def infer(lab: Lab) -> list[float]:
    """Two times [1, 2.5], by the model ``scale`` at the lab's gateway, once it serves that."""
    url = "http://{}:{}/v2/models/scale/infer".format(*lab.inference_address)
    given = {"name": "x", "shape": [2], "datatype": "FP32", "data": [1.0, 2.5]}

    def answered() -> list[float]:
        try:
            with urllib.request.urlopen(url, json.dumps({"inputs": [given]}).encode(), timeout=60) as answer:
                found: list[float] = json.load(answer)["outputs"][0]["data"]
                return found
        except urllib.error.HTTPError as error:
            if error.code not in (404, 503):  # unknown, and not connected yet
                raise
            return []

    return wait_until(answered, 60, "the gateway serves it")


def test_a_gateway_leases_boards_as_a_member(tmp_path: Path) -> None:
    file = onnx_model(tmp_path / "scale.onnx", 2.0)
    with Lab({"edge": 1}, secure=True, gateway=True, gateway_args=["--pool", f"scale=edge:{file}"]) as lab:
        assert infer(lab) == [2.0, 5.0]
        with lab.connect() as tracker:
            (lease,) = tracker.summary()["leases"]
        assert lease["holder"] == "keeper"


def test_a_gateway_serves_deployed_modules_as_a_member(tmp_path: Path) -> None:
    file = onnx_model(tmp_path / "scale.onnx", 2.0)
    options = ["--deploy", str(tmp_path / "deployed")]
    with Lab({"edge": 1}, secure=True, gateway=True, server_args=options) as lab, lab.connect() as tracker:
        (server,) = tracker.summary()["servers"]
        with tracker.deployment(server["name"]) as deployment:
            deployment.put(file, "scale")
        assert infer(lab) == [2.0, 5.0]
