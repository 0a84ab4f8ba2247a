"""Profiles of Relax programs: what TVM's machine says of the functions that it calls."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from rpcsys.errors import ProfileNotSupported, RemoteArgumentError
from rpcsys.module import profiler
from rpcsys.module.kinds import relax_profile
from rpcsys.module.kinds.relax_profile import _Calls


def test_functions_have_their_times_and_those_inside_them_theirs() -> None:
    now = [0.0]
    calls = _Calls("", lambda: now[0])
    arrays = [5, SimpleNamespace(shape=(2, 3), dtype="float32"), SimpleNamespace(shape=(), dtype="int64")]
    for _ in range(2):
        calls.begin()
        now[0] += 1e-6
        calls.enter("outer", list)
        now[0] += 1e-6
        calls.enter("fused_matmul12", lambda: arrays)
        now[0] += 3e-6
        calls.leave()
        calls.leave()
    (second,) = calls.runs(1)
    found = [(run.name, run.type, run.shapes, round(run.begin, 6), round(run.duration, 6)) for run in second]
    assert found == [
        ("fused_matmul12", "fused_matmul", "float32[2,3] int64[]", 2, 3), ("outer", "outer", "", 1, 4),
    ]  # fmt: skip
    assert {run.provider for run in second} == {"cpu:0"}


def test_more_than_fits_is_refused_at_the_next_call(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (profiler, relax_profile):
        monkeypatch.setattr(module, "MAX_OPERATORS", 1)
    calls = _Calls("")
    calls.begin()
    for _ in range(5):
        calls.enter("relu", list)
        calls.leave()
    assert [len(runs) for runs in calls.runs(0)] == [1]
    with pytest.raises(RemoteArgumentError, match="more than 1 runs of operators"):
        calls.begin()


def test_a_program_without_bytecode_says_so() -> None:
    calls = _Calls("")
    calls.begin()
    with pytest.raises(ProfileNotSupported, match="exec_mode='bytecode'"):
        calls.runs(0)
