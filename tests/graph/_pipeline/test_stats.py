"""Counters of stages, the trace of their runs, and the progress bar."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from rpcsys.errors import UsageError
from rpcsys.graph import Pipeline
from rpcsys.graph._pipeline.stats import PipelineFigures, PipelineStats, StageRun, StageStats, pace
from tests.graph.trace_format import check_format
from tests.shown_html import shown


def test_counters_add_up() -> None:
    stats = PipelineStats({"a": 2, "b": 1})
    stats.begin("a", 10.5)
    stats.begin("a", 10.75)
    stats.add(StageRun("a", 0, 0, 10.0, 10.5, 11.0, 64))
    stats.add(StageRun("a", 1, 1, 10.0, 10.75, 11.0, 0, "ValueError: no"))
    assert stats.now() == {"a": StageStats(2, 1, 0.75, 1.25, 64, 0.5), "b": StageStats()}


def test_a_stage_is_active_while_one_of_its_threads_is() -> None:
    """Three threads: [0, 4], [1, 2] and [3, 6]; a pause; then [8, 9], and a running call, which adds nothing."""
    stats = PipelineStats({"a": 3})
    for event in (0.0, 1.0, (1.0, 2.0), 3.0, (0.0, 4.0), (3.0, 6.0), 8.0, 8.5, (8.0, 9.0)):
        if isinstance(event, tuple):
            stats.add(StageRun("a", 0, 0, 0.0, *event, 0))
        else:
            stats.begin("a", event)
    assert stats.now()["a"].active_s == 7.0


def test_a_trace_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be written: No such file"):
        PipelineStats({}).save_trace(tmp_path / "nowhere" / "trace.json")


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


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """Call it in the test's own body: before that, pytest replaces standard error."""
    made = Terminal()
    monkeypatch.setattr(sys, "stderr", made)
    return made


def frame_source() -> Iterator[int]:
    yield from range(20)


@pytest.mark.parametrize("frames", [range(20), frame_source()])
def test_a_bar_on_a_terminal(monkeypatch: pytest.MonkeyPatch, frames: range | Iterator[int]) -> None:
    screen = terminal(monkeypatch)
    with Pipeline([("s", lambda x: -x, ["x"], ["y"])]) as pipeline:
        assert list(pipeline.run(frames, progress=True)) == [-x for x in range(20)]
    told = screen.getvalue()
    assert "frames/s, s busy" in told
    assert ("100%" in told) == isinstance(frames, range)


def test_ending_the_loop_early_ends_the_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = terminal(monkeypatch)
    with Pipeline([("s", lambda x: -x, ["x"], ["y"])]) as pipeline:
        outputs = pipeline.run(range(20), progress=True)
        assert next(outputs) == 0
        outputs.close()  # type: ignore[attr-defined]
        assert screen.getvalue().endswith("\n")
        assert list(pipeline.run([3])) == [-3]


def test_the_progress_text_names_the_busiest_stage_and_failures() -> None:
    before = {"a": StageStats(10, 1, active_s=1.0), "b": StageStats(10, 0, active_s=1.0)}
    now = {"a": StageStats(30, 1, active_s=1.5), "b": StageStats(29, 0, active_s=2.9)}
    assert pace(before, now, 2.0) == "9.5 frames/s, b busy 95%"
    now["a"].failed = 3
    assert pace(before, now, 2.0) == "9.5 frames/s, b busy 95%, 2 failed"
    assert pace(now, now, 0.0).startswith("0.0 frames/s")


def test_figures_show_themselves_in_a_notebook() -> None:
    figures = PipelineFigures(stage0=StageStats(frames=3, failed=1, busy_s=0.5, bytes=2_000_000))
    assert figures == {"stage0": StageStats(frames=3, failed=1, busy_s=0.5, bytes=2_000_000)}
    assert shown(figures).cells[8:] == ["stage0", "3", "1", "0.500 s", "0.000 s", "0.000 s", "2.0"]
