"""Profiles of OpenVINO: counters of operators as times of calls."""

from __future__ import annotations

from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from rpcsys.errors import RemoteArgumentError
from rpcsys.module import profiler
from rpcsys.module.kinds.openvino_profile import OperatorCounters


def told(**times: int) -> list[Any]:
    """Counters in microseconds; those of ``parameter`` were not run."""
    return [
        SimpleNamespace(
            node_name=name, node_type=name.title(), exec_type="jit", real_time=timedelta(microseconds=time),
            status=SimpleNamespace(name="NOT_RUN" if name == "parameter" else "EXECUTED"),
        )
        for name, time in times.items()
    ]  # fmt: skip


def test_means_of_all_calls_become_those_of_the_calls_that_count() -> None:
    counters = OperatorCounters(averages=True)
    counters.note(told(parameter=0, dense=100, relu=10), 1.0)
    counters.note(told(dense=70, relu=9), 2.0)
    counters.note(told(dense=60, relu=8), 6.0)
    first, second = counters.runs(1)
    assert [(run.name, run.type, run.provider) for run in first] == [("dense", "Dense", "jit"), ("relu", "Relu", "jit")]
    assert [run.duration for run in first] == [(3 * 60 - 100) / 4, (3 * 8 - 10) / 4]
    assert [run.duration for run in second] == [(3 * 60 - 100) * 0.75, (3 * 8 - 10) * 0.75]
    assert [run.begin for run in first] == [0, 20]  # in a row
    assert sum(call[0].duration for call in counters.runs(0)) == pytest.approx(3 * 60)


def test_more_than_fits_is_refused_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(profiler, "MAX_OPERATORS", 3)
    counters = OperatorCounters(averages=True)
    counters.note(told(dense=60, relu=8), 6.0)
    with pytest.raises(RemoteArgumentError, match="more than 3 runs of operators; take fewer runs"):
        counters.note(told(dense=60, relu=8), 6.0)


def test_times_of_each_call_stay() -> None:
    counters = OperatorCounters(averages=False)
    for time in (100, 7, 8):
        counters.note(told(dense=time), 1.0)
    assert [[run.duration for run in call] for call in counters.runs(1)] == [[7], [8]]
    assert OperatorCounters(averages=True).runs(0) == []
