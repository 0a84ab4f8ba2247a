"""A gateway beside its clients: batches, leased boards, figures, new versions, its end."""

from __future__ import annotations

import json
import queue
import subprocess
import threading
import urllib.error
import urllib.request
from collections import Counter
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from prometheus_client.parser import text_string_to_metric_families
from tritonclient.utils import InferenceServerException

from rpcsys import module
from rpcsys.client.deploying import Deployment
from tests.live import deployed, gateways, invariant
from tests.live.daemons import START_S, Daemon, Daemons, free_port, wait_until
from tests.live.daemons import queue as queue_of
from tests.live.flavours import DEBIAN_GATEWAY
from tests.live.gateways import Triton, numbers
from tests.live.inference_load import GrpcCaller, HttpCaller, InferenceLoad

X = np.arange(64, dtype="float32")
KEY = "rpi4"


def serving(daemons: Daemons, files: dict[str, Path], *flags: str, workers: int = 2) -> tuple[Daemon, Daemon]:
    """A server with these modules, and a gateway before it."""
    root = daemons.folder / f"deploy-{len(daemons.started)}"
    for name, file in files.items():
        deployed.put(root, name, file)
    common = (*deployed.WITH_NUMPY, "--deploy", str(root), "--deploy-workers", str(workers))
    server = daemons.server("edge", *common)
    return server, gateways.before(daemons, server, [*files], *flags)


def asked(gateway: Daemon, path: str, body: bytes | None = None, port: int = 0) -> tuple[int, Any]:
    """The status and the JSON of an answer, or its text."""
    url = f"http://127.0.0.1:{port or gateway.address[1]}{path}"
    try:
        with urllib.request.urlopen(url, body, timeout=START_S) as answer:
            status, text = answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        status, text = error.code, error.read().decode()
    return status, json.loads(text) if text[:1] in "{[" else text


# --- batches --------------------------------------------------------------------------------------------


def test_calls_that_wait_are_computed_together(daemons: Daemons, tmp_path: Path) -> None:
    """Each client gets its own rows; a request of another length is never among them."""
    files = {"simple": gateways.simple(tmp_path / "simple.onnx")}
    _, gateway = serving(daemons, files, "--batch", "simple=16:20000", workers=1)
    told = asked(gateway, "/v2/models/simple/config")[1]
    assert (told["max_batch_size"], told["input"][0]["dims"]) == (16, [16])
    client = Triton("grpc", gateway)
    done: queue.Queue[Any] = queue.Queue()
    wanted = {}
    for number in range(200):
        arrays = {name: (kind, array + number) for name, (kind, array) in numbers(rows=1 + number % 3).items()}
        wanted[number] = arrays["INPUT0"][1] + arrays["INPUT1"][1]
        back = lambda result, error, number=number: done.put((number, result, error))  # noqa: E731
        client.async_infer("simple", client.inputs(arrays), callback=back)
    for _ in range(200):
        number, result, error = done.get(timeout=START_S)
        assert error is None, error
        assert np.array_equal(result.as_numpy("OUTPUT0"), wanted[number])
    (row,) = asked(gateway, "/v2/models/simple/stats")[1]["model_stats"]
    assert row["execution_count"] < 200 <= row["inference_count"]
    sizes = {each["batch_size"] for each in row["batch_stats"]}
    assert max(sizes) > 3
    assert max(sizes) <= 16
    client.close()


def test_an_error_in_a_batch_stays_with_its_request(daemons: Daemons, tmp_path: Path) -> None:
    def picky(x: Any) -> Any:
        if (x < 0).any():
            raise ValueError("a negative number")
        return x

    _, gateway = serving(
        daemons, {"picky": gateways.function(tmp_path / "picky.so", picky)}, "--batch", "picky=8:50000", workers=1
    )
    client = Triton("grpc", gateway)
    done: queue.Queue[Any] = queue.Queue()
    for number in range(32):
        value = np.array([-1.0 if number % 8 == 3 else number], "f4")
        back = lambda result, error, number=number: done.put((number, result, error))  # noqa: E731
        client.async_infer("picky", client.inputs({"x": ("FP32", value)}), callback=back)
    for _ in range(32):
        number, result, error = done.get(timeout=START_S)
        if number % 8 == 3:
            assert "a negative number" in str(error)
        else:
            assert error is None, error
            assert result.as_numpy("y") == [number]
    client.close()


