"""Parts of graphs on an inference server, over HTTP and gRPC: on a gateway of ours, and on an MLServer."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from examples.mask_rcnn import CUT, mask_rcnn
from rpcsys import graph, module
from rpcsys.errors import DeadlineExceeded, RemoteArgumentError, RemoteFunctionError, ServerUnreachable
from rpcsys.graph import samples
from rpcsys.module.kinds.remote import RemoteFunctionModule
from tests.live import deployed, gateways
from tests.live.daemons import START_S, Daemon, Daemons, free_port, wait_until
from tests.live.emulated import MACHINES
from tests.live.mlservers import MLServer
from tests.native import bare, lay_out

SQUEEZE = ("r9", "r40")  # the region between two of squeezenet's tensors
ATOL = 1e-4
#: A board's program: calls a model at the URL with 64 float32 and prints the answer.
CALL = """
import array, json
from rpcsys import module
with module.remote(sys.argv[1]) as far:
    y = far(array.array("f", range(64)))
print(json.dumps({"y": memoryview(y.data).cast("B").cast("f").tolist(), "loaded": sorted(sys.modules)}))
"""


def remote_of(device: module.Module) -> RemoteFunctionModule:
    (found,) = (part for part in module.walk(device) if isinstance(part, RemoteFunctionModule))
    return found


class OurGateway:
    """A gateway of ours and the server behind it, with the surface of `MLServer`."""

    def __init__(self, daemons: Daemons, folder: Path, models: dict[str, Path]) -> None:
        self._daemons = daemons
        self._root = folder / "deploy"
        folder.mkdir()
        for name, path in models.items():
            deployed.put(self._root, name, path)
        self._port, self._grpc_port = free_port(), free_port()
        self._running: list[Daemon] = []

    def http(self, name: str) -> str:
        return f"http://127.0.0.1:{self._port}/v2/models/{name}"

    def grpc(self, name: str) -> str:
        return f"grpc://127.0.0.1:{self._grpc_port}/{name}"

    def start(self) -> None:
        server = self._daemons.server("edge", *deployed.WITH_NUMPY, "--deploy", str(self._root))
        flags = ("--server", server.where, "--grpc-port", str(self._grpc_port))
        gateway = self._daemons.gateway(*flags, *(f"--module={path.name}" for path in self._modules()), port=self._port)
        gateways.wait_ready(gateway)
        self._running = [gateway, server]

    def _modules(self) -> list[Path]:
        return [path for path in self._root.iterdir() if (path / "current").exists()]

    def kill(self) -> None:
        for each in self._running:
            each.destroy()


Start = Callable[[dict[str, Path]], Any]


@pytest.fixture(params=["gateway", pytest.param("mlserver", marks=[pytest.mark.slow, pytest.mark.timeout(600)])])
def start(request: pytest.FixtureRequest, daemons: Daemons, tmp_path: Path) -> Start:
    """Starts an inference server with models."""

    def started(models: dict[str, Path]) -> OurGateway | MLServer:
        made = {"gateway": OurGateway, "mlserver": MLServer}[request.param](daemons, tmp_path / "models", models)
        made.start()
        return made

    return started


@pytest.fixture(params=["http", "grpc"])
def transport(request: pytest.FixtureRequest) -> str:
    return request.param


# --- one call ---------------------------------------------------------------------------------------


def test_a_model_is_called_by_its_url(start: Start, transport: str, tmp_path: Path) -> None:
    server = start({"simple": gateways.simple(tmp_path / "simple.onnx")})
    first, second = (array for _, array in gateways.numbers(rows=3).values())
    with module.remote(getattr(server, transport)("simple")) as far:
        for _ in range(3):
            added, subtracted = far(first, second)
            assert np.array_equal(added, first + second)
            assert np.array_equal(subtracted, first - second)
        assert (far.figures().calls, far.figures().opened) == (3, 1)


def test_many_calls_are_under_way(start: Start, transport: str, tmp_path: Path) -> None:
    server = start({"simple": gateways.simple(tmp_path / "simple.onnx")})
    with module.remote(getattr(server, transport)("simple")) as far:
        arrays = [array.astype("i4") for array in np.arange(32 * 40).reshape(40, 2, 1, 16)]
        calls = [far.submit(first, second) for first, second in arrays]
        for (first, second), call in zip(arrays, calls, strict=True):
            assert np.array_equal(call.result(START_S)[0], first + second)


def test_what_the_server_does_not_have_is_told(start: Start, transport: str, tmp_path: Path) -> None:
    server = start({"simple": gateways.simple(tmp_path / "simple.onnx")})
    url = getattr(server, transport)("nobody")
    with module.remote(url) as far, pytest.raises(RemoteFunctionError, match="nobody"):
        far(np.ones(3, "f4"))


def test_a_server_that_is_not_there_is_told(transport: str) -> None:
    port = free_port()
    url = f"http://127.0.0.1:{port}/v2/models/m" if transport == "http" else f"grpc://127.0.0.1:{port}/m"
    with module.remote(url) as far, pytest.raises(ServerUnreachable, match=str(port)):
        far(np.ones(3, "f4"))


def test_arguments_that_do_not_fit_are_refused(daemons: Daemons, transport: str, tmp_path: Path) -> None:
    server = OurGateway(daemons, tmp_path / "models", {"simple": gateways.simple(tmp_path / "simple.onnx")})
    server.start()
    with module.remote(getattr(server, transport)("simple")) as far, pytest.raises(RemoteArgumentError, match="INPUT0"):
        far(np.ones((1, 17), "i4"), np.ones((1, 16), "i4"))


def test_a_deadline_ends_a_call(daemons: Daemons, transport: str, tmp_path: Path) -> None:
    server = OurGateway(daemons, tmp_path / "models", {"endless": deployed.endless_model(tmp_path / "endless.onnx")})
    server.start()
    with module.remote(getattr(server, transport)("endless"), deadline_s=0.5) as far:
        with pytest.raises(DeadlineExceeded):
            far(np.array(10**12))
        assert far(np.array(4)) == 4


def test_another_server_is_tried_where_one_is_gone(daemons: Daemons, transport: str, tmp_path: Path) -> None:
    servers = []
    for name in ("a", "b"):
        models = {"simple": gateways.simple(tmp_path / "simple.onnx")}
        servers.append(OurGateway(daemons, tmp_path / name, models))
        servers[-1].start()
    urls = " ".join(getattr(server, transport)("simple") for server in servers)
    first, second = (array for _, array in gateways.numbers().values())
    with module.remote(urls) as far:
        for server in servers[:1]:
            assert np.array_equal(far(first, second)[0], first + second)
            server.kill()
        assert np.array_equal(far(first, second)[0], first + second)
        assert far.figures().opened == 2


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_an_mlserver_takes_no_binary_arrays_over_http_and_the_log_says_so(
    daemons: Daemons, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    server = MLServer(daemons, tmp_path / "models", {"simple": gateways.simple(tmp_path / "simple.onnx")})
    server.start()
    first, second = (array for _, array in gateways.numbers().values())
    with caplog.at_level(logging.WARNING), module.remote(server.http("simple")) as far:
        for _ in range(2):
            assert np.array_equal(far(first, second)[0], first + second)
    (line,) = [record.getMessage() for record in caplog.records if "binary" in record.getMessage()]
    assert "arrays go as JSON" in line
    assert "grpc://" in line


# --- a part of a graph --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def squeezenet() -> graph.Stages:
    return graph.split(samples.light_model("squeezenet", 1), [*SQUEEZE])


@pytest.fixture(scope="module")
def mask() -> graph.Stages:
    return graph.split(mask_rcnn(size=128, proposals=16, width=0.125), [CUT])


def feeds_of(stages: graph.Stages, seed: int) -> dict[str, np.ndarray]:
    specs = [{"name": each.name, "dtype": each.dtype, "shape": list(each.shape)} for each in stages.inputs]
    made = samples.random_inputs(specs, seed)
    if "image" in made:
        made["image"] = np.random.default_rng(seed).integers(0, 256, made["image"].shape, np.uint8)
    return made


def same(found: dict[str, Any], expected: dict[str, Any], atol: float = ATOL) -> None:
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, atol=atol, rtol=1e-3, err_msg=name)


@pytest.mark.parametrize("network", ["squeezenet", pytest.param("mask", marks=pytest.mark.slow)])
def test_a_part_of_a_network_runs_there_in_a_pipeline(
    start: Start, transport: str, network: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    stages: graph.Stages = request.getfixturevalue(network)
    stages["stage1"].save(tmp_path / "part.onnx")
    server = start({"part": tmp_path / "part.onnx"})
    frames = [feeds_of(stages, seed) for seed in range(8)]
    with graph.build(stages) as whole:
        expected = [whole.run(frame) for frame in frames]
    device = graph.build(stages, {"stage1": graph.Remote(getattr(server, transport)("part"))})
    module.export_library(device, tmp_path / "device.so")
    with module.load_module(tmp_path / "device.so") as loaded, graph.Pipeline(loaded) as pipeline:
        for found, wanted in zip(pipeline.run(frames), expected, strict=True):
            same(found, wanted)
        assert remote_of(loaded).figures().calls == len(frames)


def test_it_runs_here_while_the_server_is_gone(
    start: Start, transport: str, squeezenet: graph.Stages, tmp_path: Path
) -> None:
    squeezenet["stage1"].save(tmp_path / "part.onnx")
    server = start({"part": tmp_path / "part.onnx"})
    frame = feeds_of(squeezenet, 1)
    with graph.build(squeezenet) as whole:
        expected = whole.run(frame)
    remote = graph.Remote(getattr(server, transport)("part"), fallback="onnxruntime")
    with graph.build(squeezenet, {"stage1": remote}) as device:
        far = remote_of(device)

        def answers() -> bool:
            before = far.figures().here
            same(device.run(frame), expected)
            return far.figures().here == before

        wait_until(answers, START_S, "the server answers")
        server.kill()
        assert not answers()
        server.start()
        wait_until(answers, START_S, "it goes back to the server")


def test_frames_under_way_survive_a_killed_server(
    start: Start, transport: str, squeezenet: graph.Stages, tmp_path: Path
) -> None:
    """They wait until it is back."""
    squeezenet["stage1"].save(tmp_path / "part.onnx")
    server = start({"part": tmp_path / "part.onnx"})
    frame = feeds_of(squeezenet, 1)
    with graph.build(squeezenet) as whole:
        expected = whole.run(frame)
    remote = graph.Remote(getattr(server, transport)("part"))
    with graph.build(squeezenet, {"stage1": remote}) as device, graph.Pipeline(device) as pipeline:
        same(pipeline.submit(frame).result(START_S), expected)
        server.kill()
        back = threading.Thread(target=server.start)
        back.start()
        futures = [pipeline.submit(frame) for _ in range(20)]
        for future in futures:
            same(future.result(START_S), expected)
        back.join(START_S)


@pytest.mark.parametrize(("encode", "atol"), [("float16", 0.01), ("int8", 0.2)])
def test_the_part_itself_decodes(
    start: Start, transport: str, squeezenet: graph.Stages, encode: str, atol: float, tmp_path: Path
) -> None:
    """No foreign server knows our encodings: the ONNX file that it gets begins with the decoding."""
    place = "http://127.0.0.1:1/v2/models/part"  # known once it is started
    made = graph.offload(squeezenet, {"stage1": graph.Remote(place, encode=encode)})
    made.save_repository(tmp_path / "repository")
    (model,) = (tmp_path / "repository").glob("*/1/model.onnx")
    server = start({"part": model})
    remote = graph.Remote(getattr(server, transport)("part"), encode=encode)
    frame = feeds_of(squeezenet, 1)
    with graph.build(squeezenet) as whole, graph.offload(squeezenet, {"stage1": remote}).device as device:
        same(device.run(frame), whole.run(frame), atol)


def test_a_repository_has_what_other_servers_load(squeezenet: graph.Stages, tmp_path: Path) -> None:
    remote = graph.Remote("http://10.0.0.1:8000/v2/models/part")
    graph.offload(squeezenet, {"stage1": remote}).save_repository(tmp_path / "repository")
    (folder,) = (tmp_path / "repository").iterdir()
    assert (folder / "1" / "model.onnx").is_file()
    config = (folder / "config.pbtxt").read_text()
    assert "onnxruntime" in config
    assert json.loads((folder / "model-settings.json").read_text())["name"] == folder.name


# --- boards -------------------------------------------------------------------------------------------


@pytest.fixture
def board(tmp_path: Path) -> Path:
    (tmp_path / "board").mkdir()
    return lay_out(tmp_path / "board")


def test_a_bare_python_calls_one(start: Start, board: Path, tmp_path: Path) -> None:
    server = start({"fp32": gateways.identity(tmp_path / "fp32.onnx", ["FP32"])})
    told = json.loads(bare(board, CALL, server.http("fp32")))
    assert told["y"] == [float(number) for number in range(64)]
    assert not {"asyncio", "http.client", "ssl", "email", "numpy"} & set(told["loaded"])


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("machine", ["aarch64", "armhf"])
def test_a_board_with_another_processor_calls_one(start: Start, board: Path, machine: str, tmp_path: Path) -> None:
    server = start({"fp32": gateways.identity(tmp_path / "fp32.onnx", ["FP32"])})
    told = json.loads(bare(board, CALL, server.http("fp32"), python=str(MACHINES[machine].python)))
    assert told["y"] == [float(number) for number in range(64)]


def test_a_bare_python_calls_grpc_through_a_server_of_ours(start: Start, daemons: Daemons, board: Path, tmp_path: Path):
    """A module whose root is the remote, deployed: the board speaks to our server, which has grpcio."""
    far = start({"fp32": gateways.identity(tmp_path / "fp32.onnx", ["FP32"])})
    module.export_library(module.remote(far.grpc("fp32")), tmp_path / "fp32.so")
    root = tmp_path / "through"
    deployed.put(root, "fp32", tmp_path / "fp32.so")
    server = daemons.server("edge", *deployed.FLAGS, "--deploy", str(root))
    code = CALL.replace("module.remote(sys.argv[1])", "module.remote(serve='fp32', address=sys.argv[1])")
    told = json.loads(bare(board, code, server.where))
    assert told["y"] == [float(number) for number in range(64)]
