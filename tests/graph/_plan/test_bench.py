"""Stages loaded on benches."""

from __future__ import annotations

from unittest import mock

import numpy as np
import pytest

from rpcsys import graph
from rpcsys.errors import ModelError
from rpcsys.graph._plan.bench import LocalBench, RemoteBench, fits_a_file, load_on
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
def test_a_device_is_sent_a_file_or_a_library_where_it_has_to_be(exact: bool, ending: str) -> None:
    (stage,) = graph.split(chain(), [], exact=exact)
    session, there = mock.MagicMock(info={}), []
    session.load_module.side_effect = lambda path: there.append((path, path.exists()))
    load_on(session, stage)
    ((path, was_there),) = there
    assert (path.suffix, was_there, path.exists()) == (ending, True, False)
    assert fits_a_file(stage) is not exact


def test_a_device_that_cannot_take_a_stage_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rpcsys.graph._plan.bench.measured_link", lambda *_: DeviceLink(0, 1, 1))
    session = mock.MagicMock(info={})
    session.load_module.side_effect = ModelError("no memory")
    bench = RemoteBench(PlanDevice("key:edge", key="edge"), session, 1, "")
    with pytest.raises(ModelError, match=r"key:edge cannot take stage0: .*no memory"):
        bench.load(graph.split(chain(), [])[0])
