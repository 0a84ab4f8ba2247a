"""Graphs of stages: tensors between native and other stages, and invalid graphs."""

from __future__ import annotations

import gc
import json
import subprocess
import sys
import threading
import weakref
from pathlib import Path

import numpy as np
import pytest

from rpcsys.errors import ModelError, RemoteArgumentError, RemoteFunctionError, UsageError
from rpcsys.module import Module, Stage, graph, group, library, params, walk
from rpcsys.module.kinds import graph as kind
from rpcsys.module.kinds import graph_json
from tests.module.kinds.test_graph_json import GOOD
from tests.module.trees import Holder, blob_of, bytes_kind, loaded
from tests.native import bare, compiled, lay_out
from tests.pythons import pythons

__all__ = ["bytes_kind"]
SOURCE = Path(__file__).with_name("preprocess.c")


def values(*names, dtype="float32", shape=None):
    return [{"name": name, **({"dtype": dtype, "shape": shape} if shape is not None else {})} for name in names]


def of(**functions):
    return Module("testing", functions)


def test_tensors_flow_by_name():
    first = of(main=lambda x, y: (x + y, x - y))
    second = of(scale=lambda a, b: a * 10 + b)
    made = graph(
        [Stage("one", first, ["x", "y"], ["sum", "difference"]),
         Stage("two", second, ["difference", "sum"], ["z"], "scale")],
        values("x", "y"), values("z", "sum"),
    )  # fmt: skip
    assert made(5, 2) == (37, 7)
    assert made.run({"y": 2, "x": 5}) == {"z": 37, "sum": 7}
    assert made.run({"y": 2, "x": 5}, ["sum"]) == {"sum": 7}
    assert made.functions == ["main", "scale"]
    assert [module.kind for module in made.imports] == ["testing", "testing"]


def test_one_module_for_several_stages_is_one_import():
    both = of(main=lambda x: x + 1, double=lambda x: x * 2)
    made = graph([Stage("a", both, ["x"], ["y"]), Stage("b", both, ["y"], ["z"], "double")], values("x"), values("z"))
    assert (made.imports, made(3)) == ((both,), 8)


@pytest.mark.parametrize("outputs", [["sum"], ["sum", "difference"]])
def test_its_function_for_native_code_writes_into_arrays(outputs):
    both = of(main=lambda x, y: (x + y, x - y))
    made = graph([Stage("a", both, ["x", "y"], ["sum", "difference"])], values("x", "y"), values(*outputs), writes="f")
    assert made.functions == ["main", "f"]
    x, y = np.arange(6, dtype="f4").reshape(2, 3), np.ones((2, 3), "f4")
    places = [np.zeros((2, 3), "f4") for _ in outputs]
    assert made["f"](x, y, *places) is None
    for place, wanted in zip(places, (x + y, x - y), strict=False):
        assert np.array_equal(place, wanted)
    with pytest.raises(RemoteArgumentError, match=rf"f takes 2 input\(s\) and {len(outputs)} array\(s\).*, not 2"):
        made["f"](x, y)
    for other in (np.zeros((3, 2), "f4"), np.zeros((2, 3), "f8"), 3):
        with pytest.raises(ModelError, match="output 'sum' is Tensor"):
            made["f"](x, y, other, *places[1:])


def test_its_function_for_native_code_is_saved_and_has_a_name_of_its_own():
    stages = [Stage("a", group([]), ["x"], ["y"])]
    made = graph(stages, values("x"), values("y"), writes="f")
    assert kind.load_from_bytes(memoryview(b"".join(kind.save_to_bytes(made, 0))), None).names() == ["main", "f"]
    with pytest.raises(UsageError, match="its function for native code has no name of its own"):
        graph(stages, values("x"), values("y"), writes="main")


