"""The user's handles of functions, modules and arrays on a device."""

from __future__ import annotations

import array

import numpy as np
import pytest

import rpcsys
from rpcsys.client.arrays import outputs_of
from rpcsys.client.timing import told
from rpcsys.errors import ModelError, RemoteArgumentError, RemoteFunctionError, UsageError, ValueNotSupported
from rpcsys.wire.values import InOut, Out


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


@pytest.fixture(scope="module")
def model(shared, model_file):
    return shared.load_module(model_file)


A = np.arange(4, dtype="f4").reshape(2, 2)
B = np.ones((2, 2), "f4")


# ---------------------------------------------------------------- arguments that are written


def test_an_empty_argument_is_written(shared):
    fill = shared.get_function("test.fill")
    before, written = fill(rpcsys.empty((2, 2), "uint8"), 7)
    assert before == b"\0\0\0\0"
    assert np.array_equal(written, np.full((2, 2), 7, "u1"))


def test_an_inout_argument_is_changed_in_place(shared):
    target = np.arange(4, dtype="u1")
    before, written = shared.get_function("test.fill")(rpcsys.inout(target), 9)
    assert before == b"\0\1\2\3"
    assert target.tolist() == written.tolist() == [9] * 4


def test_a_plain_argument_is_not_sent_back(shared):
    target = np.zeros(4, "u1")
    assert shared.get_function("test.fill")(target, 9) == b"\0" * 4
    assert target.tolist() == [0] * 4


def test_a_written_array_is_the_result_of_a_function_without_one(shared):
    nop = shared.get_function("testing.nop")
    assert nop(rpcsys.empty(3)).shape == (3,)
    one, two = nop(rpcsys.empty(3), rpcsys.empty((0, 2), "int64"))
    assert (one.shape, two.shape, two.dtype) == ((3,), (0, 2), np.dtype("int64"))


def test_submitted_calls_write_into_arguments(shared):
    target = np.zeros(4, "u1")
    future = shared.get_function("test.fill").submit(rpcsys.inout(target), 9)
    assert future.result()[1].tolist() == target.tolist() == [9] * 4


@pytest.mark.parametrize(
    "target",
    [
        array.array("b", [1, 2, 3, 4]),
        memoryview(bytearray(b"abcd")),
        np.zeros((4, 2), "u1")[:, 0],
        np.zeros((2, 2), "u1", order="F"),
        np.zeros(1, ">i4"),
        np.zeros((), "u4"),
    ],
    ids=["array", "memoryview", "steps", "fortran", "big-endian", "scalar"],
)
def test_any_writable_memory_is_written_into(shared, target):
    shared.get_function("test.fill")(rpcsys.inout(target), 0x11)
    flat = np.asarray(target).astype(np.asarray(target).dtype.newbyteorder("="))
    assert flat.tobytes() == b"\x11" * 4


def test_read_only_memory_is_not_changed(shared):
    target = np.zeros(4, "u1")
    target.flags.writeable = False
    assert shared.get_function("test.fill")(rpcsys.inout(target), 9)[1].tolist() == [9] * 4
    assert target.tolist() == [0] * 4
    assert shared.get_function("test.fill")(rpcsys.inout(memoryview(b"abcd")), 9)[1].tolist() == [9] * 4


def test_arrays_in_lists_and_dicts_are_written_back(shared):
    first, second, third, last = (np.zeros(4, "u1") for _ in range(4))
    targets = {"list": [rpcsys.inout(first), rpcsys.inout(second)], "one": rpcsys.inout(third)}
    shared.get_function("test.fill_many")(targets, rpcsys.inout(last))
    assert [array.tolist() for array in (first, second, third, last)] == [[n] * 4 for n in range(4)]


def test_outputs_are_found_in_the_order_of_the_wire():
    one, two, three, four = Out((1,), "int8"), InOut(A), Out((2,), "int8"), InOut(B)
    assert outputs_of([1, {"k": (one, [two])}, A, three, {"x": {"y": four}}]) == [one, two, three, four]


