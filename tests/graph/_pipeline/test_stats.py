"""Counters of stages."""

from __future__ import annotations

from pathlib import Path

import pytest

from rpcsys.errors import UsageError
from rpcsys.graph._pipeline.stats import PipelineStats, StageStats
from rpcsys.graph._pipeline.trace import StageRun


def test_counters_add_up() -> None:
    stats = PipelineStats({"a": 2, "b": 1})
    stats.begin("a", 10.5)
    stats.begin("a", 10.75)
    stats.add(StageRun("a", 0, 0, 10.0, 10.5, 11.0, 64))
    stats.add(StageRun("a", 1, 1, 10.0, 10.75, 11.0, 0, "ValueError: no"))
    assert stats.now() == {"a": StageStats(2, 1, 0.75, 1.25, 64, 0.5), "b": StageStats()}


def test_a_stage_is_active_while_one_of_its_threads_is() -> None:
    """Three threads: [0, 4], [1, 2] and [3, 6]; a pause; then [8, 9], which another that runs still does not add to."""
    stats = PipelineStats({"a": 3})
    for event in (0.0, 1.0, (1.0, 2.0), 3.0, (0.0, 4.0), (3.0, 6.0), 8.0, 8.5, (8.0, 9.0)):
        if isinstance(event, tuple):
            stats.add(StageRun("a", 0, 0, 0.0, *event, 0))
        else:
            stats.begin("a", event)
    assert stats.now()["a"].active_s == 7.0


def test_a_trace_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be written: No such file"):
        PipelineStats({}).save_trace(tmp_path / "nowhere" / "trace.json")