def test_a_tensor_that_no_stage_needs_is_dropped():

    seen = []

    def make(x):
        result = np.ones(3)
        seen.append(weakref.ref(result))
        return result

    made = graph(
        [
            Stage("make", of(main=make), ["x"], ["a"]),
            Stage("use", of(main=lambda a: a.sum()), ["a"], ["b"]),
            Stage("look", of(main=lambda b: (b, seen[0]() is None)), ["b"], ["c", "gone"]),
        ],
        values("x"), values("c", "gone"),
    )  # fmt: skip
    assert made(0) == (3, True)


def test_weights_are_shared_by_stages_and_the_graph():
    shared = params({"mean": np.arange(3.0)})
    made = graph(
        [Stage("less", of(main=lambda x, mean: x - mean), ["x", "mean"], ["y"])],
        values("x"),
        values("y"),
        params=shared,
    )
    assert made(np.ones(3)).tolist() == [1, 0, -1]
    assert made.graph["weights"] == ["mean"]
    assert made.params is shared


def test_inputs_are_checked():
    inputs = [*values("x", shape=["n", 3]), *values("y", shape=["n", None])]
    made = graph([Stage("a", of(main=lambda x, y: 1), ["x", "y"], ["z"])], inputs, values("z"))
    good = np.ones((2, 3), "f4")
    assert made(good, good) == 1
    for x, y, message in [
        (good.astype("f8"), good, r"'x' wants float32 \[n, 3\], and got float64 \[2, 3\]"),
        (good[:, :2], good, r"'x' wants float32 \[n, 3\], and got float32 \[2, 2\]"),
        (good[0], good, r"got float32 \[3\]"),
        (good, np.ones((5, 1), "f4"), r"'y' wants float32 \[n, \?\], and got float32 \[5, 1\]"),
    ]:
        with pytest.raises(RemoteArgumentError, match=message):
            made(x, y)
    with pytest.raises(RemoteArgumentError, match=r"takes 2 input\(s\), not 1: x, y"):
        made(good)


def test_stages_check_inputs_of_unknown_type_or_shape():
    inputs = [{"name": "any", "dtype": "unknown", "shape": []},
              {"name": "list", "dtype": "seq(tensor(float))", "shape": []},
              {"name": "scalar", "dtype": "float32", "shape": []}, {"name": "bare"}]  # fmt: skip
    names = [value["name"] for value in inputs]
    made = graph(
        [Stage("a", of(main=lambda *args: args), names, ["a", "b", "c", "d"])], inputs, values("a", "b", "c", "d")
    )
    x = np.ones(3, "f4")
    assert made(x, [x], x, x) == (x, [x], x, x)
    assert made("text", None, np.float32(1), 3) == ("text", None, 1, 3)
    with pytest.raises(RemoteArgumentError, match=r"'scalar' wants float32 \[\], and got float64 \[\]"):
        made(x, [x], np.float64(1), x)


def test_a_stage_with_too_few_outputs_is_an_error():
    made = graph([Stage("a", of(main=lambda x: (x, x)), ["x"], ["a", "b", "c"])], values("x"), values("a"))
    with pytest.raises(ModelError, match="stage 'a' gave 2 outputs, and the graph wants a, b, c"):
        made(1)


@pytest.mark.parametrize(
    ("stages", "outputs", "message"),
    [
        ([], ["y"], "no stages"),
        ([(["x"], ["y"])], ["z"], "no stage makes the output 'z'"),
        ([(["z"], ["y"])], ["y"], "nothing before stage 's0' makes its input 'z'"),
        ([(["x"], ["y"]), (["y"], ["y"])], ["y"], "made twice"),
        ([(["x"], ["y", "y"])], ["y"], "made twice"),
        ([(["x"], ["x"])], ["x"], "made twice"),
        ([(["b"], ["a"]), (["a"], ["b"])], ["b"], "nothing before stage 's0'"),
    ],
)
def test_invalid_graphs_are_refused(stages, outputs, message):
    one = of(main=print)
    with pytest.raises(UsageError, match=message):
        graph([Stage(f"s{i}", one, *stage) for i, stage in enumerate(stages)], values("x"), values(*outputs))


