"""Stages as tables and as a drawing."""

from __future__ import annotations

import io
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from rpcsys import graph
from rpcsys.graph._show.show import size_text
from tests.graph.running import chain, make, node, numbers, values

SVG = "{http://www.w3.org/2000/svg}"


def three_stages() -> graph.Stages:
    model = make(
        [
            node("Add", "x w", "a<b", name="first"),
            node("Neg", "a<b", "c"),
            node("NonZero", "c", "n"),
            node("Mul", "a<b c", "y"),
        ],
        values("x"),
        [*values("y"), *values("n", shape=(2, None), dtype=7)],
        weights={"w": numbers(2, 3)},
    )
    return graph.split(model, [1, 3])


def test_the_tables_list_stages_and_crossing_tensors() -> None:
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


def test_the_drawing_has_a_box_for_each_stage_and_a_line_for_each_way(tmp_path: Path) -> None:
    graph.show(three_stages(), times={"stage1": 0.002}, svg=tmp_path / "g.svg", file=io.StringIO())
    root = ET.parse(tmp_path / "g.svg").getroot()
    words = [element.text for element in root.iter(f"{SVG}text")]
    for expected in ("stage0", "stage1", "stage2", "inputs", "outputs", "a<b", "2.00 ms", "1 node · 24 B"):
        assert expected in words
    lines = [element.text for element in root.iter(f"{SVG}title")]
    assert lines == [
        "x: float32[2, 3], 24 B",
        "a<b: float32[2, 3], 24 B",
        "a<b: float32[2, 3], 24 B",
        "n: int64[2, ?], ?",
        "c: float32[2, 3], 24 B",
        "y: float32[2, 3], 24 B",
    ]
    boxes = [{k: float(box.get(k, 0)) for k in ("x", "y", "width", "height")} for box in root.iter(f"{SVG}rect")]
    assert len(boxes) == 5
    assert len({(box["x"], box["y"]) for box in boxes}) == 5
    assert all(box["x"] + box["width"] <= float(root.get("width", 0)) for box in boxes)


@pytest.mark.parametrize(
    ("count", "text"),
    [(None, "?"), (0, "0 B"), (999, "999 B"), (1000, "1.0 kB"), (22_400_000, "22.4 MB"), (10**16, "10000.0 TB")],
)
def test_sizes_for_people(count: int | None, text: str) -> None:
    assert size_text(count) == text