# --- boards ---------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_model_is_on_leased_boards_while_it_is_called(daemons: Daemons, tmp_path: Path, record_property: Any) -> None:
    file = deployed.onnx_model(tmp_path / "scale.onnx", 2.0)
    tracker = daemons.tracker()
    boards = [daemons.server(KEY, "--tvm", "off", tracker=tracker, offers=number) for number in (1, 2, 3)]
    pool = ("--pool", f"scale={KEY}:{file}:2", "--pool-idle", "3")
    gateway = daemons.gateway("--tracker", tracker.where, *pool)
    assert asked(gateway, "/v2/models/scale/ready") == (200, {"name": "scale", "ready": True})
    assert queue_of(tracker, KEY)["free"] == 3  # its metadata is that of the file
    load = InferenceLoad(lambda y: np.array_equal(y, X * 2))
    for _ in range(2):
        load.start(HttpCaller(gateway, "scale", X))
        load.start(GrpcCaller(gateway, "scale", X))
    wait_until(lambda: load.calls > 200 or load.errors, START_S, "calls")
    wait_until(lambda: queue_of(tracker, KEY)["free"] <= 1 or load.errors, START_S, "two boards are leased")
    busy = next(board for board in boards if board.running() and in_session(board))
    busy.destroy()
    calls = load.calls
    wait_until(lambda: load.calls > calls + 500 or load.errors, START_S, "calls on another board")
    load.stop()
    record_property("calls, failed, longest in s", f"{load.calls}, {len(load.errors)}, {load.longest:.2f}")
    assert not load.errors, load.errors[:3]
    wait_until(lambda: queue_of(tracker, KEY)["free"] == 2, START_S, "the boards are given back")


def in_session(board: Daemon) -> bool:
    """Whether the server has a session: a client's connection is established."""
    import psutil

    found = psutil.Process(board.pid).net_connections("tcp")
    return any(each.status == psutil.CONN_ESTABLISHED and each.laddr.port == board.address[1] for each in found)


# --- what it says of itself -------------------------------------------------------------------------------


def test_figures_have_tritons_names(daemons: Daemons, tmp_path: Path) -> None:
    files = {"simple": gateways.simple(tmp_path / "simple.onnx"), "fail": gateways.failing(tmp_path / "fail.so")}
    port = free_port()
    _, gateway = serving(daemons, files, "--http-port", str(port))
    client = Triton("http", gateway)
    for _ in range(3):
        client.infer("simple", client.inputs(numbers()))
    with pytest.raises(InferenceServerException):
        client.infer("fail", client.inputs({"x": ("FP32", X)}))
    text = asked(gateway, "/metrics", port=port)[1]
    found: Counter[tuple[str, str | None]] = Counter()  # over all other labels
    for family in text_string_to_metric_families(text):
        for each in family.samples:
            found[each.name, each.labels.get("model")] += each.value

    def value(name: str, model: str) -> float:
        return next(found[key] for key in ((name, model), (f"{name}_total", model)) if key in found)

    assert value("nv_inference_request_success", "simple") == 3
    assert value("nv_inference_request_failure", "fail") == 1
    for name in ("count", "exec_count", "request_duration_us", "queue_duration_us", "compute_infer_duration_us"):
        assert value(f"nv_inference_{name}", "simple") >= 0
    assert value("nv_inference_pending_request_count", "simple") == 0
    assert any(name.startswith("rpcsys_gateway_") for name, _ in found)
    client.close()


def test_health_of_grpc(daemons: Daemons, tmp_path: Path) -> None:
    server, gateway = serving(daemons, {"simple": gateways.simple(tmp_path / "simple.onnx")})
    with grpc.insecure_channel(gateways.grpc_of(gateway)) as channel:
        check = channel.unary_unary("/grpc.health.v1.Health/Check")
        assert check(b"") == check(b"\x0a\x06simple") == b"\x08\x01"  # SERVING
        with pytest.raises(grpc.RpcError) as caught:
            check(b"\x0a\x06nobody")
        assert caught.value.code() is grpc.StatusCode.NOT_FOUND
        with pytest.raises(grpc.RpcError) as caught:
            channel.unary_unary("/inference.GRPCInferenceService/Fly")(b"")
        assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED
        watch = channel.unary_stream("/grpc.health.v1.Health/Watch")
        model, unknown = watch(b"\x0a\x06simple", timeout=START_S), watch(b"\x0a\x06nobody", timeout=START_S)
        assert (next(model), next(unknown)) == (b"\x08\x01", b"\x08\x03")  # SERVING, SERVICE_UNKNOWN
        server.destroy()
        assert next(model) == b"\x08\x02"  # NOT_SERVING
        assert gateway.terminate(START_S) == 0
        assert list(model) == []
        assert list(unknown) == [b"\x08\x02"]


