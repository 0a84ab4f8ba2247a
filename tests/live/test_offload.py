"""A part of a model on an edge server: called, encoded, lost, run locally as a fallback, and found again."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rpcsys
from rpcsys import graph, module
from rpcsys.client.deploying import Deployment
from rpcsys.errors import Busy, ServerUnreachable, UnknownKey
from rpcsys.module.kinds.remote import RemoteFunctionModule
from tests.graph.running import make, node, numbers, run, values
from tests.live import deployed
from tests.live.daemons import START_S, Daemon, Daemons, free_port, wait_until

FEEDS = {"image": numbers(1, 3, 8, 8)}
FLAGS = ("--deploy-workers", "2", "--deploy-queue", "4")


@pytest.fixture
def stages() -> graph.Stages:
    """A convolution here, a Tanh there, a Neg here."""
    weights = {"w": numbers(4, 3, 3, 3, seed=1), "b": numbers(4, seed=2)}
    nodes = [
        node("Conv", "image w b", "features", name="conv"),
        node("Tanh", "features", "bent", name="bend"),
        node("Neg", "bent", "y", name="tail"),
    ]
    network = make(nodes, values("image", shape=(1, 3, 8, 8)), values("y", shape=(1, 4, 6, 6)), weights=weights)
    return graph.split(network, ["bend", "tail"])


def expected(stages: graph.Stages) -> Any:
    made: dict[str, Any] = dict(FEEDS)
    for stage in stages:
        made.update(run(stage.model, made))
    return made["y"]


class Edge:
    """An edge server with deployments that can be killed and restarted at its address."""

    def __init__(self, daemons: Daemons, root: Path) -> None:
        self._daemons = daemons
        self._root = root
        self.port = free_port()
        self.where = f"127.0.0.1:{self.port}"
        self._daemon: Daemon | None = None

    def start(self, *more: str) -> None:
        flags = (*deployed.WITH_NUMPY, "--deploy", str(self._root), *FLAGS, *more)
        self._daemon = self._daemons.server("edge", *flags, port=self.port)

    def kill(self) -> None:
        """Kill all its processes at once, as a power cut does."""
        assert self._daemon is not None
        self._daemon.destroy()

    def deploy(self, name: str, part: module.Module) -> None:
        path = self._root.parent / f"{name}.so"
        module.export_library(part, path)
        deployed.put(self._root, name, path)


@pytest.fixture
def edge(daemons: Daemons, tmp_path: Path) -> Edge:
    return Edge(daemons, tmp_path / "deploy")


def remote_of(device: module.Module) -> RemoteFunctionModule:
    (found,) = (part for part in module.walk(device) if isinstance(part, RemoteFunctionModule))
    return found


def test_a_part_is_deployed_and_called_from_a_library(stages: graph.Stages, edge: Edge, tmp_path: Path) -> None:
    remote = graph.Remote(serve="head", address=edge.where, encode={"features": "float16", "bent": "int8+zlib"})
    both = graph.offload(stages, {"stage1": remote})
    edge.deploy("head", both.parts["stage1"])
    edge.start()
    module.export_library(both.device, tmp_path / "device.so")
    with module.load_module(tmp_path / "device.so") as device:
        for _ in range(3):
            np.testing.assert_allclose(device.run(FEEDS)["y"], expected(stages), atol=0.01)
        told = remote_of(device).figures()
        assert (told.calls, told.here, told.opened) == (3, 0, 1)
        assert told.inputs["features"].sent * 2 == told.inputs["features"].bytes == 3 * 4 * 36 * 4


def test_a_pair_of_functions_decodes_in_the_deployed_library(stages: graph.Stages, edge: Edge) -> None:
    pair = (lambda array: array.astype("f2"), lambda array: array.astype("f4"))
    remote = graph.Remote(serve="head", address=edge.where, encode={"features": pair, "bent": pair})
    both = graph.offload(stages, {"stage1": remote})
    edge.deploy("head", both.parts["stage1"])
    edge.start()
    with both.device as device:
        np.testing.assert_allclose(device.run(FEEDS)["y"], expected(stages), atol=0.01)


def test_a_stage_is_deployed_as_onnx_and_built_by_the_server(stages: graph.Stages, edge: Edge, tmp_path: Path) -> None:
    stages["stage1"].save(tmp_path / "head.onnx")
    deployed.put(tmp_path / "deploy", "head", tmp_path / "head.onnx")
    edge.start()
    remote = graph.Remote(serve="head", address=edge.where, encode={"features": "zlib", "bent": "float16"})
    with graph.build(stages, {"stage1": remote}) as device:
        np.testing.assert_allclose(device.run(FEEDS)["y"], expected(stages), atol=0.01)


def test_a_part_is_replaced_without_a_change_on_the_device(stages: graph.Stages, edge: Edge, tmp_path: Path) -> None:
    both = graph.offload(stages, {"stage1": graph.Remote(serve="head", address=edge.where)})
    edge.deploy("head", both.parts["stage1"])
    edge.start()
    nodes = [node("Sigmoid", "features", "bent")]
    other = make(nodes, values("features", shape=(1, 4, 6, 6)), values("bent", shape=(1, 4, 6, 6)))
    module.export_library(graph.build(graph.split(other, [])), tmp_path / "other.so")
    with both.device as device:
        np.testing.assert_allclose(device.run(FEEDS)["y"], expected(stages), atol=1e-5)
        with Deployment(edge.where) as deployment:
            deployment.put(tmp_path / "other.so", "head")
        features = run(stages["stage0"].model, FEEDS)["features"]
        np.testing.assert_allclose(device.run(FEEDS)["y"], -1 / (1 + np.exp(-features)), atol=1e-5)
        assert remote_of(device).figures().opened == 1


def test_clients_recover_when_the_server_restarts(edge: Edge) -> None:
    edge.deploy("scale", module.python(deployed.functions(2.0)))
    edge.start()
    clients = [module.remote(serve="scale", address=edge.where) for _ in range(3)]
    x = np.arange(1000, dtype="f4")
    for client in clients:
        assert np.array_equal(client(x), 2 * x)
    stop, failed = threading.Event(), []

    def call(client: RemoteFunctionModule) -> None:
        while not stop.is_set():
            try:
                assert np.array_equal(client(x), 2 * x)
            except Exception as error:
                failed.append(error)
                return

    threads = [threading.Thread(target=call, args=(client,)) for client in clients]
    for thread in threads:
        thread.start()
    for round_ in (2, 3):
        edge.kill()
        edge.start()
        wait_until(
            lambda n=round_: all(c.figures().opened >= n for c in clients) or failed, START_S, "all have reconnected"
        )
    stop.set()
    for thread in threads:
        thread.join(START_S)
    assert failed == []
    for client in clients:
        client.close()


def test_with_a_fallback_the_part_runs_locally_until_the_server_returns(stages: graph.Stages, edge: Edge) -> None:
    remote = graph.Remote(serve="head", address=edge.where, fallback="onnxruntime")
    both = graph.offload(stages, {"stage1": remote})
    edge.deploy("head", both.parts["stage1"])
    edge.start()
    with both.device as device:
        far = remote_of(device)

        def answers() -> bool:
            """Whether the server ran the next frame; its output is always correct."""
            before = far.figures().here
            np.testing.assert_allclose(device.run(FEEDS)["y"], expected(stages), atol=1e-5)
            return far.figures().here == before

        wait_until(answers, START_S, "the server answers")
        edge.kill()
        assert not answers()
        assert not answers()
        edge.start()
        wait_until(answers, START_S, "it returns to the server")


@pytest.mark.parametrize("fallback", ["onnxruntime", None])
def test_frames_in_flight_survive_a_killed_server(stages: graph.Stages, edge: Edge, fallback: str | None) -> None:
    """They wait until the server is back, or run locally; all outputs are correct."""
    both = graph.offload(stages, {"stage1": graph.Remote(serve="head", address=edge.where, fallback=fallback)})
    edge.deploy("head", both.parts["stage1"])
    edge.start()
    images = [{"image": numbers(1, 3, 8, 8, seed=number)} for number in range(60)]
    whole = graph.build(stages)
    with both.device as device, graph.Pipeline(device) as pipeline:
        futures = []
        for number, frame in enumerate(images):
            if number == 20:
                edge.kill()
                edge.start()
            futures.append(pipeline.submit(frame))
        for frame, future in zip(images, futures, strict=True):
            np.testing.assert_allclose(future.result(START_S)["y"], whole.run(frame)["y"], atol=1e-5)
        told = remote_of(device).figures()
        assert told.calls == 60
        assert told.opened == 2 or (fallback and told.here)


def test_a_refused_call_is_repeated_until_the_queue_has_space(edge: Edge) -> None:
    """Twenty calls at once for two workers and four places in the queue."""
    edge.deploy("scale", module.python(deployed.functions(2.0)))
    edge.start()
    with module.remote("nap", serve="scale", address=edge.where) as nap:
        naps = [nap.submit(0.05) for _ in range(20)]
        assert [future.result(START_S) for future in naps] == [2.0] * 20
        assert nap.figures().refused > 0
        assert nap.figures().opened == 1
    with module.remote("nap", serve="scale", address=edge.where, wait_s=0.2) as hasty:
        naps = [hasty.submit(0.5) for _ in range(12)]
        assert any(isinstance(future.exception(START_S), Busy) for future in naps)


def test_an_unknown_server_is_an_error_at_once(edge: Edge) -> None:
    with module.remote(serve="head", address=edge.where) as missing:
        with pytest.raises(ServerUnreachable):
            missing(1)


def test_the_tracker_finds_another_server_when_one_is_lost(daemons: Daemons, tmp_path: Path) -> None:
    tracker = daemons.tracker()
    edges = [Edge(daemons, tmp_path / name / "deploy") for name in ("a", "b")]
    for edge in edges:
        (tmp_path / ("a" if edge is edges[0] else "b")).mkdir()
        edge.deploy("scale", module.python(deployed.functions(2.0)))
        edge.start("--tracker", tracker.where)
    with rpcsys.connect_tracker(tracker.where) as known:
        wait_until(lambda: len(known.resolve("scale")) == 2, START_S, "the tracker knows both")
    by_port = {edge.port: edge for edge in edges}
    with module.remote(serve="scale", tracker=tracker.where) as scale:
        assert scale(3) == 6
        first = scale._server.current.where
        by_port[int(first.partition(" ")[0].rpartition(":")[2])].kill()
        assert scale(4) == 8
        assert scale._server.current.where != first
    with pytest.raises(UnknownKey, match="no such"):
        module.remote(serve="no such", tracker=tracker.where)(1)
