"""Sentences of comparisons that are made up."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest

from rpcsys.measure import reports
from rpcsys.measure.judge import Blocks, Effect, Judgement, Rules, Verdict
from rpcsys.measure.outcome import BoardRuns, ModelComparison, sentences


def board(name: str = "pi-1", others: float | None = 0.0, waited: float | None = 0.0, *notes: str, **more: Any):
    count = more.get("count", 40)
    seconds = np.exp(np.random.default_rng(2).normal(0, more.get("spread", 0.001), (count, 2))) * 0.0125
    blocks = Blocks(seconds, np.zeros(seconds.shape, bool), np.arange(count) // 4)
    return BoardRuns(name, blocks, others, waited, notes)


def effect(change: float, low: float, high: float) -> Effect:
    return Effect(*(math.log1p(each) for each in (change, low, high)))


def comparison(judgement: Judgement, *boards: BoardRuns, **more: Any) -> ModelComparison:
    fields: dict[str, Any] = {
        "subjects": ("A", "B"), "judgements": (judgement,), "boards": boards or (board(),), "outputs": ("",),
        "rules": Rules(0.01), "refused": "", "measured_s": 3.0, "limit_s": 60.0, "seed": 7,
    }  # fmt: skip
    return ModelComparison(**{**fields, **more})


OPPOSED = Judgement(Verdict.DISAGREE, effect(0.0, -0.1, 0.1), (effect(0.05, 0.04, 0.06), effect(-0.04, -0.05, -0.03)))
WIDE = Judgement(Verdict.UNKNOWN, effect(0.01, -0.012, 0.031))
TOLD = " cannot tell 1.0 % today: the difference is between -1.2 and 3.1 %; "
APART = (
    "B: the boards disagree: is 5.0 % slower than A on pi-0 (4.0 to 6.0); is 4.0 % faster than A on pi-1 (3.0 to 5.0)"
)
FEW = "B: this board cannot tell 1.0 % today: 40 turns in 60 s are too few; type a longer --limit"
BUSY = f"B: this board{TOLD}other processes took 34 % of its CPUs; --limit 300 may be enough"
WORST = (
    f"B: these boards{TOLD}other processes took 60 % of its CPUs on pi-2, and its turns waited 50 % of their time for "
    "one; --limit 300 may be enough"
)
HOPELESS = (
    "B: this board cannot tell 1.0 % today: the difference is between -50.0 and 90.0 %; half of its own times lie "
    "within 11.0 %"
)
FOUR = [board(f"pi-{number}") for number in range(4)]


@pytest.mark.parametrize(
    ("judgement", "boards", "said"),
    [
        (Judgement(Verdict.FASTER, effect(-0.031, -0.038, -0.024), (None,) * 4, 4), FOUR,
         "B is 3.1 % faster than A (2.4 to 3.8, 95 %), on 4 of 4 boards"),
        (Judgement(Verdict.SLOWER, effect(0.02, 0.011, 0.03)), [], "B is 2.0 % slower than A (1.1 to 3.0, 95 %)"),
        (Judgement(Verdict.SAME, effect(0.0, -0.005, 0.003)), [], "B: no difference above 0.5 % from A"),
        (Judgement(Verdict.SAME, effect(0.0, -0.0003, 0.0002)), [], "B: no difference above 0.03 % from A"),
        (Judgement(Verdict.FASTER, effect(-0.75, -0.8, -0.7)), [],
         "B is 4.00 times as fast as A (3.33 to 5.00, 95 %)"),
        (Judgement(Verdict.SLOWER, effect(1.5, 1.4, 1.6)), [],
         "B takes 2.50 times as long as A (2.40 to 2.60, 95 %)"),
        (OPPOSED, FOUR[:2], APART),
        (Judgement(Verdict.UNKNOWN), [], FEW),
        (WIDE, [board(others=0.34)], BUSY),
        (WIDE, [board(), board("pi-2", 0.6, 0.5)], WORST),
        (Judgement(Verdict.UNKNOWN, effect(0.0, -0.5, 0.9)), [board(others=None, spread=0.1)], HOPELESS),
    ],
)  # fmt: skip
def test_sentences(judgement: Judgement, boards: list[BoardRuns], said: str):
    (sentence,) = sentences(comparison(judgement, *boards))
    assert sentence == said


def test_what_a_reader_has_to_know_follows():
    found = comparison(
        Judgement(Verdict.SAME, effect(0, -0.005, 0.003)),
        board("pi-1", 0.0, 0.0, "it is hot"),
        outputs=("output 0 differs",),
    )
    assert sentences(found)[1:] == ["B: output 0 differs (from A)", "pi-1: it is hot"]


def test_a_refused_board():
    found = comparison(
        Judgement(Verdict.UNKNOWN, settled=True), board(count=0), refused="pi-1 is not measured on: heat"
    )
    assert sentences(found) == ["B: this board cannot tell 1.0 % today: pi-1 is not measured on: heat"]
    assert reports.rows(found, 0.95)[0][2:] == ["?", "? to ?", "0"]
    json.dumps(reports.as_json(found), allow_nan=False)
