"""Modules are deployed, replaced under load, and removed; after a kill, the old or the new one is served."""

from __future__ import annotations

import concurrent.futures
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np
import onnx
import psutil
import pytest

import rpcsys
from rpcsys.client.calls import PendingCall
from rpcsys.client.deploying import Deployment
from rpcsys.errors import (
    ModelError,
    RemoteFileError,
    RemoteFunctionError,
    RpcsysError,
    ServerRefused,
    ServerUnreachable,
    SessionError,
    SessionLost,
)
from rpcsys.wire import frames
from tests.live import deployed
from tests.live.daemons import START_S, STOP_S, Daemon, Daemons, alive, free_port, wait_until


class Edge:
    """A server with a folder of deployments, which can be restarted at its port."""

    def __init__(self, folder, *flags: str, root: Path | None = None):
        self.folder = folder
        self.root = root or folder / "deploy"
        self.port = free_port()
        self.flags = flags
        self.daemons = Daemons(folder)
        self.server: Daemon
        self.start()

    def start(self) -> None:
        flags = ("--key", "edge", *deployed.WITH_NUMPY, "--deploy", str(self.root), *self.flags)
        ours = [
            sys.executable,
            "-m",
            "rpcsys.server",
            "--host",
            "127.0.0.1",
            "--port",
            str(self.port),
            "--port-end",
            str(self.port + 1),
        ]
        self.server = self.daemons.launch("server", [*ours, *flags])
        self.server.await_ready_line()

    def library(self, factor: float):
        return deployed.library(self.folder / f"scale{factor:g}.so", factor)

    def deployment(self) -> Deployment:
        return Deployment(("127.0.0.1", self.port))

    def client(self, name: str = "scale"):
        return rpcsys.connect("127.0.0.1", self.port, serve=name)


@pytest.fixture
def edge(tmp_path):
    edge = Edge(tmp_path)
    yield edge
    edge.daemons.stop()


def test_a_module_is_deployed_listed_replaced_and_removed(edge):
    x = np.ones(3, "float32")
    with edge.deployment() as deployment:
        assert deployment.list() == []
        first = deployment.put(edge.library(2.0), "scale")
        assert first["version"].startswith("0001-")
        assert first["version"].endswith(first["sha256"][:12])
        with edge.client() as client:
            assert client.version == first["version"]
            assert np.array_equal(client(x), x * 2)
            second = deployment.put(edge.library(3.0), "scale")
            assert np.array_equal(client(x), x * 3)  # the same connection
            (row,) = deployment.list()
            assert (row["name"], row["version"], row["state"]) == ("scale", second["version"], "serving")
            wait_until(lambda: deployment.list()[0]["clients"] == 1, START_S, "its client is counted")
            assert client.version == first["version"]  # the one at the connection
            deployment.remove("scale")
            assert sorted(os.listdir(edge.root)) == ["incoming", "lock"]
            with pytest.raises(SessionLost, match="not served here any more"):
                wait_until(lambda: client(x) is None, START_S, "the connection ends")
        assert deployment.list() == []
        with pytest.raises(RemoteFileError, match="no module 'scale' is deployed here; it has nothing"):
            deployment.remove("scale")
    with pytest.raises(ServerRefused, match="nothing is deployed on this server"):
        edge.client()


def test_a_module_that_cannot_be_loaded_replaces_nothing(edge, tmp_path):
    x = np.ones(3, "float32")
    broken = tmp_path / "broken.onnx"
    broken.write_bytes(b"this is no model")
    with edge.deployment() as deployment:
        deployment.put(edge.library(2.0), "scale")
        with pytest.raises(ModelError, match="cannot be loaded"):
            deployment.put(broken, "scale")
        with pytest.raises(ModelError, match="cannot be loaded"):
            deployment.put(broken, "other")
        with pytest.raises(RemoteFileError, match="is no name for a module"):
            deployment.put(edge.library(2.0), "../scale")
        unseen = tmp_path / "right\u202eleft.onnx"
        unseen.write_bytes(b"this is no model")
        with pytest.raises(RemoteFileError, match=r"right.u202eleft.onnx.*; rename it"):
            deployment.put(unseen, "scale")
        assert [row["name"] for row in deployment.list()] == ["scale"]
        with edge.client() as client:
            assert np.array_equal(client(x), x * 2)
    assert sorted(os.listdir(edge.root / "scale")) == ["0001-" + _digest(edge.library(2.0)), "current", "lock"]


