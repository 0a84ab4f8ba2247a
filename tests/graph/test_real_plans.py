"""Plans of real architectures, on the CPUs of this machine."""

from __future__ import annotations

import json
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rpcsys import graph
from rpcsys.graph import Pipeline, Plan, samples
from rpcsys.graph._pipeline.cpu_shares import available
from tests.combinations import NETWORKS, usual
from tests.graph.running import run, run_stages

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.skipif(len(available()) < 2, reason="takes two CPUs"),
]

FRAMES = 40
#: The tolerance for a machine without other load, and the number of attempts, since this one may have some.
OFF = 0.15
ATTEMPTS = 5
#: The share of its CPUs that a pipeline has without other load.
ALONE = 0.85


def frame(seed: int) -> Any:
    return np.random.default_rng(seed).random((1, 3, 224, 224), "float32")


@pytest.mark.parametrize("name", usual(samples.names(), NETWORKS.__contains__))
def test_every_architecture_is_divided(name: str) -> None:
    network = samples.light_model(name, seed=2)
    plan = graph.auto_cuts(network, 2, measure_s=0.05, rounds=2)
    assert 1 <= len(plan.stages) <= 2
    assert plan.throughput > 0
    (tensor,) = plan.stages.inputs
    feeds = {tensor.name: frame(3)}
    made, expected = run_stages(graph.split(network, plan), feeds, "ALL"), run(network, feeds, "ALL")
    for output in expected:
        np.testing.assert_allclose(made[output], expected[output], rtol=1e-3, atol=1e-6)


def undisturbed(pipeline: Pipeline, folder: Path) -> float:
    """Seconds of the slowest stage, each from the quarter of its frames with the least other load."""
    pipeline.save_trace(folder / "trace.json")
    took = defaultdict(list)
    for event in json.loads((folder / "trace.json").read_text())["traceEvents"]:
        if event["ph"] == "X":
            took[event["cat"]].append(event["dur"] * 1e-6)
    return max(float(np.quantile(durations, 0.25)) for durations in took.values())


def off(plan: Plan, folder: Path) -> tuple[float, bool]:
    """The relative error of a plan's slowest stage, and whether the machine had no other load."""
    with plan.pipeline() as pipeline:
        began, computed = time.perf_counter(), time.process_time()
        for _ in pipeline.run([frame(0)] * FRAMES):
            pass
        share = (time.process_time() - computed) / (time.perf_counter() - began) / len(plan.stages)
        plan.compare(pipeline.figures())
        return plan.bottleneck.stage_s / undisturbed(pipeline, folder) - 1, share > ALONE


def test_the_expected_time_of_resnet50_is_measured(tmp_path: Path) -> None:
    network = samples.light_model("resnet50", seed=1)
    fair: list[float] = []
    for _ in range(ATTEMPTS):
        found, alone = off(graph.auto_cuts(network, 2), tmp_path)
        if abs(found) <= OFF:
            return
        if alone:
            fair.append(found)
    if len(fair) < 2:
        pytest.skip("the machine was too busy with other things to tell")
    pytest.fail(f"off by {fair}")