def test_a_module_that_is_not_described_is_unavailable_with_the_reason(daemons: Daemons, tmp_path: Path) -> None:
    root = tmp_path / "deploy"
    deployed.put(root, "plain", deployed.library(tmp_path / "plain.so", 2.0))
    deployed.put(root, "simple", gateways.simple(tmp_path / "simple.onnx"))
    server = daemons.server("edge", *deployed.WITH_NUMPY, "--deploy", str(root))
    gateway = daemons.gateway("--server", server.where)

    def index() -> dict[str, Any]:
        return {row["name"]: row for row in asked(gateway, "/v2/repository/index", b"")[1]}

    wait_until(lambda: index().get("simple", {}).get("state") == "READY", START_S, "it has found the modules")
    rows = index()
    assert rows["simple"]["state"] == "READY"
    assert (rows["plain"]["state"], bool(rows["plain"]["reason"])) == ("UNAVAILABLE", True)
    assert asked(gateway, "/v2/models/plain/ready")[0] != 200
    rows = {row["name"] for row in asked(gateway, "/v2/repository/index", b'{"ready": true}')[1]}
    assert rows == {"simple"}


def test_ready_waits_for_the_modules_that_are_named(daemons: Daemons, tmp_path: Path) -> None:
    server = daemons.server("edge", *deployed.WITH_NUMPY, "--deploy", str(tmp_path / "deploy"))
    gateway = daemons.gateway("--server", server.where, "--module", "scale")
    assert asked(gateway, "/v2/health/live") == (200, {"live": True})
    assert asked(gateway, "/v2/health/ready") == (503, {"ready": False})
    with Deployment(server.where) as deployment:
        deployment.put(deployed.onnx_model(tmp_path / "scale.onnx", 2.0))
        deployment.put(deployed.onnx_model(tmp_path / "other.onnx", 2.0))
    wait_until(lambda: asked(gateway, "/v2/health/ready") == (200, {"ready": True}), START_S, "it is ready")
    assert asked(gateway, "/v2/models/other")[0] == 404  # not among those that are named


def test_servers_with_standing_keys(daemons: Daemons, tmp_path: Path) -> None:
    """Their modules are found and called inside TLS; with another key nothing is."""
    servers, keys = [], []
    for name in ("one", "two"):
        deployed.put(tmp_path / name, name, deployed.onnx_model(tmp_path / f"{name}.onnx", 2.0))
        keys.append(str(tmp_path / f"{name}.key"))
        common = (*deployed.WITH_NUMPY, "--deploy", str(tmp_path / name), "--standing-key", keys[-1])
        servers.append(daemons.server("edge", *common))
    flags = [*[f"--server={server.where}" for server in servers], *[f"--key-file={key}" for key in keys]]
    gateway = daemons.gateway(*flags, "--module", "one", "--module", "two")
    gateways.wait_ready(gateway)
    secret = Path(keys[0]).read_text().split("\n")[0].rpartition("-")[2]
    for name in ("one", "two"):
        call = HttpCaller(gateway, name, X)
        assert np.array_equal(call(), X * 2)
        call.close()
    wrong = daemons.gateway("--server", servers[0].where, "--key-file", keys[1])
    wait_until(lambda: "lists no modules" in wrong.stderr(), START_S, "the refusal is logged")
    assert asked(wrong, "/v2/models/one")[0] == 503
    assert secret not in gateway.stderr() + wrong.stderr()
    for each in (gateway, wrong):  # each holds a process of the server that lists
        assert each.terminate(START_S) == 0


