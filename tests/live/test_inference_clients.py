"""NVIDIA's clients, unmodified, at a gateway: what they can call and what they are told."""

from __future__ import annotations

import asyncio
import os
import queue
from collections.abc import Iterator
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from tritonclient.utils import InferenceServerException

import rpcsys
from tests.live import gateways
from tests.live.daemons import START_S, Daemons
from tests.live.gateways import CLIENTS, DATATYPES, Served, Triton, numbers, sample, texts

LARGE = 50_000_000  # float32: 200 MB
EXTENSIONS = {
    *("binary_tensor_data", "model_repository", "model_configuration", "statistics", "schedule_policy"),
    *("classification", "parameters", "system_shared_memory"),
}


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("inference")
    daemons = Daemons(folder)
    yield Served(daemons, folder, "--shared-memory", "--model-control")
    daemons.stop()


@pytest.fixture(params=CLIENTS)
def client(request: pytest.FixtureRequest, served: Served) -> Iterator[Triton]:
    made = Triton(request.param, served.gateway)
    yield made
    made.close()


@pytest.fixture
def over_http(served: Served) -> Iterator[Triton]:
    made = Triton("http", served.gateway)
    yield made
    made.close()


@pytest.fixture
def over_grpc(served: Served) -> Iterator[Triton]:
    made = Triton("grpc", served.gateway)
    yield made
    made.close()


def refused(call: Any, status: str, message: str) -> None:
    with pytest.raises(InferenceServerException, match=message) as caught:
        call()
    assert caught.value.status() == status


# --- what is described ----------------------------------------------------------------------------


def test_server_and_models_are_ready(client: Triton) -> None:
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready("simple")
    assert client.is_model_ready("simple", "1")
    assert not client.is_model_ready("nobody")
    assert not client.is_model_ready("simple", "7")


def test_the_server_describes_itself(client: Triton) -> None:
    told = client.json("get_server_metadata")
    assert (told["name"], told["version"]) == ("rpcsys", rpcsys.__version__)
    assert set(told["extensions"]) == EXTENSIONS


def test_a_model_is_described(client: Triton) -> None:
    told = client.json("get_model_metadata", "simple")
    assert (told["name"], told["versions"], told["platform"]) == ("simple", ["1"], "onnxruntime_onnx")
    rows = [(row["name"], row["datatype"], [int(extent) for extent in row["shape"]]) for row in told["inputs"]]
    assert rows == [("INPUT0", "INT32", [-1, 16]), ("INPUT1", "INT32", [-1, 16])]
    assert [row["name"] for row in told["outputs"]] == ["OUTPUT0", "OUTPUT1"]
    assert client.json("get_model_metadata", "nap")["platform"] == "rpcsys_graph"


def test_a_model_has_a_configuration(client: Triton) -> None:
    told = client.json("get_model_config", "simple")
    config = told if client.http else told["config"]
    assert (config["name"], config["platform"]) == ("simple", "onnxruntime_onnx")
    rows = [(row["name"], row["data_type"], [int(extent) for extent in row["dims"]]) for row in config["input"]]
    assert rows == [("INPUT0", "TYPE_INT32", [-1, 16]), ("INPUT1", "TYPE_INT32", [-1, 16])]
    assert int(config.get("max_batch_size", 0)) == 0


def test_the_index_has_all_models(client: Triton) -> None:
    told = client.json("get_model_repository_index")
    rows = told if client.http else told["models"]
    states = {row["name"]: (row["version"], row["state"]) for row in rows}
    assert states == dict.fromkeys(("simple", "every", "bf16", "fp32", "nap", "fail", "endless"), ("1", "READY"))


def test_calls_are_counted(client: Triton) -> None:
    def counted() -> dict[str, Any]:
        (row,) = client.json("get_inference_statistics", "simple", "1")["model_stats"]
        return row

    before = int(counted().get("inference_count", 0))
    client.infer("simple", client.inputs(numbers(rows=3)))
    row = counted()
    assert int(row["inference_count"]) in (before + 1, before + 3)  # rows count where they may go in a batch
    success = row["inference_stats"]["success"]
    assert int(success["count"]) > 0
    assert int(success["ns"]) > int(row["inference_stats"]["compute_infer"]["ns"]) > 0
    every = client.json("get_inference_statistics")["model_stats"]
    assert {each["name"] for each in every} >= {"simple", "nap"}


# --- arrays -----------------------------------------------------------------------------------------


def test_the_examples_model_adds_and_subtracts(client: Triton) -> None:
    inputs = numbers()
    result = client.infer("simple", client.inputs(inputs), outputs=client.outputs(["OUTPUT0", "OUTPUT1"]))
    (_, first), (_, second) = inputs.values()
    assert np.array_equal(result.as_numpy("OUTPUT0"), first + second)
    assert np.array_equal(result.as_numpy("OUTPUT1"), first - second)
    assert result.as_numpy("OUTPUT2") is None


