"""ONNX models inside a library: separated from weights, shared weights, and joined again."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
import weakref
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

from onnx import TensorProto as T  # noqa: E402 - only where onnx is
from onnx import helper as h  # noqa: E402

from rpcsys.errors import ModelError, RemoteFunctionError, UsageError  # noqa: E402
from rpcsys.module import group, layout, onnx_module, params, tree, weights_of  # noqa: E402
from rpcsys.module.registry import Context, File  # noqa: E402
from tests.device_files import ROOT  # noqa: E402
from tests.module.onnx_models import W, made, product, value, weight  # noqa: E402
from tests.module.trees import blob_of, loaded  # noqa: E402


def mapped(blob: bytes, path: Path):
    """The tree in a file that begins with one unrelated page, loaded from there."""
    path.write_bytes(bytes(4096) + blob)
    file = File.map(str(path))
    return tree.load(layout.decode(file.view[4096:]), Context(path.name, lambda: None, file=file))


@pytest.fixture(params=["memory", "file"])
def again(request, tmp_path):
    """Saves a tree and loads it again, from memory or from a mapped file."""

    def act(root):
        blob = blob_of(root)
        result = loaded(blob) if request.param == "memory" else mapped(blob, tmp_path / "model.so")
        assert blob_of(result) == blob
        return result

    return act


def test_inputs_and_outputs_are_those_of_onnxruntime(again):
    module = onnx_module(product())
    assert module.describe() == {
        "kind": "rpcsys.onnx",
        "functions": ["main"],
        "inputs": [{"name": "x", "dtype": "float32", "shape": ["n", 300]}],
        "outputs": [{"name": "y", "dtype": "float32", "shape": ["n", 200]}],
    }
    before = module.describe()
    assert module.runtime == "onnxruntime"
    assert module.describe() == before == again(module).describe()


def test_results_are_the_same(again):
    x = np.random.default_rng(1).standard_normal((5, 300)).astype("f4")
    module = onnx_module(product())
    assert np.array_equal(again(module)(x), module(x))
    assert np.allclose(module(x), x @ W, rtol=1e-4, atol=1e-4)


def test_weights_in_a_file_of_their_own(tmp_path, again):
    onnx.save(product(), tmp_path / "model.onnx", save_as_external_data=True, location="weights", size_threshold=0)
    assert os.path.getsize(tmp_path / "weights") >= W.nbytes
    x = np.ones((1, 300), "f4")
    assert np.allclose(again(onnx_module(tmp_path / "model.onnx"))(x), x @ W, rtol=1e-4, atol=1e-4)


def test_a_loaded_file_can_be_saved(tmp_path, again):
    from rpcsys.module import load_module

    onnx.save(product(), tmp_path / "model.onnx")
    x = np.ones((1, 300), "f4")
    assert np.array_equal(again(load_module(tmp_path / "model.onnx"))(x), load_module(tmp_path / "model.onnx")(x))


@pytest.mark.parametrize(
    "dtype", ["float16", "float64", "int8", "uint8", "int32", "int64", "bool", "bfloat16", "float8_e4m3fn"]
)
def test_element_types_of_weights(dtype, again):
    kind = np.dtype(getattr(ml_dtypes, dtype, dtype))
    array = (np.arange(2000) % 2).astype(kind)
    number = h.np_dtype_to_tensor_dtype(kind)
    held = h.make_tensor("w", number, array.shape, array.tobytes(), raw=True)
    model = made([h.make_node("Identity", ["w"], ["y"])], [], [value("y", number, (2000,))], [held])
    module = onnx_module(model)
    assert list(module.model.weights) == ["w"]
    result = again(module)()
    assert (
        bytes(np.asarray(result).view("u1") if dtype not in ("bfloat16", "float8_e4m3fn") else result.data)
        == array.tobytes()
    )


def test_weights_of_strings_and_half_bytes_stay_in_the_model(again):
    texts = h.make_tensor("t", T.STRING, (500,), [b"abc"] * 500)
    halves = h.make_tensor("w", T.INT4, (4000,), bytes([0x21] * 2000), raw=True)
    model = made(
        [h.make_node("Identity", ["t"], ["s"]), h.make_node("Cast", ["w"], ["y"], to=T.FLOAT)],
        [], [value("s", T.STRING, (500,)), value("y", shape=(4000,))], [texts, halves],
    )  # fmt: skip
    module = onnx_module(model)
    assert module.model.weights == {}
    texts_out, numbers = again(module)()
    assert set(texts_out) == {"abc"}
    assert numbers[:4].tolist() == [1, 2, 1, 2]


def test_weights_of_loop_bodies_and_constants_are_separated(again):
    left = h.make_graph(
        [h.make_node("Add", ["x", "w"], ["l"])], "left", [], [value("l", shape=(300,))], [weight("w", W[:, 0])]
    )
    right = h.make_graph(
        [h.make_node("Add", ["x", "w"], ["r"])], "right", [], [value("r", shape=(300,))], [weight("w", W[:, 1])]
    )
    nodes = [
        h.make_node("Constant", [], ["c"], value=weight("", W[:, 2])),
        h.make_node("If", ["which"], ["b"], then_branch=left, else_branch=right),
        h.make_node("Sub", ["b", "c"], ["y"]),
    ]
    model = made(nodes, [value("x", shape=(300,)), value("which", T.BOOL, ())], [value("y", shape=(300,))])
    module = onnx_module(model)
    assert len(module.model.weights) == 3
    x, result = np.ones(300, "f4"), again(module)
    for which, column in ((True, 0), (False, 1)):
        assert np.allclose(result(x, np.array(which)), x + W[:, column] - W[:, 2])


def test_weights_that_a_caller_may_override_stay_in_the_model(again):
    model = made(
        [h.make_node("Add", ["x", "w"], ["y"])], [value("x", shape=(300,)), value("w", shape=(300,))],
        [value("y", shape=(300,))], [weight("w", W[:, 0])],
    )  # fmt: skip
    module = again(onnx_module(model))
    x = np.ones(300, "f4")
    assert np.allclose(module(x), x + W[:, 0])
    assert np.allclose(module.run({"x": x, "w": x})["y"], 2)
    model.ir_version = 3  # up to this version all weights are inputs, and none can be overridden
    assert list(onnx_module(model).model.weights) == ["w"]


# ---------------------------------------------------------------- shared weights


def test_two_models_share_weights(again):
    shared = params(weights_of(product(), product(W * 2, "v")))
    one, two = onnx_module(product(), params=shared), onnx_module(product(W * 2, "v"), params=shared)
    assert one.model.weights == two.model.weights == {}
    result = again(group([one, two]))
    assert result.imports[0].imports == result.imports[1].imports
    x = np.ones((1, 300), "f4")
    assert np.allclose(result.imports[1](x), 2 * result.imports[0](x), rtol=1e-4, atol=1e-4)


def test_a_model_whose_weights_were_saved_separately():
    shared = params(weights_of(product()))
    module = onnx_module(product(), params=shared)
    module.attach([])
    lone = loaded(blob_of(module))
    x = np.ones((1, 300), "f4")
    with pytest.raises(ModelError, match=r"lacks 1 of its weights \('w'\): they were saved apart"):
        lone(x)
    lone.attach([shared])
    assert np.allclose(lone(x), x @ W, rtol=1e-4, atol=1e-4)
    lone = loaded(blob_of(module))
    lone.attach([params({"w": W.astype("f8")})])
    with pytest.raises(ModelError, match="wants weight 'w' as float32"):
        lone(x)


# ---------------------------------------------------------------- options, memory, refusals


def test_options_are_saved_with_the_model(again):
    options = {"threads": 1, "level": "basic", "providers": ["CPUExecutionProvider"]}
    assert again(onnx_module(product(), **options)).model.options == options


@pytest.mark.parametrize(
    "options",
    [
        {"threads": 0},
        {"threads": "2"},
        {"level": "most"},
        {"providers": "CPU"},
        {"speed": 1},
        {"cpus": "0"},
        {"cpus": [-1]},
        {"runtime": "gpu"},
    ],
)
def test_invalid_options_are_refused(options):
    with pytest.raises(UsageError):
        onnx_module(product(), **options)


MEMORY = """
import sys
import threading
import weakref
from pathlib import Path
import numpy as np
from rpcsys.module import layout, tree
from rpcsys.module.registry import Context, File
def anonymous():
    return next(int(line.split()[1]) >> 10 for line in open("/proc/self/status") if line.startswith("RssAnon"))