# ---------------------------------------------------------------- saved and loaded


@pytest.mark.usefixtures("bytes_kind")
def test_round_trip():
    made = graph([Stage("count", Holder(b"abc"), [], ["n"], "size")], [], values("n"))
    blob = blob_of(made)
    again = loaded(blob)
    assert again() == 3
    assert blob_of(again) == blob


def test_a_missing_function_of_a_stage_is_an_error():
    with pytest.raises(ModelError, match=r"stage 's' runs the function 'f', and rpcsys.group has none"):
        loaded(blob_of(kind.GraphModule(graph_json.checked(GOOD), [group([])])))


def test_the_wrong_number_of_imports():
    with pytest.raises(ModelError, match=r"imports 1 modules \(rpcsys.group\), and got 0 \(none\)"):
        loaded(blob_of(kind.GraphModule(graph_json.checked(GOOD))))


# ---------------------------------------------------------------- native stages


@pytest.fixture(scope="module")
def native(tmp_path_factory):
    return compiled(SOURCE, tmp_path_factory.mktemp("native") / "preprocess.so")


def preparing(native):
    shared = params({"mean": np.array([0.1, 0.2, 0.3], "f4")})
    stage = Stage("prepare", library(native), ["image", "mean"], ["x"], "prepare", [("float32", [1, 3, "h", "w"])])
    return graph([stage], values("image", dtype="uint8", shape=["h", "w", 3]), values("x"), params=shared)


def prepared(image):
    return (image.astype("f4") / np.float32(255) - np.array([0.1, 0.2, 0.3], "f4")).transpose(2, 0, 1)[None]


def test_a_native_stage_writes_into_its_output(native):
    for size in ((4, 6), (5, 3)):
        image = np.random.default_rng(0).integers(0, 256, (*size, 3), "u1")
        result = loaded(blob_of(preparing(native)))(image)
        assert result.shape == (1, 3, *size)
        assert np.allclose(result, prepared(image), atol=1e-6)


def test_many_threads(native):
    made, failures = loaded(blob_of(preparing(native))), []

    def work(seed):
        for _ in range(50):
            image = np.random.default_rng(seed).integers(0, 256, (8, 8 + seed, 3), "u1")
            if not np.allclose(made(image), prepared(image), atol=1e-6):
                failures.append(seed)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


BARE = """
import sys
from rpcsys.module import layout, tree
from rpcsys.module.registry import Context
from rpcsys.wire.tensor import Tensor
blob = open(sys.argv[1], "rb").read()
root = tree.load(layout.decode(memoryview(blob)), Context("model.so", None))
image = memoryview(bytes(range(24))).cast("B", [2, 4, 3])
x = root(image)
print(type(x).__name__, x.dtype, list(x.shape), [round(v, 4) for v in x.tolist()[0][2][1]])
print([name for name in ("numpy", "asyncio") if name in sys.modules])
"""


@pytest.mark.parametrize("version", pythons())
def test_on_a_bare_board(native, tmp_path, version):
    (tmp_path / "tree").write_bytes(blob_of(preparing(native)))
    output = bare(lay_out(tmp_path / "board"), BARE, tmp_path / "tree", python=pythons()[version]).splitlines()
    image = np.arange(24, dtype="u1").reshape(2, 4, 3)
    wanted = [round(float(v), 4) for v in prepared(image)[0, 2, 1]]
    assert output == [f"Tensor float32 [1, 3, 2, 4] {wanted}", "[]"]


# ---------------------------------------------------------------- the parts, apart


