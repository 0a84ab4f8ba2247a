"""The picture of a comparison."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from rpcsys.measure.judge import Judgement, Verdict
from rpcsys.measure.picture import draw, drawing
from tests.measure.test_outcome import board, comparison, effect

SVG = "{http://www.w3.org/2000/svg}"
SLOWER = Judgement(Verdict.SLOWER, effect(0.02, 0.01, 0.03), (effect(0.02, 0.01, 0.03),), 1)


def test_a_picture_has_every_turn_and_the_answer(tmp_path: Path):
    draw(comparison(SLOWER), tmp_path / "runs.svg")
    root = ET.parse(tmp_path / "runs.svg").getroot()
    assert root.find(f"{SVG}title").text == "B is 2.0 % slower than A (1.0 to 3.0, 95 %)"
    turns = [each for each in root.iter(f"{SVG}circle") if each.get("r") == "1.3"]
    assert len(turns) == 80
    assert {each.get("class") for each in turns} == {"c0", "c1"}
    assert "prefers-color-scheme:dark" in root.find(f"{SVG}style").text


def test_turns_that_do_not_count_are_hollow():
    whole = board()
    disturbed = np.zeros((40, 2), bool)
    disturbed[::4] = True
    text = drawing(comparison(SLOWER, replace(whole, blocks=replace(whole.blocks, disturbed=disturbed))))
    assert text.count('class="h0"') == 10


def test_everything_lies_inside():
    made = board(spread=2.0)
    root = ET.fromstring(drawing(comparison(SLOWER, made, board("pi-2"), judgements=(replace(SLOWER, effects=(
        effect(0.5, -0.9, 8.0), None)),))))  # fmt: skip
    width, height = float(root.get("width")), float(root.get("height"))
    for each in root.iter(f"{SVG}circle"):
        assert 0 < float(each.get("cx")) < width
        assert 0 < float(each.get("cy")) < height


@pytest.mark.parametrize("count", [0, 1])
def test_a_board_without_turns(count: int):
    found = comparison(Judgement(Verdict.UNKNOWN), board(count=count))
    assert ET.fromstring(drawing(found)).tag == f"{SVG}svg"


def test_names_are_escaped():
    found = comparison(SLOWER, board("<pi&1>"), subjects=("<A>", "B&B"))
    assert "<A>" in "".join(ET.fromstring(drawing(found)).itertext())
