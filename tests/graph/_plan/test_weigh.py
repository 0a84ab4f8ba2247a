"""The effect of encoding on the tensors of one frame."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from rpcsys import graph
from rpcsys.errors import UsageError
from tests.graph.running import make, node, numbers, values
from tests.shown_html import shown

NOWHERE = {"function": "head", "address": "127.0.0.1:1"}
FRAME = {"x": numbers(8, 256)}


@pytest.fixture
def stages() -> graph.Stages:
    """Tanh here, Neg there, Abs here."""
    nodes = [node("Tanh", "x", "h", name="a"), node("Neg", "h", "g", name="b"), node("Abs", "g", "y", name="c")]
    return graph.split(make(nodes, values("x", shape=(8, 256)), values("y", shape=(8, 256))), ["b", "c"])


def weighed(stages: graph.Stages, encode: Any) -> graph.Weighed:
    return graph.weigh(stages, {"stage1": graph.Remote(**NOWHERE, encode=encode)}, FRAME)


def test_bytes_times_and_losses(stages: graph.Stages) -> None:
    told = weighed(stages, {"h": "int8"})
    there, back = told.tensors
    assert (there.tensor, there.stage, there.there, there.how) == ("h", "stage1", True, "int8")
    assert (there.bytes, there.sent) == (8192, 2048 + 8)
    assert there.encode_s > 0
    assert there.decode_s > 0
    assert 0 < there.loss < 1 / 127
    assert (back.tensor, back.there, back.how, back.bytes, back.sent, back.loss) == ("g", False, "", 8192, 8192, 0)
    assert told.outputs == {"y": pytest.approx(there.loss, rel=0.01)}


def test_nothing_is_lost_without_rounding(stages: graph.Stages) -> None:
    told = weighed(stages, "zlib")
    assert all(weight.loss == 0 for weight in told.tensors)
    assert told.outputs == {"y": 0.0}


def test_both_directions_lose_more(stages: graph.Stages) -> None:
    assert weighed(stages, "int8").outputs["y"] > weighed(stages, "float16").outputs["y"] > 0


def test_pairs_are_weighed_too(stages: graph.Stages) -> None:
    pair = (lambda array: array.astype("f2"), lambda array: array.astype("f4"))
    there, _ = weighed(stages, {"h": pair}).tensors
    assert (there.how, there.bytes, there.sent) == ("pair", 8192, 4096)
    assert there.loss == weighed(stages, {"h": "float16"}).tensors[0].loss


def test_as_text_it_is_a_table(stages: graph.Stages) -> None:
    lines = str(weighed(stages, {"h": "float16"})).splitlines()
    assert lines[0].split() == ["TENSOR", "CROSSES", "ENCODING", "BYTES", "SENT", "ENCODE", "DECODE", "LOSS"]
    assert lines[1].split()[:4] == ["h", "to", "stage1", "float16"]
    assert lines[2].split()[:4] == ["g", "from", "stage1", "-"]
    assert lines[2].split()[-1] == "none"
    assert lines[4].split() == ["OUTPUT", "LOSS"]


@pytest.mark.parametrize(
    ("exact", "came", "loss"),
    [
        (np.ones(3), np.array([1, 1, 0.5]), 0.5),
        (np.array([np.nan, 2.0]), np.array([np.nan, 2.0]), 0.0),
        (np.zeros(2), np.array([0, 1.0]), math.inf),
        (np.ones(2), np.ones(3), math.nan),
        (["a"], ["a"], 0.0),
        (["a"], ["b"], math.nan),
        (np.array(["a", "b"], object), np.array(["a", "b"], object), 0.0),
        (np.array(["a", "b"], object), np.array(["a", "c"], object), math.nan),
        ([np.ones(2), np.ones(3)], [np.ones(2), np.ones(3)], 0.0),
        ([np.ones(2), np.ones(3)], [np.ones(2), np.zeros(3)], math.nan),
        ([{"a": 0.5}], [{"a": 0.5}], 0.0),
        (np.empty((0, 4)), np.empty((0, 4)), 0.0),
    ],
)
def test_losses(exact: Any, came: Any, loss: float) -> None:
    from rpcsys.graph._plan.weigh import _loss

    assert _loss(exact, came) == pytest.approx(loss, nan_ok=True)


def test_stages_that_cannot_be_weighed_are_refused(stages: graph.Stages) -> None:
    remote = {"stage1": graph.Remote(**NOWHERE)}
    with pytest.raises(UsageError, match="it lacks x"):
        graph.weigh(stages, remote, {})
    with pytest.raises(UsageError, match=r"^inputs are given by name, such as \{'x': array\}, not as ndarray"):
        graph.weigh(stages, remote, FRAME["x"])  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="no stage 'head'"):
        graph.weigh(stages, {"head": graph.Remote(**NOWHERE)}, FRAME)
    with pytest.raises(UsageError, match="repeat is 1 or more"):
        graph.weigh(stages, remote, FRAME, repeat=0)


def test_weights_show_themselves_in_a_notebook(stages: graph.Stages) -> None:
    told = shown(weighed(stages, "float16"))
    assert told.cells[1:3] == ["TENSOR", "CROSSES"]
    assert told.cells[-4:-2] == ["OUTPUT", "LOSS"]
