"""Profiling a function on a device: which calls count, how they are packed, and what is refused."""

from __future__ import annotations

import json
import threading
import zlib
from typing import Any

import pytest

from rpcsys.errors import RemoteArgumentError
from rpcsys.module import profiler
from rpcsys.module.module import running_call
from rpcsys.module.profiler import OperatorRun, Profiler
from rpcsys.server.session import profiling
from rpcsys.server.session.profiling import packed, profile

DENSE = OperatorRun("dense", "MatMul", "CPU", "float[2]", 7, 1.0, 5.0)


def unpacked(found: bytes) -> dict[str, Any]:
    return json.loads(zlib.decompress(found))


def noting(calls: list[Any], each: tuple[OperatorRun, ...] = (DENSE,)) -> Profiler:
    return Profiler("here", calls.append, lambda skip: [list(each) for _ in calls[skip:]])


def test_calls_are_profiled_behind_the_first_and_timed_without_a_profiler() -> None:
    profiled: list[Any] = []
    plain: list[Any] = []
    found = unpacked(profile(noting(profiled), plain.append, ["x"], {"runs": 3, "warm_up": 1}))
    assert (profiled, plain) == (["x"] * 4, ["x"] * 4)
    assert found["runtime"] == "here"
    assert found["plain_s"] >= 0
    assert len(found["calls"]) == 3
    assert found["operators"] == [["dense", "MatMul", "CPU", "float[2]"]]
    assert [row[:3] for row in found["runs"]] == [[0, call, 7] for call in range(3)]
    for (begin, _), row in zip(found["calls"], found["runs"], strict=True):
        assert row[3:] == [pytest.approx(begin + 1.0, abs=0.02), 5.0]


def test_an_operator_is_one_row_whatever_its_shapes() -> None:
    other = DENSE._replace(shapes="float[3]"), DENSE._replace(name="x" * 1000)
    found = unpacked(packed("here", [(0.0, 1.0)], 1.0, [[DENSE, *other]]))
    assert found["operators"] == [["dense", "MatMul", "CPU", "float[2]"], ["x" * 400, "MatMul", "CPU", "float[2]"]]
    assert [row[0] for row in found["runs"]] == [0, 0, 1]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"runs": 0}, "runs must be a whole number from 1 to 1000, not 0"),
        ({"runs": True}, "runs must be a whole number"),
        ({"runs": 1001}, "not 1001"),
        ({"warm_up": -1}, "warm_up must be a whole number from 0"),
        ({"warm_up": "x"}, "not 'x'"),
    ],
)
def test_options_out_of_range_are_refused_before_a_call(options: dict[str, Any], said: str) -> None:
    calls: list[Any] = []
    with pytest.raises(RemoteArgumentError, match=said):
        profile(noting(calls), calls.append, [1], options)
    assert not calls


def test_what_does_not_fit_says_to_take_fewer_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(RemoteArgumentError, match="here noted 4 of 10 calls; take fewer runs than 10, or free"):
        profile(Profiler("here", abs, lambda skip: [[DENSE]] * 4), abs, [1], {})
    monkeypatch.setattr(profiler, "MAX_OPERATORS", 3)
    with pytest.raises(RemoteArgumentError, match="the profile has more than 3 runs of operators; take fewer runs, or"):
        profile(noting([]), abs, [1], {})
    monkeypatch.setattr(profiler, "MAX_OPERATORS", 100)
    monkeypatch.setattr(profiling, "MAX_BYTES", 1 << 20)
    assert profile(noting([]), abs, [1], {})
    monkeypatch.setattr(profiling, "MAX_BYTES", 50)
    with pytest.raises(RemoteArgumentError, match="is more than 0 MB; take fewer runs than 10"):
        profile(noting([]), abs, [1], {})
    with pytest.raises(RemoteArgumentError, match="0 MB; one call is too much: take a smaller input"):
        profile(noting([]), abs, [1], {"runs": 1})


def test_a_profile_is_stopped_between_two_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    """By another thread, as a client's Ctrl-C does."""
    monkeypatch.setattr(running_call, "stops", [])
    calls: list[Any] = []

    def call(x: Any) -> None:
        calls.append(x)
        if len(calls) == 3:
            stop = threading.Thread(target=running_call.stops[0])  # type: ignore[index]
            stop.start()
            stop.join()

    with pytest.raises(RemoteArgumentError, match="the profile was stopped"):
        profile(Profiler("here", call, lambda skip: []), abs, [1], {"runs": 1000})
    assert len(calls) == 3
