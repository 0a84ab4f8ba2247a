"""A deployed module and its clients with real servers: calls, errors, shared workers."""

from __future__ import annotations

import re
import time
from pathlib import Path

import numpy as np
import pytest

import rpcsys
from rpcsys.errors import Busy, RemoteArgumentError, RemoteError, RemoteFunctionError, ServerRefused, SessionLost
from tests.live import deployed
from tests.live.daemons import START_S, Daemons


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    folder = tmp_path_factory.mktemp("served")
    root = folder / "deploy"
    deployed.put(root, "scale", deployed.library(folder / "scale.so", 2.0))
    deployed.put(root, "model", deployed.onnx_model(folder / "model.onnx", 3.0))
    daemons = Daemons(folder)
    flags = (*deployed.WITH_NUMPY, "--deploy", str(root), "--deploy-workers", "2", "--deploy-queue", "4")
    yield daemons.server("board", *flags)
    daemons.stop()


@pytest.fixture
def scale(server):
    with rpcsys.connect(*server.address, serve="scale") as scale:
        yield scale


def test_a_deployed_module_is_called_like_a_model(scale):
    assert (scale.name, scale.kind) == ("scale", "rpcsys.python")
    assert scale.version.startswith("0001-")
    assert set(scale.functions) == {"main", "nap", "seen", "pid", "fail", "keeps", "babble"}
    x = np.arange(6, dtype="float32").reshape(2, 3)
    assert np.array_equal(scale(x), x * 2)
    assert np.array_equal(scale.submit(x).result(START_S), x * 2)
    assert np.array_equal(scale["main"](x), x * 2)
    with pytest.raises(RemoteFunctionError, match="the module has no function 'mian'"):
        scale["mian"]
    with pytest.raises(RemoteError, match="a function of the module") as caught:
        scale["fail"]()
    assert caught.value.type == "KeyError"


def test_an_onnx_file_is_built_by_the_server(server):
    with rpcsys.connect(*server.address, serve="model") as model:
        assert [value["name"] for value in model.inputs] == ["x"]
        x = np.arange(5, dtype="float32")
        assert np.array_equal(model(x), x * 3)
        assert np.array_equal(model.run({"x": x}, outputs=["y"])["y"], x * 3)
        with pytest.raises(RemoteArgumentError, match="wants float32"):
            model(x.astype("float64"))


def test_small_calls_take_little_memory(scale):
    pid = scale["pid"]()
    before = peak_resident_mb(pid)
    for _ in range(4):
        with pytest.raises(RemoteArgumentError, match="as if they were sent"):
            scale(rpcsys.empty(1 << 30, "uint8"))
    assert scale["pid"]() == pid
    assert peak_resident_mb(pid) - before < 100


def peak_resident_mb(pid: int) -> float:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(re.search(r"VmHWM:\s+(\d+) kB", status)[1]) / 1024


@pytest.mark.parametrize(
    "words", [b"[" * 60000, b'{"load": [1e999, 0, 0]}', b'{"moved": "me", "greeted": false}', b"\xff", b"{}"]
)
def test_a_module_that_sends_invalid_messages_ends_only_its_host(server, words):
    with (
        rpcsys.connect(*server.address, serve="scale") as scale,
        rpcsys.connect(*server.address, serve="model") as model,
    ):
        before = scale["pid"]()
        try:
            assert scale["babble"](words) > 0
        except SessionLost:
            pass  # its host has been ended before the reply
        assert np.array_equal(model(np.ones(1, "float32")), [3.0])
    assert server.running()
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline:
        try:
            with rpcsys.connect(*server.address, serve="scale") as scale:
                assert scale(np.ones(1, "float32")) == 2.0
                assert words == b"{}" or words.startswith(b'{"moved') or scale["pid"]() != before
                return
        except (Busy, SessionLost, AssertionError):
            time.sleep(0.1)
    raise AssertionError("the module is not served again")


def test_clients_share_one_process_with_several_workers(server):
    clients = [rpcsys.connect(*server.address, serve="scale") for _ in range(4)]
    assert len({client["pid"]() for client in clients}) == 1
    naps = [client["nap"].submit(0.3) for client in clients]
    assert [nap.result(START_S) for nap in naps] == [2.0] * 4
    assert clients[0]["seen"]()["most"] == 2  # its workers
    for client in clients:
        client.close()


def test_the_calls_of_one_client_run_side_by_side(scale):
    first, second = scale["nap"].submit(4.0), scale["nap"].submit(0.05)
    assert second.result(START_S) == 2.0
    assert not first.done()
    assert first.result(START_S) == 2.0


def test_an_unknown_module_is_refused_with_the_known_ones(server):
    with pytest.raises(ServerRefused, match="no module 'scala' is deployed on this server; it has scale, …"):
        rpcsys.connect(*server.address, serve="scala")


def test_a_server_without_deployed_modules_refuses_with_advice(tmp_path):
    daemons = Daemons(tmp_path)
    try:
        plain = daemons.server("board", *deployed.FLAGS)
        with pytest.raises(ServerRefused, match="this server has no deployed modules: start it with --deploy DIR"):
            rpcsys.connect(*plain.address, serve="scale")
    finally:
        daemons.stop()
