"""Pipelines whose stages lie on devices of one leased board: one call a frame."""

from __future__ import annotations

from typing import Any

import numpy as np

from rpcsys import graph
from rpcsys.graph import Leased, Pipeline
from tests.graph.running import chain, numbers
from tests.live.daemons import Daemons

QUICK = ("--preload", "none")


def test_stages_of_one_board_are_one_call(daemons: Daemons) -> None:
    tracker = daemons.tracker()
    daemons.server("board", *QUICK, tracker=tracker, offers=1)
    board = Leased("board", tracker.where, device="cpu:0")
    stages = graph.split(chain(), [1, 2, 3])
    x: Any = numbers(2, 3)
    with Pipeline(stages, {"stage0": board, "stage1": "onnxruntime", "stage2": board, "stage3": board}) as pipeline:
        for out in pipeline.run([x] * 20):
            np.testing.assert_array_equal(out, np.maximum(-np.maximum(-x, 0), 0))
        print(pipeline, pipeline.figures())
