"""Models whose weights lie in files of their own: read from any folder, and whole in what is made of them."""

from __future__ import annotations

import gc
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import helper as h

from rpcsys import graph, module
from rpcsys.errors import UsageError
from rpcsys.graph._ir import models, ort
from rpcsys.graph._ir.dataflow import Dataflow
from rpcsys.graph._plan.profile import profile
from rpcsys.module.kinds.onnx_model import read
from tests.graph.running import assert_same, make, node, numbers, run, values

FEEDS = {"x": numbers(2, 600)}
THRESHOLDS = [0, 100, 5000]  # bytes from which a tensor goes to a file; there are tensors of 4, 240 and 2400 bytes


def branched() -> onnx.ModelProto:
    """A model with tensors of three sizes, as weights, constants, in a body and in a function."""

    def constant(array: np.ndarray, name: str) -> onnx.NodeProto:
        return h.make_node("Constant", [], [name], value=onnx.numpy_helper.from_array(array))

    def body(factor: int) -> onnx.GraphProto:
        weight = onnx.numpy_helper.from_array(numbers(600, seed=factor), "v")
        return h.make_graph([node("Mul", "a v", "b")], f"body{factor}", [], values("b", shape=(2, 600)), [weight])

    function = h.make_function(
        "ours", "Scaled", ["i"], ["o"], [constant(np.float32([3] * 600), "k"), node("Mul", "i k", "o")],
        [h.make_opsetid("", 21)],
    )  # fmt: skip
    model = make(
        [
            node("Add", "x w", "a"), constant(np.bool_([True] * 240), "flags"),
            h.make_node("ReduceMin", ["numbers"], ["least"], keepdims=0),
            h.make_node("Cast", ["flags"], ["numbers"], to=6),
            h.make_node("Cast", ["least"], ["condition"], to=9),
            h.make_node("If", ["condition"], ["c"], then_branch=body(1), else_branch=body(2)),
            h.make_node("Scaled", ["c"], ["d"], domain="ours"), node("Mul", "d s", "y"),
        ],
        values("x", shape=(2, 600)), values("y", shape=(2, 600)),
        weights={"w": numbers(600, seed=3), "s": np.float32([0.5])},
    )  # fmt: skip
    nodes = model.graph.node
    nodes.insert(2, nodes.pop(3))
    model.functions.append(function)
    model.opset_import.append(h.make_opsetid("ours", 1))
    return model


def saved(folder: Path, threshold: int) -> Path:
    folder.mkdir()
    onnx.save(
        branched(), folder / "m.onnx", save_as_external_data=True, location="weights", size_threshold=threshold,
        convert_attribute=True,
    )  # fmt: skip
    return folder / "m.onnx"