def test_a_kept_array_written_into(shared):
    kept = shared.array(np.zeros(4, "u1"))
    _, written = shared.get_function("test.fill")(rpcsys.inout(kept), 3)
    assert written.tolist() == kept.numpy().tolist() == [3] * 4


@pytest.mark.parametrize("value", [5, [1], b"x", None])
def test_only_arrays_travel_both_ways(shared, value):
    with pytest.raises(ValueNotSupported, match="only an array can travel both ways"):
        shared.get_function("testing.nop")(rpcsys.inout(value))


@pytest.mark.parametrize(
    ("shape", "dtype", "expected"),
    [
        (3, "float32", ((3,), "float32")),
        ((2, 3), np.float16, ((2, 3), "float16")),
        ([2], "f8", ((2,), "float64")),
        (np.int64(4), "S5", ((4,), "S5")),
        ((), int, ((), "int64")),
        ((np.int32(1), 2), "M8[ns]", ((1, 2), "datetime64[ns]")),
        (1, ">i2", ((1,), "int16")),
        (1, "bfloat16", ((1,), "bfloat16")),
    ],
)
def test_empty_takes_shapes_and_dtypes(shape, dtype, expected):
    out = rpcsys.empty(shape, dtype)
    assert (out.shape, out.dtype) == expected


@pytest.mark.parametrize("dtype", ["object", "floaty", "i4,f8", object(), None.__class__])
def test_empty_refuses_an_invalid_dtype(dtype):
    with pytest.raises(ValueNotSupported):
        rpcsys.empty(3, dtype)


@pytest.mark.parametrize("shape", [(-1,), (2**40, 2**40)])
def test_empty_refuses_an_invalid_shape(shared, shape):
    with pytest.raises(ValueNotSupported, match="size"):
        shared.get_function("testing.nop")(rpcsys.empty(shape))
    assert shared.get_function("testing.nop")() is None


def test_more_memory_than_the_device_has_is_refused(shared):
    with pytest.raises(rpcsys.RpcsysError, match="no memory here for"):
        shared.get_function("testing.nop")(rpcsys.empty(1 << 50, "uint8"))
    assert shared.get_function("testing.nop")() is None


# ---------------------------------------------------------------- modules


def test_a_module_describes_itself(model):
    assert (model.kind, model.functions) == ("rpcsys.onnx", ("main",))
    assert model.inputs == [{"name": name, "dtype": "float32", "shape": ["n", 2]} for name in "ab"]
    assert [output["name"] for output in model.outputs] == ["sum", "double"]
    assert repr(model) == "<remote module rpcsys.onnx (main)>"


def test_a_changed_description_does_not_change_the_next_module(shared, model_file):
    shared.load_module(model_file).inputs[0]["shape"].append("mine")
    assert shared.load_module(model_file).inputs[0]["shape"] == ["n", 2]


def test_calling_a_model(model):
    total, double = model(A, B)
    assert np.array_equal(total, A + B)
    assert np.array_equal(double, 2 * A)
    assert np.array_equal(model["main"](A, B)[0], A + B)
    assert np.array_equal(model.submit(A, B).result()[1], 2 * A)


def test_running_by_name(model):
    out = model.run({"b": B, "a": A})
    assert sorted(out) == ["double", "sum"]
    out = model.run({"a": A, "b": B}, outputs=["double"])
    assert list(out) == ["double"]
    assert np.array_equal(out["double"], 2 * A)
    futures = [model.submit_run({"a": A * number, "b": B}, ["double"]) for number in range(20)]
    assert [future.result()["double"][1, 1] for future in futures] == [6 * number for number in range(20)]


