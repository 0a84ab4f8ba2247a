from __future__ import annotations

import io

import pytest

from rpcsys import graph
from tests.graph._show.stages import three_stages
from tests.graph.running import chain


def test_the_tables_tell_stages_and_what_crosses() -> None:
    out = io.StringIO()
    graph.show(three_stages(), times={"stage0": 0.0125}, file=out)
    assert out.getvalue().splitlines() == [
        "STAGE   TARGET  NODES  WEIGHTS  NEEDS           TIME",
        "stage0  -       1      24 B     -               12.50 ms",
        "stage1  -       2      0 B      stage0          ?",
        "stage2  -       1      0 B      stage0, stage1  ?",
        "",
        "TENSOR  TYPE           BYTES  FROM     TO",
        "x       float32[2, 3]  24 B   (input)  stage0",
        "a<b     float32[2, 3]  24 B   stage0   stage1, stage2",
        "n       int64[2, ?]    ?      stage1   (output)",
        "c       float32[2, 3]  24 B   stage1   stage2",
        "y       float32[2, 3]  24 B   stage2   (output)",
    ]


def test_a_model_is_shown_as_one_stage(capsys: pytest.CaptureFixture[str]) -> None:
    graph.show(chain(4))
    assert "stage0  -       4      0 B      -" in capsys.readouterr().out.splitlines()
