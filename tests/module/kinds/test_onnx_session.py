"""ONNX models in the real onnxruntime: all types of inputs and outputs, and an error of one line for the rest."""

from __future__ import annotations

import functools
import math
import os
import subprocess
import sys
import warnings

import ml_dtypes
import numpy as np
import pytest

onnx = pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")

from onnx import TensorProto as T  # noqa: E402 - only where onnx is
from onnx import helper as h  # noqa: E402

from rpcsys.errors import ModelError, RemoteArgumentError, RemoteFunctionError  # noqa: E402
from rpcsys.graph import samples  # noqa: E402
from rpcsys.module.kinds import onnx_proto  # noqa: E402
from rpcsys.module.loading import load_file  # noqa: E402
from rpcsys.wire.tensor import Tensor  # noqa: E402
from tests.device_files import ROOT  # noqa: E402


def value(name, dtype=T.FLOAT, shape=("n",)):
    return h.make_tensor_value_info(name, dtype, shape)


def saved(tmp_path, nodes, inputs, outputs, *, opset=21, ir=10, domains=(), initializers=()):
    graph = h.make_graph(nodes, "test", inputs, outputs, list(initializers))
    opsets = [h.make_opsetid("", opset), *(h.make_opsetid(domain, 3) for domain in domains)]
    path = tmp_path / "model.onnx"
    path.write_bytes(h.make_model(graph, ir_version=ir, opset_imports=opsets).SerializeToString())
    return str(path)


def load(*args, **kwargs):
    return load_file(saved(*args, **kwargs), "model.onnx")


def identity(tmp_path, dtype, shape=("n",), **more):
    return load(
        tmp_path,
        [h.make_node("Identity", ["x"], ["y"])],
        [value("x", dtype, shape)],
        [value("y", dtype, shape)],
        **more,
    )


def refused(call, message):
    with pytest.raises(RemoteArgumentError, match=message) as caught:
        call()
    assert "\n" not in str(caught.value)


@pytest.fixture
def add(tmp_path):
    return load(tmp_path, [h.make_node("Sub", ["a", "b"], ["y"])], [value("a"), value("b")], [value("y")])


# ---------------------------------------------------------------- element types


PLAIN = [
    T.FLOAT, T.DOUBLE, T.FLOAT16, T.BOOL, T.INT8, T.INT16, T.INT32, T.INT64, T.UINT8, T.UINT16, T.UINT32, T.UINT64,
]  # fmt: skip
RAW = {T.BFLOAT16: "bfloat16", T.FLOAT8E4M3FN: "float8_e4m3fn", T.FLOAT8E4M3FNUZ: "float8_e4m3fnuz",
       T.FLOAT8E5M2: "float8_e5m2", T.FLOAT8E5M2FNUZ: "float8_e5m2fnuz"}  # fmt: skip


@pytest.mark.parametrize("dtype", PLAIN, ids=T.DataType.Name)
@pytest.mark.parametrize("size", [0, 3])
def test_plain_element_types(tmp_path, dtype, size):
    model = identity(tmp_path, dtype)
    array = np.ones(size, h.tensor_dtype_to_np_dtype(dtype))
    (described,) = model.describe()["inputs"]
    assert described == {"name": "x", "dtype": array.dtype.name, "shape": ["n"]}
    result = model.function("main")(array)
    assert result.dtype == array.dtype
    assert np.array_equal(result, array)


@pytest.mark.parametrize("dtype", RAW, ids=T.DataType.Name)
@pytest.mark.parametrize("size", [0, 1, 5])
@pytest.mark.parametrize("as_tensor", [True, False])
def test_element_types_that_numpy_lacks(tmp_path, dtype, size, as_tensor):
    model = identity(tmp_path, dtype)
    array = np.arange(size).astype(getattr(ml_dtypes, RAW[dtype]))
    sent = Tensor(RAW[dtype], (size,), array.view("u1").tobytes()) if as_tensor else array
    result = model.function("main")(sent)
    assert (type(result), result.dtype, result.shape) == (Tensor, RAW[dtype], (size,))
    assert bytes(result.data) == array.tobytes()
    refused(lambda: model.function("main")(np.ones(size, "f4")), f"wants {RAW[dtype]} .* got float32")
    refused(lambda: model.function("main")([1.0]), f"wants {RAW[dtype]} .* got list")