def test_a_new_version_is_described(daemons: Daemons, tmp_path: Path) -> None:
    server, gateway = serving(daemons, {"scale": deployed.onnx_model(tmp_path / "scale.onnx", 2.0)})
    call = HttpCaller(gateway, "scale", X)
    assert np.array_equal(call(), X * 2)
    assert asked(gateway, "/v2/models/scale")[1]["versions"] == ["1"]
    (tmp_path / "new").mkdir()
    wide = gateways.identity(tmp_path / "new" / "scale.onnx", ["FP32", "INT64"])
    with Deployment(server.where) as deployment:
        deployment.put(deployed.onnx_model(tmp_path / "second.onnx", 3.0), "scale")
        assert np.array_equal(call(), X * 3)
        deployment.put(wide, "scale")

    def described() -> bool:
        told = asked(gateway, "/v2/models/scale")[1]
        return (told.get("versions"), len(told.get("inputs", ()))) == (["3"], 2)

    wait_until(described, START_S, "the third version is described")
    status, told = asked(gateway, "/v2/models/scale/versions/1")
    assert (status, "version 3 is served" in told["error"]) == (404, True)
    call.close()


def test_sigterm_lets_calls_end(daemons: Daemons, tmp_path: Path) -> None:
    server, gateway = serving(daemons, {"nap": gateways.sleeping(tmp_path / "nap.so")})
    x = np.array([1.5], "f4")
    calls = [HttpCaller(gateway, "nap", x), GrpcCaller(gateway, "nap", x)]
    answers: list[Any] = []
    threads = [threading.Thread(target=lambda call=call: answers.append(call())) for call in calls]
    for thread in threads:
        thread.start()
    with Deployment(server.where) as deployment:
        wait_until(lambda: deployment.list()[0]["running"] == 2, START_S, "both calls run")
    assert gateway.terminate(START_S) == 0
    for thread in threads:
        thread.join(START_S)
    assert [float(answer[0]) for answer in answers] == [1.5, 1.5]
    for call in calls:
        call.close()


def test_a_module_on_a_foreign_server_is_served_too(daemons: Daemons, tmp_path: Path) -> None:
    """One gateway behind another: a deployed module whose root is a remote."""
    _, far = serving(daemons, {"fp32": gateways.identity(tmp_path / "fp32.onnx", ["FP32"])})
    row = {"dtype": "float32", "shape": ["n"]}
    stage = module.Stage("far", module.remote(f"http://{far.where}/v2/models/fp32"), ["x"], ["y"])
    module.export_library(module.graph([stage], [{"name": "x", **row}], [{"name": "y", **row}]), tmp_path / "near.so")
    _, near = serving(daemons, {"near": tmp_path / "near.so"})
    call = HttpCaller(near, "near", X)
    assert np.array_equal(call(), X)
    call.close()


# --- Debian's libraries -----------------------------------------------------------------------------------


@pytest.mark.slow
def test_calls_and_streams_by_debians_grpcio(daemons: Daemons, tmp_path: Path) -> None:
    python, *_ = DEBIAN_GATEWAY.command
    needed = "import grpc, numpy, prometheus_client, tornado"
    if subprocess.run([python, "-c", needed], capture_output=True).returncode:
        pytest.skip("type: apt-get install python3-grpcio python3-numpy python3-prometheus-client python3-tornado")
    root = tmp_path / "deploy"
    deployed.put(root, "scale", deployed.onnx_model(tmp_path / "scale.onnx", 2.0))
    server = daemons.server("edge", *deployed.WITH_NUMPY, "--deploy", str(root))
    gateway = daemons.gateway("--server", server.where, "--module", "scale", flavour=DEBIAN_GATEWAY)
    gateways.wait_ready(gateway)
    first = Triton("grpc", gateway)
    first.is_server_live()
    first.close()
    invariant.running.idle(gateway.pid)  # grpcio 1.51 keeps the descriptor of the last connection until the next one
    client, done = Triton("grpc", gateway), queue.Queue()
    long = np.ones(4_000_000, "float32")
    assert np.array_equal(client.infer("scale", client.inputs({"x": ("FP32", long)})).as_numpy("y"), long * 2)
    client.start_stream(callback=lambda result, error: done.put((result, error)))
    for number in range(20):
        client.async_stream_infer("scale", client.inputs({"x": ("FP32", X + number)}), request_id=str(number))
    for number in range(20):
        result, error = done.get(timeout=START_S)
        assert (error, result.get_response().id) == (None, str(number))
        assert np.array_equal(result.as_numpy("y"), (X + number) * 2)
    client.stop_stream()
    client.close()
