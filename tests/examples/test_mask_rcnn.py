from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from examples.mask_rcnn import CUT, mask_rcnn
from rpcsys import graph
from rpcsys.errors import UsageError
from tests.graph.running import assert_same, run, run_stages


def image(size: int, seed: int = 0) -> dict[str, np.ndarray[Any, Any]]:
    return {"image": np.random.default_rng(seed).integers(0, 256, (1, 3, size, size), np.uint8)}


def test_what_crosses_is_as_large_as_in_the_real_one() -> None:
    stages = graph.split(mask_rcnn(), [CUT])
    crossing = {item.tensor.name: item.tensor for item in stages.crossings() if item.source == "stage0"}
    assert set(crossing) == set(CUT)
    assert crossing["roi_features"].shape == (84, 256, 7, 7)
    assert sum(tensor.nbytes or 0 for tensor in crossing.values()) == pytest.approx(4.2e6, rel=0.02)
    assert stages.inputs[0].nbytes == pytest.approx(0.8e6, rel=0.02)
    assert [tensor.name for tensor in stages.outputs] == ["boxes", "labels", "scores", "masks"]


def test_it_finds_something_and_is_divided_without_a_difference() -> None:
    model = mask_rcnn(size=128, proposals=16, width=0.125)
    for seed in (1, 2):
        found = run(model, image(128, seed))
        count = len(found["boxes"])
        assert 0 < count <= 100
        assert found["labels"].shape == found["scores"].shape == (count,)
        assert found["masks"].shape == (count, 28, 28)
        assert np.ptp(found["masks"]) > 0.1
        assert ((found["boxes"] >= 0) & (found["boxes"] <= 128)).all()
        stages = graph.split(model, [CUT], exact=True)
        assert_same(run_stages(stages, image(128, seed)), found)


def test_the_same_seed_makes_the_same_network() -> None:
    one, same, other = (mask_rcnn(128, 8, 0.05, seed) for seed in (1, 1, 2))
    assert one.SerializeToString() == same.SerializeToString() != other.SerializeToString()


def test_a_size_that_does_not_divide_is_refused() -> None:
    with pytest.raises(UsageError, match="multiple of 64, not 100"):
        mask_rcnn(100)