def test_bfloat16_beside_float32(tmp_path):
    model = load(
        tmp_path,
        [h.make_node("Cast", ["x"], ["y"], to=T.BFLOAT16), h.make_node("Cast", ["b"], ["z"], to=T.FLOAT)],
        [value("x"), value("b", T.BFLOAT16)], [value("y", T.BFLOAT16), value("z")],
    )  # fmt: skip
    y, z = model.function("main")(np.array([1.5, 2], "f4"), np.array([3, 4], ml_dtypes.bfloat16))
    assert np.array_equal(y.numpy(), np.array([1.5, 2], ml_dtypes.bfloat16))
    assert np.array_equal(z, np.array([3, 4], "f4"))


@pytest.mark.parametrize("name", ["int4", "uint4", "int2", "uint2"])
@pytest.mark.parametrize("shape", [(0,), (1,), (5,), (2, 3), (4, 4), ()])
def test_types_of_less_than_a_byte(tmp_path, name, shape):
    """A byte each here and on the wire, several in one in onnxruntime."""
    number = getattr(T, name.upper())
    model = load(
        tmp_path,
        [h.make_node("Cast", ["x"], ["y"], to=T.FLOAT), h.make_node("Cast", ["f"], ["z"], to=number)],
        [value("x", number, shape), value("f", T.FLOAT, shape)],
        [value("y", T.FLOAT, shape), value("z", number, shape)],
        opset=25,
    )  # fmt: skip
    assert model.runtime == "onnxruntime"
    info = ml_dtypes.iinfo(name)
    numbers = np.resize(np.arange(info.min, info.max + 1), shape).astype("f4")
    y, z = model.function("main")(numbers.astype(getattr(ml_dtypes, name)), numbers)
    assert np.array_equal(y, numbers)
    assert z.dtype == name
    assert np.array_equal(z.numpy().astype("f4"), numbers)


def test_bfloat16_in_beside_strings(tmp_path):
    """It is only results of both kinds that onnxruntime cannot give together."""
    model = load(
        tmp_path,
        [h.make_node("Cast", ["x"], ["y"], to=T.FLOAT), h.make_node("Identity", ["t"], ["s"])],
        [value("x", T.BFLOAT16), value("t", T.STRING)], [value("y"), value("s", T.STRING)],
    )  # fmt: skip
    assert model.runtime == "onnxruntime"
    y, s = model.function("main")(np.array([1, 2], ml_dtypes.bfloat16), np.array(["a"], object))
    assert (y.tolist(), s.tolist()) == ([1.0, 2.0], ["a"])


@pytest.mark.parametrize("other", [T.STRING, None])
def test_bfloat16_beside_strings_or_sequences(tmp_path, other):
    outputs = [
        value("y", T.BFLOAT16),
        value("s", T.STRING) if other else h.make_tensor_sequence_value_info("s", T.FLOAT, None),
    ]
    node = h.make_node("Identity", ["t"], ["s"]) if other else h.make_node("SequenceConstruct", ["t"], ["s"])
    inputs = [value("x", T.BFLOAT16), value("t", T.STRING if other else T.FLOAT)]
    model = load(tmp_path, [h.make_node("Identity", ["x"], ["y"]), node], inputs, outputs)
    assert model.runtime == "reference"  # onnxruntime does not support such calls from Python
    x = np.array([1, 2], ml_dtypes.bfloat16)
    y, s = model(x, np.array(["a"], object) if other else np.ones(1, "f4"))
    assert (y.dtype, bytes(y.data)) == ("bfloat16", x.tobytes())
    assert list(s) == ["a"] if other else s[0].tolist() == [1.0]


@pytest.mark.parametrize(
    "texts",
    [
        np.array(["a", "é", "", "nul\0inside"], object),
        np.array(["a", "é"]),
        np.array([], object),
        np.array(["a", "longer than others"], np.dtypes.StringDType()),
        Tensor("strings", (2,), ["a", "b"]),
        ["a", "list"],
    ],
    ids=["object", "U", "empty", "StringDType", "Tensor", "list"],
)
def test_strings(tmp_path, texts):
    result = identity(tmp_path, T.STRING).function("main")(texts)
    assert result.tolist() == (texts.data if isinstance(texts, Tensor) else list(texts))


