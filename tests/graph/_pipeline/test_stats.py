from __future__ import annotations

import json
from pathlib import Path

import pytest

from rpcsys.errors import UsageError
from rpcsys.graph._pipeline.stats import PipelineStats, StageStats
from rpcsys.graph._pipeline.trace import StageRun
from tests.graph.trace_format import check_format


def test_counters_add_up_and_the_trace_has_a_row_for_each_replica(tmp_path: Path) -> None:
    figures = PipelineStats({"a": 2, "b": 1})
    figures.begin("a", 10.5)
    figures.begin("a", 10.75)
    figures.add(StageRun("a", 0, 0, 10.0, 10.5, 11.0, 64))
    figures.add(StageRun("a", 1, 1, 10.0, 10.75, 11.0, 0, "ValueError: no"))
    assert figures.now() == {"a": StageStats(2, 1, 0.75, 1.25, 64, 0.5), "b": StageStats()}
    figures.save_trace(tmp_path / "trace.json")
    trace = json.loads((tmp_path / "trace.json").read_text())
    check_format(trace)
    rows = {e["tid"]: e["args"]["name"] for e in trace["traceEvents"] if e["name"] == "thread_name"}
    assert rows == {1: "a #0", 2: "a #1", 3: "b #0"}
    first, second = [e for e in trace["traceEvents"] if e["ph"] == "X"]
    assert (first["tid"], first["ts"], first["dur"], first["cat"]) == (1, 0.0, 500000.0, "a")
    assert first["args"] == {"frame": 0, "bytes": 64}
    assert (second["tid"], second["ts"]) == (2, 250000.0)
    assert second["args"]["error"] == "ValueError: no"


def test_a_stage_is_active_while_one_of_its_threads_is() -> None:
    """Three threads: [0, 4], [1, 2] and [3, 6]; a pause; then [8, 9], which another that runs still does not add to."""
    figures = PipelineStats({"a": 3})
    for event in (0.0, 1.0, (1.0, 2.0), 3.0, (0.0, 4.0), (3.0, 6.0), 8.0, 8.5, (8.0, 9.0)):
        if isinstance(event, tuple):
            figures.add(StageRun("a", 0, 0, 0.0, *event, 0))
        else:
            figures.begin("a", event)
    assert figures.now()["a"].active_s == 7.0


def test_a_trace_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be written: No such file"):
        PipelineStats({}).save_trace(tmp_path / "nowhere" / "trace.json")
