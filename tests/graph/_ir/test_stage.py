from __future__ import annotations

from pathlib import Path

import onnx
import pytest

from rpcsys import graph
from rpcsys.errors import UsageError
from rpcsys.graph._ir.stage import check_by_stage, signature_of
from tests.graph.running import assert_same, chain, make, node, numbers, run, values
from tests.shown_html import shown


def test_stages_are_found_by_place_and_name() -> None:
    stages = graph.split(chain(), [1, 2])
    assert stages["stage1"] is stages[1]
    assert stages[1:] == (stages[1], stages[2])
    assert repr(stages) == "Stages(stage0, stage1, stage2)"
    with pytest.raises(UsageError, match="no stage 'head'; there are stage0, stage1, stage2"):
        stages["head"]


def test_what_is_not_by_stage_is_refused() -> None:
    check_by_stage("targets", {}, "2")
    with pytest.raises(
        UsageError, match=r"^targets are given by the names of stages, such as {'stage0': 2}, not as str$"
    ):
        check_by_stage("targets", "stage0", "2")


def test_the_source_of_a_tensor() -> None:
    stages = graph.split(chain(), [1, 2])
    assert [stages.source(name) for name in ("x", "t1", "y")] == ["", "stage0", "stage2"]
    with pytest.raises(UsageError, match="no stage makes a tensor 't3'"):
        stages.source("t3")


def test_saved_stages_are_models_of_their_own(tmp_path: Path) -> None:
    paths = graph.split(chain(), 2).save(tmp_path / "new" / "folder")
    assert [path.name for path in paths] == ["stage0.onnx", "stage1.onnx"]
    feeds = {"x": numbers(2, 3)}
    for path in paths:
        model = onnx.load(path)
        onnx.checker.check_model(model)
        feeds = run(model, feeds)
    assert_same(feeds, run(chain(), {"x": numbers(2, 3)}))


def test_a_signature_has_names_types_and_shapes() -> None:
    network = make(
        [node("Tanh", "x", "h"), node("Neg", "h", "y")], values("x", shape=("n", 3)), values("y", shape=None)
    )
    first, second = graph.split(network, ["h"])
    assert signature_of(first).inputs == [{"name": "x", "dtype": "float32", "shape": ["n", 3]}]
    assert (
        signature_of(first).outputs
        == signature_of(second).inputs
        == [{"name": "h", "dtype": "float32", "shape": ["n", 3]}]
    )
    assert [value["name"] for value in signature_of(second).outputs] == ["y"]


def test_stages_show_themselves_in_a_notebook() -> None:
    told = shown(graph.split(chain(), [1]))
    assert told.cells[:2] == ["2 stages", "stage"]
    assert told.cells[8:15] == ["stage0", "", "1", "0", "", "x float32[2, 3]", "t1 float32[2, 3]"]