def test_an_array_stays_on_the_device(shared, model):
    a = shared.array(A)
    total, double = model(a, B, keep=True)
    assert np.array_equal(total.numpy(), A + B)
    again, _ = model(total, double)
    assert np.array_equal(again, A + B + 2 * A)
    kept = model.run({"a": a, "b": double}, ["sum"], keep=True)["sum"]
    assert np.array_equal(kept.get(), 3 * A)


def test_a_module_lives_as_long_as_its_functions(shared, model_file):
    main = shared.load_module(model_file)["main"]
    timer = shared.load_module(model_file).time_evaluator("main", number=1)
    shared.get_function("testing.nop")()
    assert np.array_equal(main(A, B)[1], 2 * A)
    assert len(timer(A, B).results) == 1


def test_an_unknown_function_is_an_error(model):
    with pytest.raises(RemoteFunctionError, match="the module has no function 'other'; it has main"):
        model["other"]
    with pytest.raises(RemoteFunctionError):
        model.time_evaluator("other")


@pytest.mark.parametrize(
    ("inputs", "outputs", "message"),
    [
        ({"a": A}, None, "input 'b' is missing"),
        ({"a": A, "b": B, "c": B}, None, "no input 'c'"),
        ({"a": A, "b": B}, ["other"], "no output 'other'"),
        ({"a": A.astype("f8"), "b": B}, None, r"input 'a' wants float32 .* got float64 .*astype\('float32'\)"),
        (A, None, "^RemoteArgumentError: inputs are given by name, such as {'a': array}, not as ndarray; or call the"),
        ([A, B], None, "inputs are given by name, .*, not as list"),
        ({"a": A, "b": B}, 3, "outputs are given as a list of names, .*, not as int"),
        ({"a": A[0], "b": B}, None, r"input 'a' wants float32 \[n, 2\], and got float32 \[2\]"),
    ],
)
def test_a_wrong_input_is_an_error(model, inputs, outputs, message):
    with pytest.raises(RemoteArgumentError, match=message) as caught:
        model.run(inputs, outputs)
    assert "\n" not in str(caught.value)


def test_an_invalid_model_is_a_model_error(shared, tmp_path):
    (tmp_path / "broken.onnx").write_bytes(b"not a model")
    with pytest.raises(ModelError, match=r"broken.onnx cannot be loaded: ") as caught:
        shared.load_module(tmp_path / "broken.onnx")
    assert "\n" not in str(caught.value)


def test_models_load_from_bytes_and_from_files_on_the_device(shared, model_file):
    assert shared.load_module(model_file.read_bytes(), name="again.onnx").functions == ("main",)
    assert shared.load_module("again.onnx").functions == ("main",)
    assert shared.load_module(str(model_file), name="sub/named.onnx").functions == ("main",)
    assert shared.load_module("sub/named.onnx").functions == ("main",)
    assert {"again.onnx", "sub"} <= set(shared.listdir())


@pytest.mark.parametrize("path", ["/nowhere/model.onnx", "../model.onnx", "a/../../model.onnx"])
def test_a_missing_local_path_is_a_remote_file_error(shared, path):
    with pytest.raises(UsageError, match=r"there is no file '.*model\.onnx' here"):
        shared.load_module(path)


# ---------------------------------------------------------------- timing


def test_timing(shared, model):
    result = model.time_evaluator("main", number=3, repeat=4)(A, B)
    assert len(result.results) == 4
    assert 0 < result.min <= result.median <= result.max
    assert len(told(model.time_evaluator("main", number=3, repeat=4).submit(A, B).result()).results) == 4
    nop = shared.get_function("testing.nop").time_evaluator(number=2, repeat=2, min_repeat_ms=1)
    assert len(nop().results) == 2
    cold = model.time_evaluator("main", number=1, repeat=2, cache_flush_bytes=8 << 20)(A, B)
    assert cold.board["before"]["load"] >= 0
    with pytest.raises(RemoteArgumentError, match="number must be"):
        model.time_evaluator("main", number=0)(A, B)
    with pytest.raises(RemoteArgumentError):
        model.time_evaluator("main")(A)