file = File.map(sys.argv[1])
import rpcsys.module.kinds.onnx
before = anonymous()
module = tree.load(layout.decode(file.view[4096:]), Context("model.so", None, file=file))
y = module(np.array([5, 7]))
print(anonymous() - before, y[0, 0])
"""


def test_weights_in_a_file_are_mapped_and_not_copied(tmp_path):
    table = np.zeros((1 << 18, 64), "f4")  # 64 MB
    table[5] = 1.5
    model = made(
        [h.make_node("Gather", ["w", "x"], ["y"])],
        [value("x", T.INT64)],
        [value("y", shape=("n", 64))],
        [weight("w", table)],
    )
    (tmp_path / "model.so").write_bytes(bytes(4096) + blob_of(onnx_module(model)))
    done = subprocess.run(
        [sys.executable, "-c", MEMORY, str(tmp_path / "model.so")], capture_output=True, text=True, cwd=ROOT
    )
    assert done.returncode == 0, done.stderr
    megabytes, first = done.stdout.split()
    assert (int(megabytes) < 16, first) == (True, "1.5")


def test_every_cut_is_one_clear_error():
    blob = blob_of(onnx_module(product()))
    for size in (*range(0, 200, 7), *range(200, len(blob), 9973)):
        with pytest.raises(layout.FormatError, match="cut off"):
            loaded(blob[:size])


@pytest.mark.parametrize(
    ("old", "new"),
    [(b'"weights":[["w"', b'"weights":[[123'), (b'"w","float32"', b'"w","strings"'), (b"[300,200]", b"[300,201]"),
     (b'"options":{}', b'"options":[]'), (b'"inputs":[', b'"inputs":{'), (b'"shared":[]', b'"shared":33')],
)  # fmt: skip
def test_descriptions_that_do_not_match_are_refused(old, new):
    blob = blob_of(onnx_module(product()))
    at = blob.index(old)
    with pytest.raises(ModelError, match="is broken"):
        loaded(blob[:at] + new + blob[at + len(old) :])


def test_a_dropped_module_is_freed_at_once(again):
    module = again(onnx_module(product()))
    module(np.ones((1, 300), "f4"))
    gone = weakref.ref(module)
    gc.disable()
    try:
        del module
        assert gone() is None
    finally:
        gc.enable()


def test_closed(again):
    module = again(onnx_module(product()))
    main = module["main"]
    module.close()
    with pytest.raises(RemoteFunctionError, match="was closed"):
        main(np.ones((1, 300), "f4"))


def test_threads_share_one_session():
    module, runners = onnx_module(product()), []
    meeting = threading.Barrier(8)

    def first():
        meeting.wait()
        runners.append(module._ready())

    threads = [threading.Thread(target=first) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(runners) == 8
    assert len(set(map(id, runners))) == 1