@pytest.fixture(params=["inside", "elsewhere"])
def given(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Makes a model's files, and the path of it for a working folder inside theirs or elsewhere."""

    def act(threshold: int) -> Path:
        path = saved(tmp_path / "model", threshold)
        monkeypatch.chdir(path.parent if request.param == "inside" else tmp_path)
        return Path("m.onnx") if request.param == "inside" else path

    return act


@pytest.mark.parametrize("threshold", THRESHOLDS)
@pytest.mark.parametrize("exact", [False, True])
def test_a_library_of_stages_is_whole(given, tmp_path: Path, threshold: int, exact: bool) -> None:
    path = given(threshold)
    stages = graph.split(path, 1, exact=exact)
    stages.save(tmp_path / "stages")
    module.export_library(graph.build(stages), tmp_path / "m.so")
    for file in path.absolute().parent.iterdir():
        file.unlink()
    expected = run(branched(), FEEDS)
    with module.load_module(tmp_path / "m.so") as loaded:
        assert_same({"y": loaded(FEEDS["x"])}, expected)
    between = run(onnx.load(tmp_path / "stages" / "stage0.onnx"), FEEDS)
    assert_same(run(onnx.load(tmp_path / "stages" / "stage1.onnx"), between), expected)


@pytest.mark.parametrize("threshold", THRESHOLDS)
def test_a_model_is_read_from_any_folder(given, tmp_path: Path, threshold: int) -> None:
    path = given(threshold)
    module.export_library(module.onnx_module(path), tmp_path / "m.so")
    region = graph.partition(path, graph.operators("If"))
    assert "region" in [stage.name for stage in region]
    assert profile(Dataflow(read(path)), FEEDS)
    for file in path.absolute().parent.iterdir():
        file.unlink()
    with module.load_module(tmp_path / "m.so") as loaded:
        assert_same({"y": loaded(FEEDS["x"])}, run(branched(), FEEDS))


def test_the_working_folder_may_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = saved(tmp_path / "model", 0)
    monkeypatch.chdir(path.parent)
    stages = graph.split("m.onnx", 1)
    by_onnx_ir = graph.split(ir.load("m.onnx"), 1)
    monkeypatch.chdir(tmp_path)
    for each in (stages, by_onnx_ir):
        assert_same({"y": graph.build(each)(FEEDS["x"])}, run(branched(), FEEDS))


def test_files_may_be_links(tmp_path: Path) -> None:
    path = saved(tmp_path / "model", 0)
    (path.parent / "weights").rename(tmp_path / "blob")
    (path.parent / "weights").symlink_to(tmp_path / "blob")
    (tmp_path / "another").hardlink_to(tmp_path / "blob")
    assert_same({"y": module.onnx_module(path)(FEEDS["x"])}, run(branched(), FEEDS))


def test_a_missing_file_is_an_error_of_one_line(tmp_path: Path) -> None:
    path = saved(tmp_path / "model", 0)
    (path.parent / "weights").write_bytes(b"short")
    with pytest.raises(UsageError, match=r"^m.onnx keeps weights in 'weights', which has 5 bytes, not "):
        graph.split(path, 1)
    (path.parent / "weights").unlink()
    for act in (module.onnx_module, graph.show, lambda path: graph.split(path, 1)):
        with pytest.raises(UsageError, match=r"^m.onnx keeps weights in 'weights', and /.* has no such file: put it "):
            act(path)
    with pytest.raises(UsageError, match=r"^the model keeps weights in 'weights', and /.* has no such file"):
        module.onnx_module(path.read_bytes())


@pytest.mark.parametrize("embedded_bytes", [1 << 30, 1000])
def test_an_exact_split_of_a_large_model_is_saved_and_built(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, embedded_bytes: int
) -> None:
    monkeypatch.setattr(models, "EMBEDDED_BYTES", 1000)
    monkeypatch.setattr(ort, "_EMBEDDED_BYTES", 1000)
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    stages = graph.split(saved(tmp_path / "model", 0), 1, exact=True)
    for stage in stages:
        models.save(stage.model, tmp_path / f"{stage.name}.onnx", embedded_bytes=embedded_bytes)
    expected = run(branched(), FEEDS)
    assert_same({"y": graph.build(stages)(FEEDS["x"])}, expected)
    assert [each.name.startswith("rpcsys-") for each in (tmp_path / "temporary").iterdir()] == [True]
    del stages, stage
    gc.collect()
    assert list((tmp_path / "temporary").iterdir()) == []
    between = run(onnx.load(tmp_path / "stage0.onnx"), FEEDS)
    assert_same(run(onnx.load(tmp_path / "stage1.onnx"), between), expected)


SAVE = """
import resource, sys
from rpcsys import graph
graph.split(sys.argv[1], [1])
stages = graph.split(sys.argv[1], [1])
def used(): return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
before = used()
stages.save(sys.argv[2])
print(used() - before)
"""


def test_weights_in_files_are_saved_without_being_in_memory(tmp_path: Path) -> None:
    rows, size = 5000, 100_000_000
    value, bound = onnx.TensorProto(name="w", data_type=1, dims=(rows, rows), data_location=1), ("n", rows)
    for key, text in (("location", "weights"), ("length", str(size))):
        value.external_data.add(key=key, value=text)
    model = make(
        [node("MatMul", "x w", "a"), node("Neg", "a", "y")], values("x", shape=bound), values("y", shape=bound)
    )
    model.graph.initializer.append(value)
    onnx.save(model, tmp_path / "m.onnx")
    with (tmp_path / "weights").open("wb") as file:
        file.truncate(size)
    done = subprocess.run(
        [sys.executable, "-c", SAVE, str(tmp_path / "m.onnx"), str(tmp_path / "stages")], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 20_000  # kB
    assert (tmp_path / "stages" / "stage0.onnx").stat().st_size > size
