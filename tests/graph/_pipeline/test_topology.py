from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from rpcsys.errors import UsageError
from rpcsys.graph._pipeline.topology import PipelineStage, Topology, named_results


def stage(name: str, inputs: str, outputs: str, module: Any = abs, **more: Any) -> PipelineStage:
    return PipelineStage(name, module, inputs.split(), outputs.split(), **more)


def test_order_inputs_and_outputs_follow_from_the_tensors() -> None:
    topology = Topology([stage("join", "b c x", "y"), stage("left", "a", "b"), stage("stem", "x", "a c")])
    assert [each.name for each in topology.stages] == ["stem", "left", "join"]
    assert (topology.inputs, topology.outputs) == (("x",), ("y",))
    assert topology.uses == {"x": 2, "a": 1, "b": 1, "c": 1, "y": 1}


def test_a_frame_comes_in_three_forms() -> None:
    topology = Topology([stage("s", "x y", "z")])
    assert topology.feeds((1, 2)) == topology.feeds({"y": 2, "x": 1}) == {"x": 1, "y": 2}
    assert Topology([stage("s", "x", "z")]).feeds([1, 2]) == {"x": [1, 2]}
    with pytest.raises(UsageError, match=r"2 tensor\(s\) \(x, y\), not 3"):
        topology.feeds((1, 2, 3))
    with pytest.raises(UsageError, match="a frame is x, y, and this one x, w"):
        topology.feeds({"x": 1, "w": 2})
    with pytest.raises(UsageError, match="a frame is x, y, and this one 3"):
        topology.feeds({3: 1})


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Topology([]), "one stage or more"),
        (lambda: Topology([stage("s", "x", "a"), stage("s", "x", "b")]), "2 stages are called 's'"),
        (lambda: Topology([stage("s", "x", "a"), stage("t", "x", "a")]), "2 stages make the tensor 'a'"),
        (lambda: Topology([stage("s", "a", "b"), stage("t", "b", "a")]), "s, t wait for each other"),
        (lambda: Topology([stage("s", "x", "a", module=3)]), "'s' has nothing to call"),
        (lambda: Topology([stage("s", "x", "a", module=[])]), "'s' has nothing to call"),
        (lambda: Topology([stage("s", "x", "a", cpus=[99999])]), "'s' cannot run on CPU 99999"),
        (lambda: Topology([stage("s", "x", "a")], inputs=["w"]), "no stage makes 'x'"),
        (lambda: Topology([stage("s", "x", "a")], inputs=["x", "a"]), "'a' is an input, and s makes it"),
        (lambda: Topology([stage("s", "x", "a")], outputs=["q"]), "no stage makes the output 'q'"),
    ],
)
def test_stages_that_do_not_fit_are_refused(make: Callable[[], Topology], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        make()


def test_results_by_name() -> None:
    assert named_results(stage("s", "x", "a b"), (1, 2)) == {"a": 1, "b": 2}
    assert named_results(stage("s", "x", "a"), [1, 2]) == {"a": [1, 2]}
    assert named_results(stage("s", "x", ""), ()) == {}
    with pytest.raises(UsageError, match=r"it gave 1 output\(s\), not 2: a, b"):
        named_results(stage("s", "x", "a b"), 1)
