"""The models of the corpus in stages, on this machine: equal bit for bit to the whole model, or refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import onnx
import pytest

from rpcsys import graph, module
from rpcsys.errors import UsageError
from rpcsys.graph._ir.dataflow import Dataflow
from rpcsys.graph._plan import devices
from rpcsys.module.kinds.onnx_model import read
from tests.corpus.models import MAKERS, NOT_EXACTLY, UNDIVIDED, Corpus, Example, bits, refused
from tests.graph.running import ops

#: scikit-learn takes two seconds of CPU to import.
NAMES = [pytest.param(name, marks=[pytest.mark.slow] if name.startswith("fitted") else []) for name in MAKERS]
NO_REGION = (
    "the region is empty: none of its nodes has work to do in this model, once onnxruntime has left out what it can"
)
#: The node in the middle is an Identity or a Cast.
NO_EXACT_REGION = {
    "by_hand.equal_nodes", "by_onnxruntime.float16_mixed", "fitted.lightgbm_classifier", "fitted.lightgbm_regressor",
}  # fmt: skip
#: Operators that onnxruntime adds and leaves out.
CONVERSIONS = {"Cast", "QuantizeLinear", "DequantizeLinear", "Identity", "Dropout"}


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    return Corpus(tmp_path_factory.mktemp("corpus"))


@pytest.mark.parametrize("name", NAMES)
def test_exact_stages(corpus: Corpus, name: str) -> None:
    example = corpus[name]
    with refused(NOT_EXACTLY.get(name)):
        stages = graph.split(example.path, example.cuts(), exact=True)
        assert bits(graph.build(stages).run(example.feeds)) == bits(example.run("BASIC"))


@pytest.mark.parametrize("name", NAMES)
def test_stages_that_are_found_by_measuring(corpus: Corpus, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "available", lambda: {0, 1})
    monkeypatch.setattr(devices.PlanDevice, "target", property(lambda device: graph.OnnxRuntime(threads=1)))
    example = corpus[name]
    with refused(UNDIVIDED.get(name)):
        how: Any = {"inputs": example.feeds, "exact": True, "rounds": 1, "measure_s": 0.001}
        plan = graph.auto_cuts(example.path, ["cpu:0", "cpu:1"], **how)
        assert bits(graph.build(plan.stages).run(example.feeds)) == bits(example.run("BASIC"))
        again = graph.split(example.path, plan, exact=True)
        assert [ops(stage) for stage in again] == [ops(stage) for stage in plan.stages]


@pytest.mark.slow
@pytest.mark.parametrize("name", [each for each in NAMES if each.values[0] not in UNDIVIDED])
def test_a_stage_has_the_nodes_that_were_asked_for(corpus: Corpus, name: str) -> None:
    """At each cut, an exact division has the same nodes in each stage, as far as onnxruntime keeps them apart."""
    example = corpus[name]
    expected = bits(example.run("BASIC"))
    for cut in range(1, len(onnx.load(example.path, load_external_data=False).graph.node)):
        plain, exact = divided(example, cut, exact=False), divided(example, cut, exact=True)
        if plain and exact:
            work = [[{*ops(stage)} - CONVERSIONS for stage in stages] for stages in (plain, exact)]
            added = [has - asked for asked, has in zip(*work, strict=True)]
            assert not any(added) or name == "by_hand.functions", (cut, work)
            assert bits(graph.build(exact).run(example.feeds)) == expected, cut


@pytest.mark.parametrize("name", [each for each in NAMES if each.values[0] not in UNDIVIDED])
def test_a_region(corpus: Corpus, name: str, tmp_path: Path) -> None:
    """The node in the middle, as a stage of its own, written with the others as one library."""
    example = corpus[name]
    node = Dataflow(read(example.path)).nodes[next(iter(example.cuts()), 0)]
    with refused(NO_REGION if name in NO_EXACT_REGION else None):
        stages = graph.partition(example.path, [node.outputs[0].name], exact=True)
        module.export_library(graph.build(stages), tmp_path / "m.so")
        with module.load_module(tmp_path / "m.so") as loaded:
            assert bits(loaded.run(example.feeds)) == bits(example.run("BASIC"))


@pytest.mark.parametrize("name", [each for each in NAMES if each.values[0] not in UNDIVIDED])
def test_encoded_where_that_applies(corpus: Corpus, name: str) -> None:
    """zlib loses nothing, and leaves strings, sequences and maps as they are."""
    example = corpus[name]
    stages = graph.split(example.path, example.cuts())
    encoded = graph.Remote(serve="part", address="127.0.0.1:1", encode="zlib")
    weighed = graph.weigh(stages, {stages[-1].name: encoded}, example.feeds, repeat=1)
    assert set(weighed.outputs.values()) == {0.0}


def divided(example: Example, cut: int, *, exact: bool) -> graph.Stages | None:
    """The stages; None where one would have nothing to do."""
    try:
        return graph.split(example.path, cut, exact=exact)
    except UsageError as error:
        if "would have nothing to do: no output of the model needs it" not in str(error):
            raise
        return None