def test_a_model_is_deployed_with_its_files_which_are_cached(tmp_path):
    made = onnx.load(deployed.onnx_model(tmp_path / "whole.onnx", 2.0, 4000))
    path = tmp_path / "here" / "scale.onnx"
    path.parent.mkdir()
    onnx.save(made, path, save_as_external_data=True, location="weights", size_threshold=0)
    data = path.parent / "weights"
    edge = Edge(tmp_path, "--cache", str(tmp_path / "cache"))
    try:
        for _ in range(2):  # the second time from the cache
            command = [sys.executable, "-m", "rpcsys", "deploy", str(path), "--to", f"127.0.0.1:{edge.port}"]
            subprocess.run(command, check=True, capture_output=True, timeout=START_S)
            with edge.client() as served:
                assert np.array_equal(served(np.float32([1, 2])), np.float32([2, 4]))
        assert len(list((tmp_path / "cache" / "objects").iterdir())) == 2
        data.unlink()
        done = subprocess.run(command, capture_output=True, text=True, timeout=START_S, check=False)
        assert (done.returncode, done.stderr.count("\n")) == (2, 1)
        assert f"scale.onnx keeps weights in 'weights', and {data.parent} has no such file" in done.stderr
    finally:
        edge.daemons.stop()


def test_a_deploying_connection_can_do_nothing_else(edge):
    with edge.deployment() as deployment:
        session = deployment._session
        with pytest.raises(RemoteFunctionError, match="a connection that deploys has"):
            session.get_function("testing.echo")
        with pytest.raises(RemoteFunctionError):
            session.listdir()
        with pytest.raises(RemoteFunctionError):
            session.download("x")


def test_deployed_modules_survive_a_restart(edge):
    x = np.ones(3, "float32")
    with edge.deployment() as deployment:
        deployment.put(edge.library(2.0), "scale")
        deployment.put(edge.library(5.0), "five")
    assert edge.server.terminate() == 0
    edge.start()
    with edge.client() as scale, edge.client("five") as five:
        assert np.array_equal(scale(x), x * 2)
        assert np.array_equal(five(x), x * 5)


@pytest.mark.slow
def test_the_old_version_finishes_its_calls(edge):
    with edge.deployment() as deployment:
        deployment.put(edge.library(2.0), "scale")
        with edge.client() as client:
            long = client["nap"].submit(10.0)
            wait_until(lambda: deployment.list()[0]["running"] == 1, START_S, "the call runs")
            deployment.put(edge.library(3.0), "scale")
            with edge.client() as another:
                assert another["nap"](0.0) == 3.0
            assert not long.done()
            assert long.result(START_S) == 2.0
            assert client["nap"](0.0) == 3.0


def test_a_module_is_replaced_under_load_without_a_failed_call(edge):
    stop = threading.Event()
    x = np.ones(2000, "float32")
    answers: list[list[float]] = [[], [], [], []]

    def load(seen: list[float], pipelined: bool) -> None:
        with edge.client() as client:
            while not stop.is_set():
                if pipelined:
                    futures = [client.submit(x) for _ in range(20)]
                    seen += [float(future.result(START_S)[0]) for future in futures]
                else:
                    seen.append(float(client(x)[0]))

    with edge.deployment() as deployment:
        deployment.put(edge.library(1.0), "scale")
        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            loads = [pool.submit(load, seen, bool(number % 2)) for number, seen in enumerate(answers)]
            try:
                for factor in (2.0, 3.0, 4.0):
                    seen_before = [len(seen) for seen in answers]
                    wait_until(
                        lambda: all(len(seen) > was for seen, was in zip(answers, seen_before, strict=True)),  # noqa: B023
                        START_S,
                        "every client has answers",
                    )
                    deployment.put(edge.library(factor), "scale")
            finally:
                stop.set()
            for each in loads:
                each.result(START_S)  # raises what a call raised
    for seen in answers:
        assert seen == sorted(seen)  # never an old version after a new one
        assert seen[0] == 1.0
        assert set(seen) <= {1.0, 2.0, 3.0, 4.0}
    wait_until(lambda: len(_hosts(edge)) == 1, START_S, "the old hosts have ended")


def test_a_killed_model_host_is_restarted(edge):
    with edge.deployment() as deployment:
        deployment.put(edge.library(2.0), "scale")
    client = edge.client()
    pid = client["pid"]()
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(SessionLost):
        wait_until(lambda: client["nap"](0.0) is None, START_S, "the connection ends")
    with edge.client() as again:  # waits for the new host
        assert again["pid"]() != pid


def test_a_killed_server_leaves_no_host_and_serves_again_after_a_restart(edge):
    with edge.deployment() as deployment:
        deployment.put(edge.library(2.0), "scale")
    client = edge.client()
    pid = client["pid"]()
    edge.server.kill()
    wait_until(lambda: not alive(pid), STOP_S, "the host dies with its server")
    with pytest.raises(SessionError):
        client["nap"](0.0)
    edge.start()
    with edge.client() as again:
        assert again["nap"](0.0) == 2.0


def test_a_stopped_server_finishes_its_calls(edge):
    with edge.deployment() as deployment:
        deployment.put(edge.library(2.0), "scale")
        client = edge.client()
        nap = client["nap"].submit(4.0)
        wait_until(lambda: deployment.list()[0]["running"] == 1, START_S, "the call runs")
    edge.server.process.terminate()
    assert nap.result(START_S) == 2.0
    with pytest.raises(SessionLost, match="not served here any more"):
        wait_until(lambda: client["nap"](0.0) is None, START_S, "the connection ends")
    assert edge.server.process.wait(STOP_S) == 0


