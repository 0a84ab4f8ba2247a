"""Regions of a Relax module on an edge server, the rest in TVM's virtual machine and in sessions."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

import rpcsys
from rpcsys import graph, module
from rpcsys.client.deploying import Deployment
from tests import opencl_here
from tests.live import deployed
from tests.live.daemons import Daemon, Daemons
from tests.live.recording_relay import Recorded, recording

tvm = pytest.importorskip("tvm")
pytest.importorskip("onnx_ir")

import rpcsys.tvm  # noqa: E402 - it needs TVM
from tests.tvm import networks  # noqa: E402

pytestmark = pytest.mark.timeout(300)
RNG = np.random.default_rng(3)


class Network(NamedTuple):
    make: Callable[..., Any]
    pattern: tuple[str, Any]
    names: list[str]
    x: np.ndarray
    crossing: int  # the bytes of the regions' inputs and outputs


RESNET = Network(
    networks.resnet, ("block", networks.block()), ["block0", "block1"],
    RNG.standard_normal((1, 3, 32, 32)).astype("f4"), 2 * 4 * (8 * 16 * 16 + 16 * 8 * 8),
)  # fmt: skip
MLP = Network(
    networks.mlp, ("hidden", networks.hidden()), ["hidden0", "hidden1"],
    RNG.standard_normal((50, 64)).astype("f4"), 2 * 4 * (50 * 64) * 2,
)  # fmt: skip


class Edge:
    """An edge server with deployments, which can be killed, and a relay to it."""

    def __init__(self, daemons: Daemons, root: Path, relay: Recorded) -> None:
        self._daemons, self._root, self.relay = daemons, root, relay
        self.daemon: Daemon

    def deploy(self, parts: Any) -> None:
        for name, part in parts.items():
            path = self._root.parent / f"{name}.so"
            module.export_library(part, path)
            deployed.put(self._root, name, path)

    def start(self) -> None:
        self.daemon = self._daemons.server("edge", *deployed.WITH_NUMPY, "--deploy", str(self._root))
        self.relay.server = self.daemon.address

    @property
    def where(self) -> str:
        return self.relay.where


@pytest.fixture
def edge(daemons: Daemons, tmp_path: Path) -> Any:
    with recording() as relay:
        yield Edge(daemons, tmp_path / "deploy", relay)


def offload(network: Network, edge: Edge, **remote: Any) -> Any:
    return rpcsys.tvm.offload(
        network.make(), [network.pattern], remote=graph.Remote(serve="heads", address=edge.where, **remote)
    )


def machine(path: Path) -> Callable[[np.ndarray], np.ndarray]:
    """``main`` of a library in TVM's virtual machine, with TVM's own loader."""
    loaded = tvm.relax.VirtualMachine(tvm.runtime.load_module(str(path)), tvm.cpu())
    return lambda x: loaded["main"](tvm.runtime.tensor(x)).numpy()


@pytest.mark.parametrize("network", [RESNET, MLP], ids=["resnet", "mlp"])
def test_the_device_and_the_server_together_are_the_whole(
    network: Network, edge: Edge, daemons: Daemons, tmp_path: Path
) -> None:
    both = offload(network, edge)
    assert list(both.parts) == [f"heads-{name}" for name in network.names]
    edge.deploy(both.parts)
    edge.start()
    path = tmp_path / "device.so"
    module.export_library(both.device, path)
    wanted = networks.whole(network.make(), network.x)

    main = machine(path)
    np.testing.assert_allclose(main(network.x), wanted, atol=1e-4)
    assert _crossed_in(edge, lambda: main(network.x)) - network.crossing in range(200, 2000)  # two calls' heads
    board = daemons.server("board", flavour="bare")  # it has libtvm_runtime, and no Python package
    with rpcsys.connect(*board.address, key="board") as session:
        loaded = session.load_module(path)
        np.testing.assert_allclose(loaded["main"](network.x), wanted, atol=1e-4)
        assert loaded.inputs[0]["name"] == "x"
    np.testing.assert_allclose(both.device(network.x), wanted, atol=1e-4)


def test_the_devices_part_may_run_on_another_chip(edge: Edge, tmp_path: Path) -> None:
    opencl_here.load()
    target = {"kind": "opencl", "host": {"kind": "llvm"}}
    remote = graph.Remote(serve="heads", address=edge.where)
    both = rpcsys.tvm.offload(MLP.make(), [MLP.pattern], remote=remote, target=target)
    edge.deploy(both.parts)
    edge.start()
    module.export_library(both.device, tmp_path / "device.so")
    device = tvm.device("opencl", 0)
    loaded = tvm.relax.VirtualMachine(tvm.runtime.load_module(str(tmp_path / "device.so")), [device, tvm.cpu()])
    made = loaded["main"](tvm.runtime.tensor(MLP.x, device)).numpy()
    np.testing.assert_allclose(made, networks.whole(MLP.make(), MLP.x), atol=1e-4)


def _crossed_in(edge: Edge, call: Callable[[], Any]) -> int:
    """The bytes that cross to the server and back in a call."""
    before = len(edge.relay.said)
    call()
    return len(edge.relay.said) - before


def test_the_constants_of_a_region_stay_on_the_server(edge: Edge, tmp_path: Path) -> None:
    both = offload(MLP, edge)
    module.export_library(both.device, tmp_path / "device.so")
    constant = np.random.default_rng(1).standard_normal((64, 64)) / 8  # the first that `mlp` draws from seed 1
    assert constant.astype("f4").tobytes() not in (tmp_path / "device.so").read_bytes()
    part = both.parts["heads-hidden0"]
    module.export_library(part, tmp_path / "part.so")
    assert constant.astype("f4").tobytes() in (tmp_path / "part.so").read_bytes()


def test_a_region_is_replaced_under_load_and_no_call_fails(edge: Edge, tmp_path: Path) -> None:
    both = offload(MLP, edge)
    edge.deploy(both.parts)
    edge.start()
    other = rpcsys.tvm.offload(
        networks.mlp((7, 2)), [MLP.pattern], remote=graph.Remote(serve="heads", address=edge.where)
    )
    module.export_library(other.parts["heads-hidden0"], tmp_path / "newer.so")
    module.export_library(both.device, tmp_path / "device.so")
    old, new = (networks.whole(networks.mlp(seeds), MLP.x) for seeds in ((1, 2), (7, 2)))
    assert np.abs(old - new).max() > 0.01

    main, stop, results, failed = machine(tmp_path / "device.so"), threading.Event(), [], []

    def call() -> None:
        try:
            while not stop.is_set():
                results.append(main(MLP.x))
        except Exception as error:
            failed.append(error)

    thread = threading.Thread(target=call)
    thread.start()
    while not results and not failed:
        stop.wait(0.01)
    with Deployment(edge.daemon.where) as deployment:
        for name in ("newer.so", "heads-hidden0.so", "newer.so"):
            deployment.put(tmp_path / name, "heads-hidden0")
    last = len(results)
    while len(results) < last + 3 and not failed:
        stop.wait(0.01)
    stop.set()
    thread.join()
    assert not failed
    newer = [_is_newer(result, old, new) for result in results]
    assert (newer[0], newer[-1]) == (False, True)


def _is_newer(result: np.ndarray, old: np.ndarray, new: np.ndarray) -> bool:
    """Whether a result is the new one; it is one of both."""
    found = [np.abs(result - each).max() < 1e-4 for each in (old, new)]
    assert any(found)
    return found[1]


def test_a_server_that_is_gone_is_named_in_tvms_error_and_the_fallback_runs(edge: Edge, tmp_path: Path) -> None:
    wanted = networks.whole(MLP.make(), MLP.x)
    plain, prepared = offload(MLP, edge, wait_s=1.0), offload(MLP, edge, fallback="tvm")
    edge.deploy(plain.parts)
    edge.start()
    module.export_library(plain.device, tmp_path / "plain.so")
    module.export_library(prepared.device, tmp_path / "prepared.so")
    mains = [machine(tmp_path / f"{name}.so") for name in ("plain", "prepared")]
    for main in mains:
        np.testing.assert_allclose(main(MLP.x), wanted, atol=1e-4)
    edge.daemon.destroy()
    with pytest.raises(RuntimeError, match=re.escape(edge.where)) as caught:
        mains[0](MLP.x)
    assert "\n" not in str(caught.value)
    np.testing.assert_allclose(mains[1](MLP.x), wanted, atol=1e-4)


def test_each_region_has_its_server_and_encodings(edge: Edge) -> None:
    made = networks.mlp()
    name = offload(MLP, edge).parts["heads-hidden0"].inputs[0]["name"]
    pair = (lambda array: array.astype("f2"), lambda array: array.astype("f4"))
    remotes = {
        "hidden0": graph.Remote(serve="first", address=edge.where, encode={name: pair, "output": pair}),
        "hidden1": graph.Remote(serve="second", address=edge.where, encode="float16"),
    }
    both = rpcsys.tvm.offload(made, [MLP.pattern], remote=remotes)
    edge.deploy(both.parts)
    edge.start()
    wanted = networks.whole(made, MLP.x)
    with both.device as device:
        assert 0 < np.abs(device(MLP.x) - wanted).max() < 0.02
        assert _crossed_in(edge, lambda: device(MLP.x)) - MLP.crossing // 2 in range(200, 2000)
