"""Stages loaded on benches, and calls that are timed."""

from __future__ import annotations

import threading
import time
from unittest import mock

import numpy as np
import pytest

from rpcsys import graph
from rpcsys.errors import ModelError
from rpcsys.graph._plan.bench import LocalBench, RemoteBench, TimedCall, load_on, paces
from rpcsys.graph._plan.cost_model import DeviceLink
from rpcsys.graph._plan.devices import PlanDevice
from tests.graph.running import chain, numbers, run


def test_a_stage_runs_on_the_cpus_of_its_device(cpus: list[str]) -> None:
    (stage,) = graph.split(chain(), [])
    x = numbers(2, 3)
    trial = LocalBench(PlanDevice(cpus[0], (0,))).load(stage)
    np.testing.assert_allclose(trial.call(x), run(chain(), {"x": x})["y"], rtol=1e-6)
    assert trial.work_s is None


@pytest.mark.parametrize(("exact", "ending"), [(False, ".onnx"), (True, ".so")])
def test_a_device_gets_an_onnx_file_or_if_needed_a_library(exact: bool, ending: str) -> None:
    (stage,) = graph.split(chain(), [], exact=exact)
    session, there = mock.MagicMock(info={}), []
    session.load_module.side_effect = lambda path: there.append((path, path.exists()))
    load_on(session, stage)
    ((path, was_there),) = there
    assert (path.suffix, was_there, path.exists()) == (ending, True, False)


def test_the_error_names_a_device_that_cannot_load_a_stage(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rpcsys.graph._plan.bench.measured_link", lambda *_: DeviceLink(0, 1, 1))
    session = mock.MagicMock(info={})
    session.load_module.side_effect = ModelError("no memory")
    bench = RemoteBench(PlanDevice("key:edge", key="edge"), session, 1, "")
    with pytest.raises(ModelError, match=r"key:edge cannot take stage0: .*no memory"):
        bench.load(graph.split(chain(), [])[0])


def test_paces_are_those_of_each_call() -> None:
    slow, quick = paces([TimedCall(lambda: time.sleep(0.05)), TimedCall(lambda: None)], 0.1, together=True)
    assert slow >= 0.05
    assert quick < 0.05


def test_together_means_at_the_same_time() -> None:
    meeting = threading.Barrier(2, timeout=20)
    met = threading.Event()

    def meets() -> None:
        if threading.current_thread() is not threading.main_thread() and not met.is_set():
            meeting.wait()
            met.set()

    assert len(paces([TimedCall(meets), TimedCall(meets)], 0.01, together=True)) == 2
    assert met.is_set()


def test_in_turn_means_one_after_the_other() -> None:
    running = threading.Lock()

    def alone() -> None:
        assert running.acquire(blocking=False)
        running.release()

    assert len(paces([TimedCall(alone)] * 3, 0.01, together=False)) == 3


def test_an_error_in_a_call_is_raised_and_ends_the_others() -> None:
    calls = iter(range(100))

    def fails() -> None:
        if next(calls):
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        paces([TimedCall(lambda: time.sleep(0.001)), TimedCall(fails)], 0.1, together=True)


def test_of_several_threads_the_pace_is_that_of_all() -> None:
    """Three threads wait at the same time, so that one result in three shows the wait."""
    (pace,) = paces([TimedCall(lambda: time.sleep(0.3), 3)], 0.1, together=True)
    assert 0.05 < pace < 0.3
