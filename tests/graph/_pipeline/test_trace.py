"""The trace of a pipeline."""

from __future__ import annotations

import json
from pathlib import Path

from rpcsys.graph._pipeline.stats import PipelineStats
from rpcsys.graph._pipeline.trace import StageRun
from tests.graph.trace_format import check_format


def test_the_trace_has_a_row_for_each_replica(tmp_path: Path) -> None:
    stats = PipelineStats({"a": 2, "b": 1})
    stats.begin("a", 10.5)
    stats.begin("a", 10.75)
    stats.add(StageRun("a", 0, 0, 10.0, 10.5, 11.0, 64))
    stats.add(StageRun("a", 1, 1, 10.0, 10.75, 11.0, 0, "ValueError: no"))
    stats.save_trace(tmp_path / "trace.json")
    trace = json.loads((tmp_path / "trace.json").read_text())
    check_format(trace)
    rows = {e["tid"]: e["args"]["name"] for e in trace["traceEvents"] if e["name"] == "thread_name"}
    assert rows == {1: "a #0", 2: "a #1", 3: "b #0"}
    first, second = [e for e in trace["traceEvents"] if e["ph"] == "X"]
    assert (first["tid"], first["ts"], first["dur"], first["cat"]) == (1, 0.0, 500000.0, "a")
    assert first["args"] == {"frame": 0, "bytes": 64}
    assert (second["tid"], second["ts"]) == (2, 250000.0)
    assert second["args"]["error"] == "ValueError: no"
