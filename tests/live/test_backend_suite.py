"""ONNX's backend suite on a device: each case that passes directly passes in a session, whole and split in two.

A case passes directly if plain onnxruntime gives the expected outputs; if onnxruntime cannot load the model, the
reference evaluator must. A case with two nodes or more is split before its middle node; tests/graph/split_cases.txt
lists the nodes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

import rpcsys
from rpcsys import graph
from rpcsys.module import onnx_module
from tests.combinations import usual
from tests.graph import onnx_cases
from tests.graph.onnx_cases import Case
from tests.live.daemons import Daemon, Daemons

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

SHARDS = 8
USUAL = {0, 4}
Run = Callable[[Mapping[str, Any]], Mapping[str, Any]]


@pytest.fixture(scope="module")
def server(module_daemons: Callable[[], Daemons]) -> Daemon:
    return module_daemons().server("board", "--tvm", "off")


@pytest.fixture
def session(server: Daemon) -> Iterator[rpcsys.client.Session]:
    with rpcsys.connect(*server.address, key="board") as session:
        yield session


def problem(case: Case, run: Run) -> str:
    """The error of ``run`` for the case, or its wrong output; "" if the case passes."""
    try:
        for feeds, expected in case.data:
            case.check(list(run(feeds).values()), expected)
    except Exception as error:
        return f"{case.name}: {type(error).__name__}: {' '.join(str(error).split())[:300]}"
    return ""


def of_shard(shard: int) -> tuple[Case, ...]:
    return onnx_cases.cases()[shard::SHARDS]


@pytest.mark.parametrize("shard", usual(range(SHARDS), USUAL.__contains__))
def test_what_passes_directly_passes_remotely(shard: int, session: rpcsys.client.Session, tmp_path: Path) -> None:
    cases = of_shard(shard)
    passing = [case for case in cases if onnx_cases.passes_directly(case)]
    assert len(passing) > 0.95 * len(cases)
    failed = []
    for case in passing:
        path = tmp_path / f"{case.name}.onnx"
        path.write_bytes(case.model.SerializeToString())
        failed.append(problem(case, lambda feeds, path=path: session.load_module(path).run(feeds)))
    assert [text for text in failed if text] == []


@pytest.mark.parametrize("shard", usual(range(SHARDS), USUAL.__contains__))
def test_what_passes_directly_passes_with_its_second_half_on_the_device(
    shard: int, session: rpcsys.client.Session, tmp_path: Path
) -> None:
    failed = []
    for case in of_shard(shard):
        if len(case.model.graph.node) < 2:
            continue
        here, there = graph.split(case.model, onnx_cases.middle(case))
        if onnx_cases.passes_directly(case):
            path = tmp_path / f"{case.name}.onnx"
            there.save(path)
            failed.append(problem(case, in_two(case, session, here, there, path)))
    assert [text for text in failed if text] == []


def in_two(case: Case, session: rpcsys.client.Session, here: graph.Stage, there: graph.Stage, path: Path) -> Run:
    """A function that runs stage ``here`` in this process and stage ``there``, saved at ``path``, on the device."""

    def run(feeds: Mapping[str, Any]) -> Mapping[str, Any]:
        values = dict(feeds)
        for stage, module in ((here, onnx_module(here.model)), (there, session.load_module(path))):
            values.update(module.run({i.name: values[i.name] for i in stage.inputs if i.name in values}))
        return {output.name: values[output.name] for output in case.model.graph.output}

    return run