@pytest.mark.parametrize("binary", [True, False])
def test_every_datatype_goes_both_ways(client: Triton, binary: bool) -> None:
    given = {name: (name, sample(name)) for name in DATATYPES}
    outputs = client.outputs([f"same_{name}" for name in DATATYPES], binary)
    result = client.infer("every", client.inputs(given, binary), outputs=outputs)
    for name, (_, array) in given.items():
        same = result.as_numpy(f"same_{name}")
        if name == "BYTES":
            assert texts(same) == texts(array)
        else:
            assert same.dtype == array.dtype
            assert np.array_equal(same, array), name


def test_bfloat16_goes_both_ways(client: Triton) -> None:
    array = np.array([0, 1, -2.5, 3e38], ml_dtypes.bfloat16)
    result = client.infer("bf16", client.inputs({"BF16": ("BF16", array)}))
    assert np.array_equal(result.as_numpy("same_BF16").astype("f4"), array.astype("f4"))


def test_no_strings_but_utf8_are_taken(client: Triton) -> None:
    given = {name: (name, sample(name)) for name in DATATYPES}
    given["BYTES"] = ("BYTES", np.array([b"\xff\xfe"], dtype=object))
    status = "400" if client.http else "StatusCode.INVALID_ARGUMENT"
    refused(lambda: client.infer("every", client.inputs(given)), status, "BYTES")


@pytest.mark.parametrize("binary", [True, False])
def test_empty_arrays_go_both_ways(client: Triton, binary: bool) -> None:
    given = {name: (name, sample(name)[:0]) for name in DATATYPES}
    outputs = client.outputs([f"same_{name}" for name in DATATYPES], binary)
    result = client.infer("every", client.inputs(given, binary), outputs=outputs)
    assert [result.as_numpy(f"same_{name}").shape for name in DATATYPES] == [(0,)] * len(DATATYPES)


@pytest.mark.slow
def test_200_megabytes_go_both_ways(client: Triton) -> None:
    array = np.arange(LARGE, dtype="float32")
    result = client.infer("fp32", client.inputs({"FP32": ("FP32", array)}))
    assert np.array_equal(result.as_numpy("same_FP32"), array)


def test_only_the_outputs_asked_for_are_sent(client: Triton) -> None:
    result = client.infer("simple", client.inputs(numbers()), outputs=client.outputs(["OUTPUT1"]))
    assert result.as_numpy("OUTPUT0") is None
    assert result.as_numpy("OUTPUT1").shape == (1, 16)


def test_outputs_are_classified(client: Triton) -> None:
    array = np.array([0.5, 4, 2], "float32")
    outputs = client.outputs(["same_FP32"], class_count=2)
    result = client.infer("fp32", client.inputs({"FP32": ("FP32", array)}), outputs=outputs)
    found = [text.split(":") for text in texts(result.as_numpy("same_FP32"))]
    assert [(float(value), int(index)) for value, index, *_ in found] == [(4, 1), (2, 2)]


# --- requests -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["42", "a request", "ü€"])
def test_an_answer_has_its_requests_id(client: Triton, text: str) -> None:
    response = client.infer("simple", client.inputs(numbers()), request_id=text).get_response()
    assert (response["id"] if client.http else response.id) == text


@pytest.mark.parametrize("version", ["", "1"])
def test_a_version_may_be_named(client: Triton, version: str) -> None:
    response = client.infer("simple", client.inputs(numbers()), model_version=version).get_response()
    assert (response["model_version"] if client.http else response.model_version) == "1"


@pytest.mark.parametrize("how", ["gzip", "deflate"])
def test_requests_and_answers_are_compressed(client: Triton, how: str) -> None:
    more = {"compression_algorithm": how}
    if client.http:
        more = {"request_compression_algorithm": how, "response_compression_algorithm": how}
    array = np.zeros(100_000, "float32")
    result = client.infer("fp32", client.inputs({"FP32": ("FP32", array)}), **more)
    assert np.array_equal(result.as_numpy("same_FP32"), array)


