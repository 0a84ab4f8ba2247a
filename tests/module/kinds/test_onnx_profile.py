"""Profiles of onnxruntime: what it writes, as operators of calls."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

import onnx
import onnxruntime
import psutil

from rpcsys.errors import ModelError, ProfileNotSupported, RemoteArgumentError
from rpcsys.module import load_module, profiler
from rpcsys.module.kinds.onnx_profile import ProfileFile, calls_in
from rpcsys.module.profiler import OperatorRun
from tests.graph.running import make, node, values
from tests.live import deployed

ARGS = {"op_name": "MatMul", "provider": "CPUExecutionProvider", "input_type_shape": [{"float": [2, 3]}, {"int64": []}]}
NODE = {"cat": "Node", "name": "first_kernel_time", "ts": 110, "dur": 7, "tid": 5, "args": ARGS}
RUN = {"cat": "Session", "name": "model_run", "ts": 100, "dur": 30, "tid": 5, "args": {}}


def lines(*events: Any) -> list[str]:
    return ["[\n", *(json.dumps(event) + ",\n" for event in events), "]\n"]


def test_the_operators_of_each_call() -> None:
    other = {**NODE, "name": "Relu_1_kernel_time", "ts": 205, "args": {"provider": "MineProvider"}}
    told = lines({**RUN, "name": "session_initialization"}, NODE, RUN, other, {**RUN, "ts": 200}, NODE)
    assert list(calls_in(told)) == [
        [OperatorRun("first", "MatMul", "CPU", "float[2,3] int64[]", 5, 10, 7)],
        [OperatorRun("Relu_1", "", "MineProvider", "", 5, 5, 7)],
    ]


def test_a_line_that_is_no_event_is_left_out() -> None:
    broken = '{"cat" : "Node","name" :"a"b_kernel_time","ts" :1,"dur" :1},\n'
    ((found,),) = calls_in([broken, *lines({**NODE, "ts": -1}, {**NODE, "dur": True}, NODE, RUN)])
    assert found.name == "first"


def test_more_than_a_profile_holds_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(profiler, "MAX_OPERATORS", 2)
    with pytest.raises(RemoteArgumentError, match="more than 2 runs of operators"):
        list(calls_in(lines(NODE, RUN, NODE, RUN, NODE, RUN)))


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
events = st.fixed_dictionaries(
    {},
    optional={
        "cat": st.sampled_from(["Node", "Session"]) | json_values,
        "name": st.sampled_from(["a_kernel_time", "model_run"]) | json_values,
        **dict.fromkeys(("ts", "dur"), st.integers(0, 1000) | json_values),
        "tid": json_values,
        "args": st.fixed_dictionaries({}, optional=dict.fromkeys(ARGS, json_values)) | json_values,
    },
)


@given(st.lists(events | json_values | st.text()))
def test_anything_is_read(told: list[Any]) -> None:
    """Whatever a runtime writes, operators have texts and times."""
    texts = [each if isinstance(each, str) else json.dumps(each) for each in told]
    for run in [run for call in calls_in(texts) for run in call]:
        assert {type(text) for text in run[:4]} == {str}
        assert type(run.thread) is int
        assert run.begin >= 0
        assert run.duration >= 0


def test_a_profile_is_of_the_models_nodes_as_onnxruntime_has_made_them(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    weights = {name: rng.standard_normal((64, 64), "float32") for name in ("w", "v")}
    nodes = [
        node("MatMul", "x w", "a", name="large"), node("Add", "a v", "b"), node("Identity", "b", "c"),
        node("Relu", "c", "d"), node("Softmax", "d", "y", name="last"),
    ]  # fmt: skip
    model = make(nodes, values("x", shape=(64, 64)), values("y", shape=(64, 64)), weights=weights)
    onnx.save(model, tmp_path / "model.onnx")
    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "optimised.onnx")
    options.log_severity_level = 4
    onnxruntime.InferenceSession(str(tmp_path / "model.onnx"), options, providers=["CPUExecutionProvider"])
    optimised = onnx.load(tmp_path / "optimised.onnx").graph.node
    assert 1 < len(optimised) < len(nodes)
    folder = tmp_path / "folder"
    folder.mkdir()
    profiler = load_module(tmp_path / "model.onnx", threads=1).profiler("main", str(folder))
    x = np.ones((64, 64), "float32")
    for _ in range(4):
        profiler.call(x)
        assert not list(folder.iterdir())
    calls = profiler.runs(1)
    assert [len(call) for call in calls] == [len(optimised)] * 3
    assert sorted(run.type for run in calls[0]) == sorted(each.op_type for each in optimised)
    assert {run.provider for run in calls[0]} == {"CPU"}
    assert "float[64,64]" in calls[0][0].shapes


def test_a_loop_is_around_its_body(tmp_path: Path) -> None:
    profiler = load_module(deployed.endless_model(tmp_path / "loop.onnx")).profiler("main", str(tmp_path))
    profiler.call(np.int64(5))
    ((*inner, loop),) = profiler.runs(0)
    assert loop.type == "Loop"
    assert len(inner) >= 5
    assert all(loop.begin <= run.begin <= loop.begin + loop.duration for run in inner)


def test_what_onnxruntime_noted_is_given_back_to_the_system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(profiler, "MAX_OPERATORS", 3)
    made = load_module(deployed.endless_model(tmp_path / "loop.onnx")).profiler("main", str(tmp_path))
    resident = psutil.Process().memory_info
    before = resident().rss
    made.call(np.int64(8000))
    noted = resident().rss - before
    with pytest.raises(RemoteArgumentError):
        made.runs(0)
    assert resident().rss - before < noted / 2


def test_a_model_that_cannot_be_opened_leaves_no_file(tmp_path: Path) -> None:
    def fail(prefix: str) -> None:
        Path(prefix + "_now.json").touch()
        raise ModelError("no memory")

    with pytest.raises(ModelError):
        ProfileFile(str(tmp_path), fail)
    assert not list(tmp_path.iterdir())


def test_a_runtime_that_writes_no_file_says_so(tmp_path: Path) -> None:
    class Silent:
        def end_profiling(self) -> None:
            """Nothing is written."""

    profile = ProfileFile(str(tmp_path), lambda prefix: Silent())
    with pytest.raises(ProfileNotSupported, match="wrote no profile"):
        profile.runs(0)
