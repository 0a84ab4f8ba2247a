"""A comparison in a notebook."""

from __future__ import annotations

from rpcsys.measure.judge import Judgement, Verdict
from rpcsys.measure.outcome import sentences
from rpcsys.measure.shown import ShownComparison
from tests.measure.test_outcome import board, comparison, effect
from tests.shown_html import shown


def test_a_comparison_shows_its_answer_its_table_and_its_picture() -> None:
    faster = Judgement(Verdict.FASTER, effect(-0.031, -0.038, -0.024))
    found = ShownComparison(**vars(comparison(faster, board("<pi>"))))
    told = shown(found)
    assert told.cells[1:2] == sentences(found)
    assert "<pi>" in told.cells
    assert [each.tag.rpartition("}")[2] for each in told.pictures] == ["svg"]
    assert found == ShownComparison(**vars(found))