def test_a_client_that_disconnects_during_an_upload_leaves_nothing(edge):
    incoming = edge.root / "incoming"
    with edge.deployment() as deployment:
        channel = deployment._session._channel
        template, _ = frames.template(frames.CALL, {"f": "session.upload", "a": ["head.so", 10 << 20]})
        call = PendingCall()
        channel.start(call, template)
        channel.send(frames.CHUNK, call.call_id, {}, (b"x" * (1 << 20),))
        wait_until(lambda: list(incoming.glob("*/.rpcsys-*")), START_S, "a part of the file has arrived")
        channel._stream.socket.shutdown(socket.SHUT_RDWR)
    wait_until(lambda: list(incoming.iterdir()) == [], START_S, "nothing of it is left")


@pytest.mark.parametrize("flag", ["--no-fork", "--no-isolation", "--session-memory=256M"])
def test_modules_are_served_with_each_kind_of_session(tmp_path, flag):
    edge = Edge(tmp_path, flag)
    try:
        with edge.deployment() as deployment:
            deployment.put(edge.library(2.0), "scale")
        with edge.client() as client:
            assert client(np.ones(3, "float32")).tolist() == [2.0] * 3
        with rpcsys.connect("127.0.0.1", edge.port, key="edge") as session:
            assert session.get_function("testing.echo")(1) == 1
    finally:
        edge.daemons.stop()


@pytest.mark.parametrize("place", ["/tmp", "/var/tmp"])
def test_the_folder_of_deployments_can_be_in_tmp(place, tmp_path):
    """The folder does not exist when the server starts."""
    with tempfile.TemporaryDirectory(dir=place) as folder:
        edge = Edge(tmp_path, root=Path(folder, "deploy"))
        try:
            with edge.deployment() as deployment:
                deployment.put(edge.library(2.0), "scale")
            with edge.client() as client:
                assert client(np.ones(1, "float32")) == 2
        finally:
            edge.daemons.stop()


def test_a_second_server_with_the_same_folder_is_refused(edge):
    command = [sys.executable, "-m", "rpcsys.server", "--port", "0", "--deploy", str(edge.root), *deployed.FLAGS]
    done = subprocess.run(command, capture_output=True, text=True, timeout=START_S)
    assert done.returncode == 2
    assert "another server serves what is deployed there" in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


@pytest.mark.slow
def test_after_a_kill_during_a_deploy_the_old_or_the_new_module_is_served(edge):
    """The deployer or the whole server is killed, at times spread over the duration of a deploy."""
    x = np.ones(3, "float32")
    libraries = [edge.library(factor) for factor in (1.0, 2.0)]
    with edge.deployment() as deployment:
        started = time.monotonic()
        deployment.put(libraries[0], "scale")
        took = time.monotonic() - started
    for attempt in range(16):
        before = _factor(edge, x)
        wanted = libraries[int(before == 1.0)]
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            put = pool.submit(_try_to_put, edge, wanted)
            time.sleep(took * attempt / 12)
            if attempt % 2:
                edge.server.kill()
                edge.start()
            else:
                for deployer in _deployers(edge):
                    _kill(deployer)
            succeeded = put.result(START_S)
        after = _factor(edge, x)
        assert after in (1.0, 2.0)
        if succeeded:
            assert after != before
        whole = {"current", "lock"}
        assert {name for name in os.listdir(edge.root / "scale") if not name[0].isdigit()} <= {*whole, "current.new"}


def _try_to_put(edge: Edge, library) -> bool:
    try:
        with edge.deployment() as deployment:
            deployment.put(library, "scale")
    except RpcsysError:
        return False
    return True


def _factor(edge: Edge, x) -> float:
    def ask() -> float:
        try:
            with edge.client() as client:
                return float(client(x)[0])
        except (ServerUnreachable, SessionError):
            return 0.0

    return wait_until(ask, START_S, "the module is served")


def _kill(process: psutil.Process) -> None:
    try:
        process.kill()
    except psutil.NoSuchProcess:
        pass


def _hosts(edge: Edge) -> list[psutil.Process]:
    return [process for process in _below(edge) if _has(process, "/deploy/scale/")]


def _deployers(edge: Edge) -> list[psutil.Process]:
    return [process for process in _below(edge) if _has(process, "/deploy/incoming")]


def _below(edge: Edge) -> list[psutil.Process]:
    return psutil.Process(edge.server.pid).children(recursive=True)


def _has(process: psutil.Process, folder: str) -> bool:
    """Whether the working directory of a process contains ``folder``."""
    try:
        return folder in process.cwd()
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return False


def _digest(path) -> str:
    import hashlib

    return hashlib.sha256(path.read_bytes()).hexdigest()[:12]
