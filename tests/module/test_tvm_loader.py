"""Our libraries in TVM's own loader."""

from __future__ import annotations

import gc
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from rpcsys import module
from rpcsys.module import export, registry
from rpcsys.module import tvm_loader as ours
from rpcsys.module.kinds.group import group
from rpcsys.module.kinds.params import ParamsModule
from rpcsys.module.sources import Sources
from tests.device_files import ROOT
from tests.module import trees
from tests.module.trees import Holder
from tests.native import FUNCTIONS, compiled

tvm = pytest.importorskip("tvm")
tvm_ffi = pytest.importorskip("tvm_ffi")

pytest.importorskip("rpcsys.tvm")

RNG = np.random.default_rng(5)
WEIGHTS = RNG.random((64, 64), "float32")


@pytest.fixture(autouse=True)
def _kind() -> Iterator[None]:
    registry.register(trees.KIND, trees.BytesKind())
    ours.register()
    yield
    registry._registered.pop(trees.KIND)


def product() -> onnx.ModelProto:
    """``y = x @ w``, x (n, 64)."""
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", 64]) for name in "xy"]
    weights = onnx.numpy_helper.from_array(WEIGHTS, "w")
    graph = helper.make_graph([helper.make_node("MatMul", ["x", "w"], ["y"])], "g", values[:1], values[1:], [weights])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A group of an ONNX model, its shared weights, and native functions."""
    path = tmp_path_factory.mktemp("tvm") / "model.so"
    model = product()
    shared = module.params(module.weights_of(model))
    root = group([module.onnx_module(model, params=shared), Sources([FUNCTIONS])])
    export.export_library(root, path)
    return path


def given(kind: type) -> list:
    """Our modules of a class that TVM has."""
    return [each.module for each in ours._given.values() if isinstance(each.module, kind)]


def test_a_model_runs_from_tvm(library: Path) -> None:
    loaded = tvm.runtime.load_module(str(library))
    x = RNG.random((3, 64), "float32")
    for argument in (tvm.runtime.tensor(x), x):
        y = loaded["main"](argument)
        assert isinstance(y, tvm.runtime.Tensor)
        np.testing.assert_allclose(y.numpy(), x @ WEIGHTS, rtol=1e-5)


def test_native_functions_write_into_tvms_arrays(library: Path) -> None:
    loaded = tvm.runtime.load_module(str(library))
    y = tvm.runtime.empty((32,), "float32")
    loaded["double_it"](tvm.runtime.tensor(np.ones(32, "float32")), y)
    assert y.numpy().tolist() == [2.0] * 32


def test_tvm_has_the_same_tree(library: Path) -> None:
    loaded = tvm.runtime.load_module(str(library))
    model, native = loaded.imports
    assert native.kind == "library"
    (weights,) = model.imports
    assert list(weights["param_names"]()) == ["w"]
    np.testing.assert_array_equal(weights["get_param"]("w").numpy(), WEIGHTS)


def test_a_wrong_argument_is_named_in_its_error(library: Path) -> None:
    loaded = tvm.runtime.load_module(str(library))
    with pytest.raises(RuntimeError, match=r"takes 1 input\(s\), not 2"):
        loaded["main"](1, 2)


def test_tvm_loads_the_same_modules_as_our_loader(tmp_path: Path) -> None:
    shared = Holder(b"shared", name="third")
    root = Holder(b"root", [Holder(b"left side", [shared], "first"), Holder(b"", [shared], "second")], "zeroth")
    root.imports[1].data = b"x"
    export.export_library(root, tmp_path / "m.so")
    loaded = tvm.runtime.load_module(str(tmp_path / "m.so"))
    assert loaded["size"]() == 4
    left, right = loaded.imports
    assert (left["size"](), right["size"]()) == (9, 1)
    assert left.imports[0]["size"]() == right.imports[0]["size"]() == 6
    assert left.imports[0].same_as(right.imports[0])


def test_modules_that_tvm_drops_are_released(tmp_path: Path) -> None:
    export.export_library(Holder(b"gone"), tmp_path / "gone.so")
    export.export_library(Holder(b"kept"), tmp_path / "kept.so")
    loaded = tvm_ffi.load_module(str(tmp_path / "gone.so"), keep_module_alive=False)
    (gone,) = [each for each in given(Holder) if each.data == b"gone"]
    assert loaded["size"]() == 4
    del loaded
    gc.collect()
    for _ in range(len(ours._given) + 1):  # dropped modules are searched for now and then
        kept = tvm_ffi.load_module(str(tmp_path / "kept.so"), keep_module_alive=False)
    assert gone.released == 1
    assert gone not in given(Holder)
    assert kept["size"]() == 4


def test_arrays_are_aligned_for_native_code(library: Path) -> None:
    loaded = tvm.runtime.load_module(str(library))
    loaded["main"](np.zeros((1, 64), "float32"))
    for weights in given(ParamsModule):
        assert np.asarray(weights.get("w")).ctypes.data % 64 == 0


def test_a_graph_of_native_functions_libraries_and_weights(tmp_path: Path) -> None:
    """Its stages are modules that TVM has loaded: ours, and the library's own functions."""
    values = {"dtype": "float32", "shape": ["n"]}
    makes = [("float32", ["n"])]
    inner = module.library(compiled(FUNCTIONS, tmp_path / "inner.so"))
    weights = module.params({"start": np.arange(32, dtype="f4")})
    stages = [
        module.Stage("own", module.Sources([FUNCTIONS]), ["x"], ["twice"], "double_it", makes),
        module.Stage("inner", inner, ["twice"], ["four"], "double_it", makes),
        module.Stage("add", module.python({"main": np.add}), ["four", "start"], ["y"]),
    ]
    root = module.graph(stages, [{"name": "x", **values}], [{"name": "y"}], params=weights)
    export.export_library(root, tmp_path / "m.so")
    with pytest.raises(RuntimeError, match=r"holds Python functions, .*rpcsys\.tvm\.register\(allow_pickle=True\)"):
        tvm.runtime.load_module(str(tmp_path / "m.so"))
    ours.register(allow_pickle=True)
    loaded = tvm.runtime.load_module(str(tmp_path / "m.so"))
    y = loaded["main"](tvm.runtime.tensor(np.ones(32, "f4")))
    assert y.numpy().tolist() == [4.0 + number for number in range(32)]


def test_a_broken_library_is_an_error(tmp_path: Path) -> None:
    from tests.module.libraries import tree, write

    path = write(tmp_path / "m.so", tree(("rpcsys.onnx", (), b"junk")))
    with pytest.raises(RuntimeError, match="cut off or broken"):
        tvm.runtime.load_module(str(path))


def test_a_system_other_than_linux_is_an_error(library: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ours.sys, "platform", "darwin")
    with pytest.raises(RuntimeError, match="on Linux alone"):
        tvm.runtime.load_module(str(library))


def test_importing_it_registers_everything_in_a_new_process(library: Path) -> None:
    code = (
        "import sys, json, numpy, tvm, rpcsys.tvm\n"
        "model = tvm.runtime.load_module(sys.argv[1])\n"
        "print(json.dumps(model['main'](numpy.ones((1, 64), 'float32')).numpy().shape))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, library], capture_output=True, text=True, check=False, cwd=ROOT, timeout=100
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout) == [1, 64]
