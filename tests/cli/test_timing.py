from __future__ import annotations

from typing import Any

import pytest

from rpcsys.cli.timing import time_model
from rpcsys.client.timing import TimingResult


class Model:
    """Answers every request for figures, and notes how many were asked for."""

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