def test_strings_and_numbers_are_distinguished(tmp_path):
    main = identity(tmp_path, T.STRING).function("main")
    refused(lambda: main(np.ones(2, "f4")), r"wants strings \[n\], and got float32 \[2\]")
    refused(lambda: main(np.array([b"a"])), "wants strings")
    refused(lambda: identity(tmp_path, T.FLOAT).function("main")(np.array(["a"])), "wants float32 .* got strings")


def test_numbers_of_other_machines(add):
    result = add.function("main")(np.array([3, 4], ">f4"), np.array([1, 1], ">f4"))
    assert result.tolist() == [2.0, 3.0]


def test_arrays_that_are_not_in_order(add):
    grid = np.arange(8, dtype="f4").reshape(4, 2)
    assert add.function("main")(grid[:, 1], grid[::-1, 0]).tolist() == (grid[:, 1] - grid[::-1, 0]).tolist()


# ---------------------------------------------------------------- shapes


def test_zero_rank(tmp_path):
    result = identity(tmp_path, T.FLOAT, ()).function("main")(np.array(2.5, "f4"))
    assert (result.shape, float(result)) == ((), 2.5)
    assert float(identity(tmp_path, T.FLOAT, ()).function("main")(np.float32(1.5))) == 1.5


@pytest.mark.parametrize("shape", [(0, 2), (3, 0)])
def test_zero_size(tmp_path, shape):
    assert identity(tmp_path, T.FLOAT, ("n", None)).function("main")(np.zeros(shape, "f4")).shape == shape


def test_wrong_shapes(tmp_path):
    main = identity(tmp_path, T.FLOAT, ("n", 3, None)).function("main")
    assert main(np.zeros((5, 3, 7), "f4")).shape == (5, 3, 7)
    for shape in ((5, 4, 7), (5, 3), (), (1, 5, 3, 7)):
        wrong = functools.partial(main, np.zeros(shape, "f4"))
        refused(wrong, r"input 'x' wants float32 \[n, 3, \?\], and got float32 ")
    refused(lambda: main(np.zeros((5, 3, 7))), r"got float64 \[5, 3, 7\]; convert it with .astype\('float32'\)")
    refused(lambda: main([[1.0], [1.0, 2.0]]), "input 'x' cannot be made an array")
    refused(lambda: main(None), "got strings|wants float32")


def test_sizes_that_do_not_match_are_an_error_of_onnxruntime(add):
    with pytest.raises(Exception, match=r"ONNXRuntimeError"):
        add.function("main")(np.ones(2, "f4"), np.ones(3, "f4"))


# ---------------------------------------------------------------- names


def test_running_by_name(add):
    a, b = np.array([5], "f4"), np.array([1], "f4")
    assert add.run({"b": b, "a": a})["y"].tolist() == [4.0]
    assert list(add.run({"a": a, "b": b}, ["y"])) == ["y"]
    assert add.run({"a": a, "b": b}, []) == {}


def test_wrong_names(add):
    one = np.ones(1, "f4")
    refused(lambda: add.run({"a": one}), "input 'b' is missing; the model wants 'a', 'b'")
    refused(lambda: add.run({"a": one, "b": one, "c": one}), "the model has no input 'c'; it has 'a', 'b'")
    refused(lambda: add.run({"a": one, "b": one}, ["x"]), "the model has no output 'x'; it has 'y'")
    refused(lambda: add.function("main")(one), r"the model takes 2 input\(s\), not 1: 'a', 'b'")
    with pytest.raises(RemoteFunctionError, match="has no function 'other'; it has main"):
        add.function("other")


def test_defaults_may_be_given_by_name(tmp_path):
    default = onnx.numpy_helper.from_array(np.array([10], "f4"), "b")
    model = load(
        tmp_path, [h.make_node("Add", ["a", "b"], ["y"])], [value("a"), value("b", shape=(1,))], [value("y")],
        initializers=[default],
    )  # fmt: skip
    one = np.ones(1, "f4")
    assert [described["name"] for described in model.describe()["inputs"]] == ["a"]
    assert model.function("main")(one).tolist() == model.run({"a": one})["y"].tolist() == [11.0]
    assert model.run({"a": one, "b": one})["y"].tolist() == [2.0]


