"""Runs of a model, timed by requests of about a second each."""

from __future__ import annotations

from typing import Any

import pytest

from rpcsys.cli.timings import joined, time_model
from rpcsys.client import TimingResult


class Model:
    """Answers every request for times, and records the numbers of runs requested."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.asked: list[int] = []

    def time_evaluator(self, name: str, number: int, repeat: int) -> Any:
        assert (name, number) == ("main", 1)
        self.asked.append(repeat)
        return lambda *args: TimingResult([self.seconds] * repeat)


@pytest.mark.parametrize(("seconds", "asked"), [(5.0, [1] * 8), (0.3, [1, 3, 3, 1]), (1e-5, [1, 7]), (0.0, [1, 7])])
def test_a_bar_moves_about_once_a_second(seconds: float, asked: list[int]) -> None:
    model, seen = Model(seconds), []
    result = time_model(model, ["x"], 8, lambda done, total: seen.append((done, total)))  # type: ignore[arg-type]
    assert model.asked == asked
    assert result.results == (seconds,) * 8
    assert seen == [(sum(asked[: i + 1]), 8) for i in range(len(asked))]


def test_requests_of_one_measurement_are_one_result() -> None:
    busy = ["other processes took {}% of the CPUs' time", "the board warmed by 11 degrees"]
    parts = [
        TimingResult([1.0, 2.0], {"before": {"load": 0.1}, "after": {}}, [busy[0].format(34), busy[1]], 3.0),
        TimingResult([3.0], {"before": {}, "after": {"load": 0.9}}, [busy[0].format(35)], 6.0),
        TimingResult([4.0]),
    ]
    whole = joined(parts)
    assert whole.results == (1.0, 2.0, 3.0, 4.0)
    assert whole.board == {"before": {"load": 0.1}, "after": {}}
    assert set(whole.warnings) == {busy[0].format(34), busy[1]}
    assert whole.joules == pytest.approx(4.0)  # of the three calls that a meter tells of
    assert joined(parts[2:]).joules is None
