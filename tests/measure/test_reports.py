"""The table and JSON of comparisons that are made up."""

from __future__ import annotations

import json
import math

import pytest

from rpcsys.measure import reports
from rpcsys.measure.judge import Judgement, Verdict
from tests.measure.test_outcome import comparison, effect


def test_the_table_has_medians_with_intervals():
    rows = reports.rows(comparison(Judgement(Verdict.UNKNOWN)), 0.95)
    assert [row[:2] for row in rows] == [["A", "pi-1"], ["B", "pi-1"]]
    assert rows[0][2] == "12.5 ms"
    assert rows[0][4] == "40"


@pytest.mark.parametrize(
    ("seconds", "text"), [(2.5, "2.5 s"), (0.00125, "1.25 ms"), (2e-6, "2 us"), (3.4e-8, "34 ns"), (math.nan, "?")]
)
def test_times(seconds: float, text: str):
    assert reports.time_text(seconds) == text


def test_json_has_all():
    found = comparison(Judgement(Verdict.SLOWER, effect(0.02, 0.01, 0.03), (effect(0.02, 0.01, 0.03),), 1, True))
    said = reports.as_json(found)
    assert said["comparisons"][0]["change"] == pytest.approx(0.02)
    assert said["comparisons"][0]["interval"] == pytest.approx([0.01, 0.03])
    assert said["comparisons"][0]["boards"][0]["board"] == "pi-1"
    assert said["subjects"][1]["boards"][0]["median_s"] == pytest.approx(0.0125, rel=0.01)
    assert said["boards"][0]["blocks"] == 40
    assert json.loads(json.dumps(said, allow_nan=False))["seed"] == 7