def test_parts_are_saved_separately_and_joined_again(native, tmp_path):
    made = preparing(native)
    made.save_graph_json(tmp_path / "graph.json")
    described = json.loads((tmp_path / "graph.json").read_text())
    assert described == made.graph
    stages = loaded(blob_of(made.library))
    assert [module.kind for module in stages.imports] == ["rpcsys.library"]
    weights = loaded(blob_of(made.params))
    image = np.random.default_rng(0).integers(0, 256, (4, 4, 3), "u1")
    text = (tmp_path / "graph.json").read_text()
    for library_given in (stages, stages.imports):
        for weights_given in (weights, {"mean": np.array([0.1, 0.2, 0.3], "f4")}):
            assert np.array_equal(kind.create(text, library_given, weights_given)(image), made(image))
    brighter = kind.create(text, stages, {"mean": np.zeros(3, "f4")})
    assert np.allclose(brighter(image), prepared(image) + np.array([0.1, 0.2, 0.3], "f4").reshape(3, 1, 1), atol=1e-6)


def test_parts_that_do_not_fit_are_refused(native):
    made = preparing(native)
    text = json.dumps(made.graph)
    with pytest.raises(UsageError, match=r"imports rpcsys.library, rpcsys.params, and was given rpcsys.library$"):
        kind.create(text, made.library)
    with pytest.raises(UsageError, match=r"was given testing, testing, rpcsys\.params"):
        kind.create(text, [of(), of()], made.params)
    with pytest.raises(ModelError, match="lacks the weights mean"):
        kind.create(text, made.library, {"std": np.ones(3)})
    for broken in ("", "[]", "{", '{"inputs": 3}'):
        with pytest.raises(UsageError, match="the graph is broken"):
            kind.create(broken, made.library)


def test_a_path_that_cannot_be_written_is_refused(native, tmp_path):
    with pytest.raises(UsageError, match="cannot be written: No such file"):
        preparing(native).save_graph_json(tmp_path / "nowhere" / "graph.json")


def test_onnx_stages_take_weights_that_were_saved_separately():
    onnx = pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")
    from onnx import helper as h

    from rpcsys.module import onnx_module, weights_of

    weight = onnx.numpy_helper.from_array(np.arange(600, dtype="f4"), "w")
    value = [h.make_tensor_value_info(name, 1, [600]) for name in ("x", "y")]
    node = h.make_node("Add", ["x", "w"], ["y"])
    model = h.make_model(h.make_graph([node], "g", value[:1], value[1:], [weight]), ir_version=10)
    shared = params(weights_of(model))
    made = graph([Stage("add", onnx_module(model, params=shared), ["x"], ["y"])], values("x"), values("y"))
    x = np.ones(600, "f4")
    assert made(x).tolist() == (np.arange(600) + 1).tolist()
    parts = loaded(blob_of(made.library))
    assert "rpcsys.params" not in [module.kind for module in parts.imports[0].imports]
    with pytest.raises(ModelError, match="were saved apart"):
        kind.create(json.dumps(made.graph), parts)(x)
    assert np.array_equal(kind.create(json.dumps(made.graph), parts, loaded(blob_of(made.params)))(x), made(x))


def test_the_kind_needs_no_package():
    code = "import sys, rpcsys.module.kinds.graph; print(sorted({'numpy', 'onnx', 'onnxruntime'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout == "[]\n", done.stderr


@pytest.mark.usefixtures("native")
def test_a_dropped_module_is_freed_at_once(native):
    """Without waiting for a collector of garbage: a network is large."""
    made = loaded(blob_of(preparing(native)))
    made(np.zeros((2, 2, 3), "u1"))
    gone = [weakref.ref(module) for module in walk(made)]
    gc.disable()
    try:
        del made
        assert [each() for each in gone] == [None] * len(gone)
    finally:
        gc.enable()


def test_closed(native):
    made = loaded(blob_of(preparing(native)))
    main = made["main"]
    made.close()
    with pytest.raises(RemoteFunctionError, match="was closed"):
        main(np.zeros((2, 2, 3), "u1"))
