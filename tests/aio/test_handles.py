"""Functions, models and arrays on a device, as tasks use them."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

import rpcsys
from rpcsys.client import TimingResult
from rpcsys.errors import RemoteArgumentError, RemoteFunctionError
from tests.aio.looped import looped

A = np.arange(4, dtype="f4").reshape(2, 2)
B = np.ones((2, 2), "f4")


@pytest.fixture(scope="module")
def model_file(tmp_path_factory):
    """Two inputs, two outputs: a + b, and a * 2."""
    onnx = pytest.importorskip("onnx")
    from onnx import TensorProto as T
    from onnx import helper as h

    values = {name: h.make_tensor_value_info(name, T.FLOAT, ["n", 2]) for name in ("a", "b", "sum", "double")}
    graph = h.make_graph(
        [h.make_node("Add", ["a", "b"], ["sum"]), h.make_node("Add", ["a", "a"], ["double"])],
        "two", [values["a"], values["b"]], [values["sum"], values["double"]],
    )  # fmt: skip
    path = tmp_path_factory.mktemp("models") / "two.onnx"
    onnx.save(h.make_model(graph, ir_version=8, opset_imports=[h.make_opsetid("", 17)]), path)
    return path


@looped
async def test_a_model_is_called_submitted_run_by_names_and_timed(device, model_file):
    async with await rpcsys.aio.connect(*device.address, "key") as session:
        model = await session.load_module(model_file)
        assert (model.kind, model.functions) == ("rpcsys.onnx", ("main",))
        assert [value["name"] for value in (*model.inputs, *model.outputs)] == ["a", "b", "sum", "double"]
        assert repr(model) == "<async remote module rpcsys.onnx (main)>"
        assert model._repr_html_() == model.blocking._repr_html_()
        for result in (await model(A, B), await (await model.submit(A, B)), await model["main"](A, B)):
            assert [value.tolist() for value in result] == [(A + B).tolist(), (A * 2).tolist()]
        named = await model.run({"a": A, "b": B}, ["double"])
        assert {name: value.tolist() for name, value in named.items()} == {"double": (A * 2).tolist()}
        timed = await model.time_evaluator(number=2, repeat=3)(A, B)
        assert isinstance(timed, TimingResult)
        assert len(timed.results) == 3
        with pytest.raises(RemoteFunctionError, match="no function 'other'"):
            model["other"]
        with pytest.raises(RemoteArgumentError):
            await model(A)
        with pytest.raises(RemoteArgumentError):
            await model.run({"a": A})


@looped
async def test_results_that_stay_on_the_device_are_arrays_of_tasks(device, model_file):
    async with await rpcsys.aio.connect(*device.address, "key") as session:
        model = await session.load_module(model_file)
        added, double = await model(await session.array(A), B, keep=True)
        assert isinstance(added, rpcsys.aio.AsyncRemoteArray)
        assert (added.dtype, added.shape, repr(added)) == ("float32", (2, 2), "<remote array float32 (2, 2)>")
        assert (await added.get()).tolist() == (A + B).tolist()
        assert (await added.numpy()).tolist() == (A + B).tolist()
        assert (await model(double, B))[0].tolist() == (A * 2 + B).tolist()
        named = await model.run({"a": added, "b": B}, keep=True)
        assert (await named["sum"].get()).tolist() == (A + B + B).tolist()
        del added, double, named
        await model(A, B)
        assert [kept["is"] for kept in (await session.memory())["kept"]] == ["module"]


@looped
async def test_functions_in_results_are_functions_of_tasks(device):
    async with await rpcsys.aio.connect(*device.address, "key") as session:
        counter = await session.get_function("test.counter")
        found = await counter(5)
        assert isinstance(found["add"], rpcsys.aio.AsyncRemoteFunction)
        assert await asyncio.gather(*(found["add"](1) for _ in range(3))) == [6, 7, 8]
        assert repr(counter) == "<async remote function test.counter>"
        many = await (await session.get_function("testing.echo"))([1, (2, {"three": [None]})])
        assert many == [1, (2, {"three": [None]})]


@looped
async def test_encoded_results_arrive_decoded_and_functions_are_timed(device):
    async with await rpcsys.aio.connect(*device.address, "key") as session:
        echo = await session.get_function("testing.echo")
        assert (await echo.encoding({"0": "float16+zlib"})(A)).tolist() == A.tolist()
        assert len((await echo.time_evaluator(1, 2)(A)).results) == 2


@looped
async def test_arguments_that_are_written(device):
    async with await rpcsys.aio.connect(*device.address, "key") as session:
        target = np.arange(4, dtype="u1")
        before, written = await (await session.get_function("test.fill"))(rpcsys.inout(target), 9)
        assert before == b"\0\1\2\3"
        assert target.tolist() == written.tolist() == [9] * 4
