"""Profiles of graphs: the operators of each stage, one stage behind the other."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

from rpcsys.errors import ProfileNotSupported
from rpcsys.module import Stage, export_library, graph, load_module, onnx_module, python
from rpcsys.module.module import Module
from tests.graph.running import make, node, values

X = np.ones((2, 3), "float32")


def doubled(x: Any) -> Any:
    return x * 2


def made(writes: str = "") -> Module:
    """-(2 tanh x): Tanh in onnxruntime, then a function of Python, then Neg in onnxruntime."""
    first, last = (
        onnx_module(make([node(kind, "x", "y", name=kind.lower())], values("x"), values("y")))
        for kind in ("Tanh", "Neg")
    )
    stages = [
        Stage("squash", first, ["x"], ["a"]), Stage("double", python({"main": doubled}), ["a"], ["b"]),
        Stage("turn", last, ["b"], ["c"]),
    ]  # fmt: skip
    return graph(stages, inputs=[{"name": "x"}], outputs=[{"name": "c"}], writes=writes)


def test_each_stage_is_told_by_its_runtime_or_as_a_whole(tmp_path: Path) -> None:
    path = tmp_path / "whole.so"
    export_library(made(), path)
    folder = tmp_path / "folder"
    folder.mkdir()
    profiler = load_module(path, allow_pickle=True).profiler("main", str(folder))
    assert profiler.runtime == "a graph of 3 stages"
    for _ in range(3):
        np.testing.assert_allclose(profiler.call(X), -2 * np.tanh(X), rtol=1e-5)
    assert not list(folder.iterdir())
    calls = profiler.runs(1)
    assert len(calls) == 2
    for call in calls:
        assert [(run.name, run.type) for run in call] == [
            ("squash: tanh", "Tanh"), ("double: all of it", "rpcsys.python"), ("turn: neg", "Neg"),
        ]  # fmt: skip
        begins = [run.begin for run in call]
        assert begins == sorted(begins)
        assert all(first.begin + first.duration <= last.begin + 2 for first, last in itertools.pairwise(call))


def test_a_function_that_writes_is_not_profiled(tmp_path: Path) -> None:
    with pytest.raises(ProfileNotSupported, match=r"kind rpcsys\.graph tells no times"):
        made("write").profiler("write", str(tmp_path))
