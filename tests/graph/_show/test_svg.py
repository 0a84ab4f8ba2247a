"""The drawing of stages."""

from __future__ import annotations

import io
from pathlib import Path
from xml.etree import ElementTree as ET

from rpcsys import graph
from tests.graph._show.stages import three_stages

SVG = "{http://www.w3.org/2000/svg}"


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
