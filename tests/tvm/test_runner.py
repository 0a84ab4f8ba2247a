"""The runner as TVM sees it, without a lab."""

from __future__ import annotations

import contextlib
import functools
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rpcsys.errors import TrackerUnreachable, UsageError

pytest.importorskip("tvm.s_tir.meta_schedule.runner")

from tvm.s_tir import meta_schedule as ms

from rpcsys.client import Tracker
from rpcsys.result_store import ResultStore
from rpcsys.tvm import Runner, runner
from rpcsys.tvm.artefact import Artefact
from rpcsys.tvm.lab_results import LabResults
from rpcsys.tvm.tuning_state import Candidate


def given(device: str = "cpu", dtype: str = "float32", shape: tuple[int, ...] = (2, 3)) -> Any:
    return ms.runner.RunnerInput("candidate.so", device, [ms.arg_info.TensorInfo(dtype, shape)])


@pytest.mark.parametrize(
    ("kind", "device"),
    [("cpu", "cpu:0"), ("llvm", "cpu:0"), ("c", "cpu:0"), ("opencl", "opencl:0"), ("cuda", "cuda:0")],
)
def test_an_input_of_tvms_is_a_candidate(kind: str, device: str) -> None:
    candidate = runner._candidate(given(kind))
    assert candidate.device == device
    assert candidate.arguments == (("float32", (2, 3)),)
    assert candidate.artefact.path == "candidate.so"
    assert not candidate.outcome.done()


def test_a_device_that_no_board_has_is_the_candidates_error() -> None:
    candidate = runner._candidate(given("abacus"))
    result = runner._future(candidate).result()
    assert result.run_secs is None
    assert result.error_msg.startswith("RPCRunner: An exception occurred\n'abacus' is no name of a device")


@pytest.mark.parametrize("info", [None, ["SCALAR", 1, 2], ["TENSOR", "float32"], "x" * 500])
def test_an_argument_that_is_no_tensor_is_refused(info: object) -> None:
    with pytest.raises(UsageError, match=r"^a candidate's argument is no tensor, but .{1,200}$"):
        runner._array(info)


def test_a_future_is_done_with_its_candidate_and_has_seconds() -> None:
    candidate = Candidate(Artefact("candidate.so"), "cpu:0", ())
    future = runner._future(candidate)
    assert not future.done()
    candidate.answer([0.5, 0.25])
    assert future.done()
    result = future.result()
    assert isinstance(result, ms.runner.RunnerResult)
    assert [float(seconds) for seconds in result.run_secs] == [0.5, 0.25]
    assert result.error_msg is None


def test_tvms_ways_to_measure_are_the_devices() -> None:
    config = ms.runner.EvaluatorConfig(number=2, repeat=3, min_repeat_ms=40, enable_cpu_cache_flush=True)
    assert runner._options(config, 0.25, 4) == {
        "number": 2, "repeat": 3, "min_repeat_ms": 40, "flush_caches": True, "cooldown_ms": 250, "copies": 4,
    }  # fmt: skip


def test_results_are_kept_where_the_user_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    tracker = Tracker(("127.0.0.1", 1), "ann", 1.0)
    stored = functools.partial(runner._store, tracker=tracker)
    own = ResultStore(tmp_path / "own.sqlite")
    assert stored(None) is None
    assert stored(False) is None
    assert stored(own) is own
    assert stored(True).path == tmp_path / "cache" / "rpcsys" / "measured.sqlite"
    assert stored(str(tmp_path / "file")).path == tmp_path / "file"
    monkeypatch.chdir(tmp_path)
    assert stored("./tracker").path == Path("tracker")
    assert isinstance(stored("tracker"), LabResults)


@pytest.mark.parametrize(
    ("options", "words"),
    [({"boards": 0}, "boards=0"), ({"boards": True}, "boards=True"), ({"timeout_s": 0}, "timeout_s=0"),
     ({"timeout_s": float("inf")}, "timeout_s=inf"), ({"alloc_repeat": 0}, "alloc_repeat=0"),
     ({"cooldown_s": -1}, "cooldown_s=-1")],
)  # fmt: skip
def test_mistakes_are_told_before_a_tracker_is_looked_for(options: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        Runner("rpi4", "127.0.0.1:1", **options)


def test_a_tracker_that_is_not_there_is_told_at_once() -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        address = closed.getsockname()
    with pytest.raises(TrackerUnreachable):
        Runner("rpi4", address, store=None)


def test_a_round_of_candidates_shows_how_many_are_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[tuple[float, float] | str] = []

    @contextlib.contextmanager
    def reporting(*asked: object) -> Iterator[Any]:
        assert asked == (True, "measuring", "candidate")
        yield lambda done, total: told.append((done, total))
        told.append("closed")

    monkeypatch.setattr(runner, "reporting", reporting)
    candidates = [runner._candidate(given()) for _ in range(3)]
    candidates[1].answer([0.5])
    runner._show(candidates, True)
    assert told == [(1, 3)]
    candidates[0].answer(error=UsageError("it fails"))
    candidates[2].answer([0.5])
    assert told == [(1, 3), (2, 3), (3, 3), "closed"]
