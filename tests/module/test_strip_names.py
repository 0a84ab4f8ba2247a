"""Trees without names that describe them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper

from rpcsys import module
from rpcsys.errors import UsageError
from rpcsys.module.kinds.graph import Stage, graph
from rpcsys.module.kinds.group import group
from rpcsys.module.sources import Sources
from rpcsys.module.strip_names import Names, stripped
from tests.native import FUNCTIONS

FLOATS = {"dtype": "float32", "shape": [2, 32]}
RNG = np.random.default_rng(3)


def dense(prefix: str, source: str, target: str, weights: str) -> onnx.ModelProto:
    """``target = relu(source @ weights + bias)``."""
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2, 32]) for name in (source, target)]
    held = [
        onnx.numpy_helper.from_array(np.ones((32, 32), "f4") / 32, weights),
        onnx.numpy_helper.from_array(np.arange(32, dtype="f4"), prefix + "secretbias"),
    ]
    nodes = [
        helper.make_node("MatMul", [source, weights], [prefix + "secretproduct"], prefix + "secretmatmul"),
        helper.make_node("Add", [prefix + "secretproduct", prefix + "secretbias"], [prefix + "secretsum"]),
        helper.make_node("Relu", [prefix + "secretsum"], [target]),
    ]
    made = helper.make_graph(nodes, prefix + "secretgraph", values[:1], values[1:], held)
    return helper.make_model(made, opset_imports=[helper.make_opsetid("", 17)], producer_name="secrettool")


def network() -> module.Module:
    """Two models that share weights, and a native function between them; its interface is ``image`` and ``prob``."""
    first, second = dense("a", "image", "secretone", "secretw"), dense("b", "secrettwo", "prob", "secretw")
    shared = module.params({**module.weights_of(first, second), "secretscale": np.full((2, 32), 3, "f4")})
    native = Sources([FUNCTIONS])
    models = [module.onnx_module(model, params=shared) for model in (first, second)]
    stages = [
        Stage("secretstage", models[0], ["image"], ["secretone"]),
        Stage("secretnative", native, ["secretone"], ["secrettwo"], "double_it", [("float32", [2, 32])]),
        Stage("secrethead", models[1], ["secrettwo"], ["prob"]),
    ]
    return graph(stages, [{"name": "image", **FLOATS}], [{"name": "prob", **FLOATS}], params=shared)


@pytest.fixture(scope="module")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The network with and without names, each in a file."""
    folder = tmp_path_factory.mktemp("names")
    root = network()
    module.export_library(root, folder / "open.so")
    module.export_library(root, folder / "closed.so", strip_names=True)
    return folder / "open.so", folder / "closed.so"


def test_no_name_can_be_read(libraries: tuple[Path, Path]) -> None:
    as_it_is, stripped = (path.read_bytes() for path in libraries)
    for word in (b"secret", b"MatMul", b"Relu"):
        assert word in as_it_is
        assert word not in stripped


def test_results_and_interface_stay_the_same(libraries: tuple[Path, Path]) -> None:
    x = RNG.random((2, 32), "float32")
    with module.load_module(libraries[0]) as plain, module.load_module(libraries[1]) as stripped:
        np.testing.assert_array_equal(stripped(x), plain(x))
        assert stripped.run({"image": x}, ["prob"])["prob"].tolist() == plain(x).tolist()
        assert (stripped.inputs, stripped.outputs) == (plain.inputs, plain.outputs)
        assert len({id(each) for each in module.walk(stripped)}) == len({id(each) for each in module.walk(plain)})


def test_it_can_be_exported_again(libraries: tuple[Path, Path], tmp_path: Path) -> None:
    model = module.onnx_module(dense("a", "image", "prob", "secretw"))
    module.export_library(model, tmp_path / "one.so", strip_names=True)
    module.export_library(module.load_module(tmp_path / "one.so"), tmp_path / "two.so")
    assert (tmp_path / "two.so").read_bytes() == (tmp_path / "one.so").read_bytes()


def test_the_original_tree_is_not_changed() -> None:
    root = network()
    before = [dict(each.graph) if hasattr(each, "graph") else each.imports for each in module.walk(root)]
    stripped(root)
    assert [dict(each.graph) if hasattr(each, "graph") else each.imports for each in module.walk(root)] == before


def test_other_kinds(tmp_path: Path) -> None:
    remote = module.remote("rpcsys.echo", address="127.0.0.1:9090", inputs=[{"name": "secretx"}])
    root = group([remote, module.params({"secretw": np.ones(3)})])
    module.export_library(root, tmp_path / "m.so", strip_names=True)
    assert b"secretw" not in (tmp_path / "m.so").read_bytes()
    with pytest.raises(UsageError, match=r"rpcsys\.python' cannot be exported without its names"):
        stripped(module.python({"f": len}))


@given(st.lists(st.text(max_size=3)), st.lists(st.sampled_from(["t0", "t1", "t3", "x"])))
def test_new_names_are_distinct_and_never_kept_ones(given_names: list[str], kept: list[str]) -> None:
    names = Names(kept)
    new = {name: names(name) for name in given_names}
    assert len(set(new.values())) == len(new)
    for name, other in new.items():
        assert names(name) == other
        if name in kept or not name:
            assert other == name
        else:
            assert other not in kept
