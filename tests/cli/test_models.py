from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rpcsys.cli import models
from rpcsys.client import TimingResult
from rpcsys.errors import UsageError


def test_load_gives_every_array_by_name(tmp_path: Path) -> None:
    np.savez(tmp_path / "in.npz", a=np.arange(3), b=np.zeros((2, 2), "float32"))
    loaded = models.load_inputs(tmp_path / "in.npz")
    assert loaded["a"].tolist() == [0, 1, 2]
    assert loaded["b"].dtype == np.float32


def test_load_explains_what_is_no_npz_of_plain_arrays(tmp_path: Path) -> None:
    np.save(tmp_path / "one.npy", np.arange(3))
    np.savez(tmp_path / "object.npz", a=np.array([{}], dtype=object))
    (tmp_path / "text.npz").write_text("not an archive", encoding="utf-8")
    (tmp_path / "cut.npz").write_bytes((tmp_path / "object.npz").read_bytes()[:60])
    (tmp_path / "empty.npz").write_bytes(b"")
    for name, says in [
        ("one.npy", "holds one array"),
        ("object.npz", "no .npz file of plain arrays"),
        ("text.npz", "no .npz file of plain arrays"),
        ("cut.npz", "no .npz file of plain arrays"),
        ("empty.npz", "no .npz file of plain arrays"),
        ("nowhere.npz", "cannot read .*nowhere.npz: No such file"),
    ]:
        with pytest.raises(UsageError, match=says):
            models.load_inputs(tmp_path / name)


class Model:
    """Answers every request for times, and notes how many were asked for."""

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
    result = models.time_model(model, ["x"], 8, lambda done, total: seen.append((done, total)))  # type: ignore[arg-type]
    assert model.asked == asked
    assert result.results == (seconds,) * 8
    assert seen == [(sum(asked[: i + 1]), 8) for i in range(len(asked))]
