from __future__ import annotations

import os
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rpcsys import graph
from rpcsys.graph import OnnxRuntime, Pipeline
from rpcsys.graph._pipeline.cpu_shares import shared, shares
from rpcsys.module.kinds.onnx import OnnxModule
from tests.graph.running import chain, numbers

HERE = {0, 2, 4, 6}


@pytest.fixture
def four(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rpcsys.graph._pipeline.cpu_shares.available", lambda: set(HERE))


def on(*cpus: int, threads: int = 1) -> OnnxRuntime:
    return OnnxRuntime(threads, cpus)


@pytest.mark.parametrize(
    ("targets", "cpus", "replicas", "expected"),
    [
        ({}, {}, {}, [on(0, 2, threads=2), on(4, 6, threads=2)]),
        ({"stage0": "onnxruntime"}, {}, {"stage1": 2}, [on(0, 2, threads=2), on(4, 6)]),
        ({}, {}, {"stage0": 4}, [on(), on()]),
        ({}, {"stage1": [0]}, {}, [on(2, 4, 6, threads=3), on(0)]),
        ({}, {"stage0": [0, 2, 4, 6]}, {"stage0": 2}, [on(0, 2, 4, 6, threads=2), on(0, 2, 4, 6, threads=4)]),
        ({"stage0": OnnxRuntime(cpus=(2,))}, {}, {}, [OnnxRuntime(cpus=(2,)), on(0, 4, 6, threads=3)]),
        ({"stage0": OnnxRuntime(3)}, {}, {}, [OnnxRuntime(3), on(0, 2, 4, 6, threads=4)]),
        ({"stage0": "reference", "stage1": abs}, {}, {}, ["reference", abs]),
        ({"stage1": OnnxRuntime(provider="CUDA")}, {}, {}, [on(*HERE, threads=4), OnnxRuntime(provider="CUDA")]),
    ],
)
@pytest.mark.usefixtures("four")
def test_targets_without_cpus_or_threads_share_the_cpus(
    targets: dict[str, Any], cpus: dict[str, Any], replicas: dict[str, int], expected: list[Any]
) -> None:
    stages = graph.split(chain(), [2])
    assert list(shared(stages, {"stage0": None, "stage1": None, **targets}, cpus, replicas).values()) == expected


@given(st.dictionaries(st.text(), st.integers(1, 5)), st.sets(st.integers(0, 99), min_size=1))
def test_shares_are_disjoint_and_sufficient(replicas: dict[str, int], cpus: set[int]) -> None:
    found = shares(replicas, sorted(cpus))
    assert found.keys() == replicas.keys()
    if sum(replicas.values()) > len(cpus):
        assert not any(found.values())
    elif replicas:
        assert sorted(cpu for share in found.values() for cpu in share) == sorted(cpus)
        assert all(len(found[name]) >= count for name, count in replicas.items())


@pytest.mark.skipif(
    not hasattr(os, "sched_getaffinity") or len(os.sched_getaffinity(0)) < 2,
    reason="needs two CPUs, and a system that tells which",
)
def test_a_pipeline_without_options_gives_each_stage_cpus_of_its_own() -> None:
    with Pipeline(graph.split(chain(), [2])) as pipeline:
        pipeline.submit(numbers(2, 3)).result(20)
        modules = [module for module in pipeline._owned if isinstance(module, OnnxModule)]
        sets = [set(module.model.options["cpus"]) for module in modules]
        assert [len(module.model.options["cpus"]) for module in modules] == [
            module.model.options["threads"] for module in modules
        ]
    assert sets[0].isdisjoint(sets[1])
    assert sets[0] | sets[1] == os.sched_getaffinity(0)