def test_what_cannot_be_meant_is_refused(client: Triton) -> None:
    missing = "404" if client.http else "StatusCode.NOT_FOUND"
    invalid = "400" if client.http else "StatusCode.INVALID_ARGUMENT"
    inputs = client.inputs(numbers())
    refused(lambda: client.infer("x", inputs), missing, "Request for unknown model: 'x' is not found")
    served = "version 9 is not found; version 1 is served"
    refused(lambda: client.infer("simple", inputs, model_version="9"), missing, served)
    wide = {"INPUT0": ("INT32", np.ones((1, 17), "i4")), "INPUT1": numbers()["INPUT1"]}
    shape = r"unexpected shape for input 'INPUT0' for model 'simple'\. Expected \[-1,16\], got \[1,17\]"
    refused(lambda: client.infer("simple", client.inputs(wide)), invalid, shape)
    other = {"INPUT0": ("FP64", np.ones((1, 16))), "INPUT1": numbers()["INPUT1"]}
    datatype = "inference input 'INPUT0' data-type is 'FP64', but model 'simple' expects 'INT32'"
    refused(lambda: client.infer("simple", client.inputs(other)), invalid, datatype)
    refused(lambda: client.infer("simple", inputs[:1]), invalid, "INPUT1")
    refused(lambda: client.infer("simple", inputs, outputs=client.outputs(["z"])), invalid, "'z'")
    refused(lambda: client.infer("simple", inputs, sequence_id=7), invalid, "sequence")


def test_what_the_function_raised_is_told(client: Triton) -> None:
    status = "400" if client.http else "StatusCode.INVALID_ARGUMENT"  # the fault of who deployed it
    call = client.inputs({"x": ("FP32", np.ones(3, "f4"))})
    refused(lambda: client.infer("fail", call), status, "a function of the module")


def test_a_call_that_takes_too_long_is_ended(client: Triton) -> None:
    status = "504" if client.http else "StatusCode.DEADLINE_EXCEEDED"
    call = client.inputs({"n": ("INT64", np.array(10**12))})
    refused(lambda: client.infer("endless", call, timeout=300_000), status, "the deadline was exceeded")
    short = client.infer("endless", client.inputs({"n": ("INT64", np.array(3))}), timeout=60_000_000)
    assert short.as_numpy("y") == 3


def test_what_is_not_offered_says_so(client: Triton) -> None:
    status = "501" if client.http else "StatusCode.UNIMPLEMENTED"
    refused(client.get_log_settings, status, ".")
    refused(client.get_trace_settings, status, ".")
    handle = b"\0" * 64
    refused(lambda: client.register_cuda_shared_memory("c", handle, 0, 64), status, ".")
    told = client.json("get_cuda_shared_memory_status")
    assert not (told if client.http else told.get("regions"))
    client.unregister_cuda_shared_memory()


def test_a_model_is_taken_out_and_in_again(client: Triton) -> None:
    client.unload_model("fail")
    try:
        assert not client.is_model_ready("fail")
        assert client.is_model_ready("simple")
    finally:
        client.load_model("fail")
    assert client.is_model_ready("fail")


# --- many under way -------------------------------------------------------------------------------


def test_many_calls_are_under_way_over_http(served: Served, over_http: Triton) -> None:
    from tritonclient.http import InferenceServerClient

    with InferenceServerClient(served.http, concurrency=8) as client:
        calls = [client.async_infer("simple", over_http.inputs(numbers(rows=count))) for count in range(1, 65)]
        for count, call in enumerate(calls, 1):
            assert call.get_result().as_numpy("OUTPUT0").shape == (count, 16)


def test_many_calls_are_under_way_over_grpc(over_grpc: Triton) -> None:
    done: queue.Queue[Any] = queue.Queue()
    for count in range(1, 65):
        back = lambda result, error, count=count: done.put((count, result, error))  # noqa: E731
        over_grpc.async_infer("simple", over_grpc.inputs(numbers(rows=count)), callback=back)
    for _ in range(64):
        count, result, error = done.get(timeout=START_S)
        assert error is None
        assert result.as_numpy("OUTPUT0").shape == (count, 16)


def test_a_stream_answers_in_order_and_goes_on_after_an_error(over_grpc: Triton) -> None:
    done: queue.Queue[Any] = queue.Queue()
    over_grpc.start_stream(callback=lambda result, error: done.put((result, error)))
    good, wrong = over_grpc.inputs(numbers()), over_grpc.inputs(numbers())[:1]
    for number in range(20):
        over_grpc.async_stream_infer("simple", wrong if number == 7 else good, request_id=str(number))
    slow = over_grpc.inputs({"x": ("FP32", np.array([0.2], "f4"))})
    over_grpc.async_stream_infer("nap", slow, request_id="20")
    over_grpc.async_stream_infer("simple", good, request_id="21")
    for number in range(22):
        result, error = done.get(timeout=START_S)
        if number == 7:
            assert "INPUT1" in str(error)
        else:
            assert error is None
            assert result.get_response().id == str(number)
    over_grpc.stop_stream()