def test_no_inputs_and_several_outputs(tmp_path):
    nodes = [h.make_node("Constant", [], [name], value_float=number) for name, number in (("y", 1.0), ("z", 2.0))]
    model = load(tmp_path, nodes, [], [value("y", shape=()), value("z", shape=())])
    assert [float(result) for result in model.function("main")()] == [1.0, 2.0]


# ---------------------------------------------------------------- what is no tensor


def test_sequences(tmp_path):
    made = load(
        tmp_path, [h.make_node("SequenceConstruct", ["x", "x"], ["s"])], [value("x")],
        [h.make_tensor_sequence_value_info("s", T.FLOAT, None)],
    )  # fmt: skip
    result = made.function("main")(np.ones(2, "f4"))
    assert [part.tolist() for part in result] == [[1.0, 1.0]] * 2
    assert made.describe()["outputs"] == [{"name": "s", "dtype": "seq(tensor(float))", "shape": []}]
    taken = load(
        tmp_path, [h.make_node("SequenceLength", ["s"], ["n"])],
        [h.make_tensor_sequence_value_info("s", T.FLOAT, None)], [value("n", T.INT64, ())],
    )  # fmt: skip
    assert [int(taken.function("main")(part)) for part in (result, [], result[:1])] == [2, 0, 1]


def test_optionals(tmp_path):
    optional = h.make_value_info("o", h.make_optional_type_proto(h.make_tensor_type_proto(T.FLOAT, [2])))
    model = load(tmp_path, [h.make_node("OptionalHasElement", ["o"], ["y"])], [optional], [value("y", T.BOOL, ())])
    assert [bool(model.function("main")(given)) for given in (np.ones(2, "f4"), None)] == [True, False]


def test_maps(tmp_path):
    classes = h.make_value_info(
        "z", h.make_sequence_type_proto(h.make_map_type_proto(T.INT64, h.make_tensor_type_proto(T.FLOAT, [])))
    )
    node = h.make_node("ZipMap", ["x"], ["z"], domain="ai.onnx.ml", classlabels_int64s=[10, 20])
    model = load(tmp_path, [node], [value("x", shape=(None, 2))], [classes], opset=17, ir=8, domains=["ai.onnx.ml"])
    assert model.function("main")(np.array([[1, 2]], "f4")) == [{10: 1.0, 20: 2.0}]


# ---------------------------------------------------------------- files


@pytest.mark.parametrize("ir", [3, 8, onnx.IR_VERSION, 99])
def test_ir_versions_newer_than_onnxruntime_supports(tmp_path, ir):
    model = identity(tmp_path, T.FLOAT, opset=13, ir=ir)
    assert model.function("main")(np.ones(2, "f4")).tolist() == [1.0, 1.0]
    assert os.listdir(tmp_path) == ["model.onnx"]


def test_lowering_the_ir_version_changes_nothing_else(tmp_path):
    data = open(saved(tmp_path, [], [], [], ir=14), "rb").read()  # noqa: SIM115
    before, after = onnx.load_from_string(data), onnx.load_from_string(onnx_proto.with_ir_version(data, 9))
    assert after.ir_version == 9
    after.ir_version = before.ir_version
    assert before == after


def test_a_newer_ir_version_with_weights_beside_the_model(tmp_path):
    weights = onnx.numpy_helper.from_array(np.arange(2000, dtype="f4"), "w")
    path = saved(tmp_path, [h.make_node("Add", ["x", "w"], ["y"])],
                 [value("x", shape=(2000,))], [value("y", shape=(2000,))],
                 ir=99, opset=13, initializers=[weights])  # fmt: skip
    model = onnx.load(path)
    onnx.save(model, path, save_as_external_data=True, location="weights.bin", size_threshold=0)
    assert os.path.getsize(tmp_path / "weights.bin") >= 8000
    result = load_file(path, "model.onnx").function("main")(np.ones(2000, "f4"))
    assert result[-1] == 2000.0
    assert sorted(os.listdir(tmp_path)) == ["model.onnx", "weights.bin"]


def test_an_opset_that_onnxruntime_supports_as_unreleased(tmp_path):
    """27 to onnxruntime 1.31, which refuses it unless told otherwise."""
    model = identity(tmp_path, T.FLOAT, opset=27)
    assert model.function("main")(np.ones(1, "f4")).tolist() == [1.0]


