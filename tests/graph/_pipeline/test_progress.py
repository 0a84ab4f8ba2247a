from __future__ import annotations

import io
import sys
from collections.abc import Iterator

import pytest

from rpcsys.graph import Pipeline
from rpcsys.graph._pipeline.progress import pace
from rpcsys.graph._pipeline.stats import StageStats


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """Called in a test's own body: before it, pytest puts its own in this place."""
    made = Terminal()
    monkeypatch.setattr(sys, "stderr", made)
    return made


def numbers() -> Iterator[int]:
    yield from range(20)


@pytest.mark.parametrize("frames", [range(20), numbers()])
def test_a_bar_on_a_terminal(monkeypatch: pytest.MonkeyPatch, frames: range | Iterator[int]) -> None:
    screen = terminal(monkeypatch)
    with Pipeline([("s", lambda x: -x, ["x"], ["y"])]) as pipeline:
        assert list(pipeline.run(frames, progress=True)) == [-x for x in range(20)]
    told = screen.getvalue()
    assert "frames/s, s busy" in told
    assert ("100%" in told) == isinstance(frames, range)


def test_a_loop_that_is_left_ends_the_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = terminal(monkeypatch)
    with Pipeline([("s", lambda x: -x, ["x"], ["y"])]) as pipeline:
        outputs = pipeline.run(range(20), progress=True)
        assert next(outputs) == 0
        outputs.close()  # type: ignore[attr-defined]
        assert screen.getvalue().endswith("\n")
        assert list(pipeline.run([3])) == [-3]


def test_the_pace_names_the_busiest_stage_and_failures() -> None:
    before = {"a": StageStats(10, 1, active_s=1.0), "b": StageStats(10, 0, active_s=1.0)}
    now = {"a": StageStats(30, 1, active_s=1.5), "b": StageStats(29, 0, active_s=2.9)}
    assert pace(before, now, 2.0) == "9.5 frames/s, b busy 95%"
    now["a"].failed = 3
    assert pace(before, now, 2.0) == "9.5 frames/s, b busy 95%, 2 failed"
    assert pace(now, now, 0.0).startswith("0.0 frames/s")