def test_a_streams_empty_last_answer_comes_where_it_is_asked_for(over_grpc: Triton) -> None:
    done: queue.Queue[Any] = queue.Queue()
    over_grpc.start_stream(callback=lambda result, error: done.put((result, error)))
    over_grpc.async_stream_infer("simple", over_grpc.inputs(numbers()), enable_empty_final_response=True)
    result, error = done.get(timeout=START_S)
    assert error is None
    responses = [result.get_response()]
    if not responses[0].parameters["triton_final_response"].bool_param:
        responses.append(done.get(timeout=START_S)[0].get_response())
    assert responses[-1].parameters["triton_final_response"].bool_param
    over_grpc.stop_stream()


def test_a_stream_of_coroutines(served: Served, over_grpc: Triton) -> None:
    from tritonclient.grpc.aio import InferenceServerClient

    inputs = over_grpc.inputs(numbers())

    async def requests() -> Any:
        for number in range(10):
            yield {"model_name": "simple", "inputs": inputs, "request_id": str(number)}

    async def used() -> list[str]:
        async with InferenceServerClient(served.grpc) as client:
            found = []
            async for result, error in client.stream_infer(requests()):
                assert error is None
                found.append(result.get_response().id)
            return found

    assert asyncio.run(used()) == [str(number) for number in range(10)]


def test_a_client_of_coroutines_has_many_under_way(served: Served, over_http: Triton) -> None:
    from tritonclient.http.aio import InferenceServerClient

    inputs = over_http.inputs(numbers())

    async def used() -> list[Any]:
        async with InferenceServerClient(served.http) as client:
            return await asyncio.gather(*(client.infer("simple", inputs) for _ in range(64)))

    assert {result.as_numpy("OUTPUT1").shape for result in asyncio.run(used())} == {(1, 16)}


def test_a_call_that_its_client_gives_up_stops(over_grpc: Triton) -> None:
    """Both workers of the model count without end; both are free again."""
    calls = []
    for _ in range(2):
        inputs = over_grpc.inputs({"n": ("INT64", np.array(10**12))})
        calls.append(over_grpc.async_infer("endless", inputs, callback=lambda result, error: None))
    for call in calls:
        call.cancel()
    inputs = over_grpc.inputs({"n": ("INT64", np.array(3))})
    assert over_grpc.infer("endless", inputs, client_timeout=START_S).as_numpy("y") == 3


# --- shared memory ----------------------------------------------------------------------------------


def test_arrays_are_in_shared_memory(client: Triton) -> None:
    from tritonclient.utils import shared_memory

    (_, first), (_, second) = numbers().values()
    size = first.nbytes
    key = f"/rpcsys-test-{os.getpid()}-{client.kind.replace('.', '-')}"
    handle = shared_memory.create_shared_memory_region("region", key, 4 * size)
    try:
        shared_memory.set_shared_memory_region(handle, [first, second])
        client.register_system_shared_memory("region", key, 4 * size)
        told = client.json("get_system_shared_memory_status")
        assert "region" in str(told)
        inputs = client.inputs(numbers())
        outputs = client.outputs(["OUTPUT0", "OUTPUT1"])
        for place, each in enumerate([*inputs, *outputs]):
            each.set_shared_memory("region", size, place * size)
        client.infer("simple", inputs, outputs=outputs)
        found = [shared_memory.get_contents_as_numpy(handle, np.int32, [1, 16], place * size) for place in (2, 3)]
        assert np.array_equal(found[0], first + second)
        assert np.array_equal(found[1], first - second)
        status = "400" if client.http else "StatusCode.INVALID_ARGUMENT"
        inputs[0].set_shared_memory("region", size, 4 * size)
        refused(lambda: client.infer("simple", inputs, outputs=outputs), status, "region")
        client.unregister_system_shared_memory("region")
        refused(lambda: client.infer("simple", inputs, outputs=outputs), status, "region")
    finally:
        client.unregister_system_shared_memory()
        shared_memory.destroy_shared_memory_region(handle)


def test_shared_memory_is_off_by_default(daemons: Daemons, served: Served) -> None:
    gateway = gateways.before(daemons, served.server, ["simple"])
    for kind in CLIENTS:
        client = Triton(kind, gateway)
        assert "system_shared_memory" not in client.json("get_server_metadata")["extensions"]
        client.unregister_system_shared_memory()
        with pytest.raises(InferenceServerException, match="--shared-memory"):
            client.register_system_shared_memory("region", "/rpcsys-test", 64)
        client.close()


def test_models_stay_where_nobody_may_take_them_out(daemons: Daemons, served: Served) -> None:
    gateway = gateways.before(daemons, served.server, ["simple"])
    for kind in CLIENTS:
        client = Triton(kind, gateway)
        with pytest.raises(InferenceServerException, match="--model-control"):
            client.unload_model("simple")
        assert client.is_model_ready("simple")
        client.close()