def cosh(tmp_path):
    """A model that onnxruntime does not run: it has Cosh of float32 alone."""
    node = h.make_node("Cosh", ["x"], ["y"])
    return saved(tmp_path, [node], [value("x", T.DOUBLE)], [value("y", T.DOUBLE)])


def test_the_reference_evaluator_runs_what_onnxruntime_lacks(tmp_path):
    model = load_file(cosh(tmp_path), "model.onnx")
    assert model.runtime == "reference"
    assert model.describe()["inputs"] == [{"name": "x", "dtype": "float64", "shape": ["n"]}]
    x = np.arange(2.0)
    assert model(x).tolist() == np.cosh(x).tolist()
    assert model.run({"x": x}, ["y"])["y"].tolist() == np.cosh(x).tolist()


WITHOUT_ONNX = """
import sys
sys.modules["onnx"] = None
from rpcsys.module import loading
try:
    loading.load_file(sys.argv[1], "model.onnx")
except Exception as error:
    print(type(error).__name__, error.args[0])
"""


def test_without_the_reference_evaluator_it_is_onnxruntimes_error(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_ONNX, cosh(tmp_path)], capture_output=True, text=True, cwd=ROOT
    )
    assert done.stdout.startswith("ModelError model.onnx cannot be loaded: "), done.stderr
    assert "Cosh" in done.stdout


@pytest.mark.parametrize(
    ("content", "why"),
    [(b"", ""), (b"nonsense", ""), (b"\x08\x08", ""), (None, "doesn't exist|No such file|not found")],
)
def test_files_that_are_no_models_are_refused(tmp_path, content, why):
    path = tmp_path / "model.onnx"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ModelError, match=f"my/model.onnx cannot be loaded: .*(?:{why})") as caught:
        load_file(str(path), "my/model.onnx")
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 500


def test_a_truncated_model(tmp_path):
    path = saved(tmp_path, [h.make_node("Add", ["a", "b"], ["y"])], [value("a"), value("b")], [value("y")])
    data = open(path, "rb").read()  # noqa: SIM115
    for length in (len(data) // 2, len(data) - 1):
        (tmp_path / "model.onnx").write_bytes(data[:length])
        with pytest.raises(ModelError, match="cannot be loaded"):
            load_file(path, "model.onnx")


def test_an_unknown_operator_is_an_error(tmp_path):
    with pytest.raises(ModelError, match=r"cannot be loaded: .*Conjure"):
        load(tmp_path, [h.make_node("Conjure", ["x"], ["y"])], [value("x")], [value("y")])


# ---------------------------------------------------------------- real networks


@pytest.mark.parametrize("name", ["squeezenet", "shufflenet"])
def test_real_networks(tmp_path, name):
    network = samples.light_model(name, seed=1)
    path = str(tmp_path / "network.onnx")
    samples.save(network, path)
    image = np.random.default_rng(2).random((1, 3, 224, 224), dtype="f4")
    (described,) = load_file(path, "network.onnx").describe()["inputs"]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        mine = load_file(path, "network.onnx").run({described["name"]: image})
    theirs = samples.run_here(path, {described["name"]: image})
    assert described["shape"] == [1, 3, 224, 224]
    assert sorted(mine) == sorted(theirs)
    for output, array in theirs.items():
        assert np.allclose(mine[output], array, rtol=1e-4, atol=1e-6)
        assert math.isfinite(mine[output].sum())
        assert mine[output].std() > 0  # uniform outputs would hide every mistake


def test_threads_are_bound_to_the_cpus_of_the_process(tmp_path):
    """With its default thread count onnxruntime pins workers of its own and escapes the affinity."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    try:
        path = str(tmp_path / "network.onnx")
        samples.save(samples.light_model("squeezenet"), path)
        known = set(os.listdir("/proc/self/task"))
        model = load_file(path, "network.onnx")
        model.function("main")(np.ones((1, 3, 224, 224), "f4"))
        new = set(os.listdir("/proc/self/task")) - known
        assert all(os.sched_getaffinity(int(task)) == {min(before)} for task in new)
    finally:
        os.sched_setaffinity(0, before)
