"""What a comparison says as a table and as JSON."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from rpcsys.intervals import median_interval
from rpcsys.measure.judge import Effect, Judgement
from rpcsys.measure.outcome import BoardRuns, ModelComparison, answer

HEAD = ("SUBJECT", "BOARD", "MEDIAN", "INTERVAL", "TURNS")


def rows(found: ModelComparison, confidence: float) -> list[list[str]]:
    """The table's rows: each subject on each board, its median time with an interval, and how many turns count."""
    made = []
    for place, name in enumerate(found.subjects):
        for board in found.boards:
            low, middle, high = median(board, place, confidence)
            turns = f"{int(board.blocks.kept.sum())}"
            made.append([name, board.name, time_text(middle), f"{time_text(low)} to {time_text(high)}", turns])
    return made


def median(board: BoardRuns, subject: int, confidence: float) -> tuple[float, float, float]:
    """The median seconds of a subject's turns between the ends of its interval; nan where the turns are too few.

    The interval is that of independent turns: slow changes of the board are not in it.
    """
    seconds = board.blocks.seconds[board.blocks.kept][:, subject]
    low, high = median_interval(seconds.tolist(), confidence) or (math.nan, math.nan)
    return low, float(np.median(seconds)) if len(seconds) else math.nan, high


def time_text(seconds: float) -> str:
    """A time with its unit, to four digits."""
    if math.isnan(seconds):
        return "?"
    for scale, unit in ((1.0, "s"), (1e-3, "ms"), (1e-6, "us")):
        if seconds >= scale:
            return f"{seconds / scale:.4g} {unit}"
    return f"{seconds * 1e9:.4g} ns"


def as_json(found: ModelComparison) -> dict[str, Any]:
    """All of a comparison that a program may want; times in seconds, changes as shares (0.03 for 3 % more time)."""
    confidence = found.rules.confidence
    return {
        "subjects": [
            {"name": name, "boards": [_described(board, place, confidence) for board in found.boards]}
            for place, name in enumerate(found.subjects)
        ],
        "comparisons": [_judged(found, place, each) for place, each in enumerate(found.judgements, 1)],
        "boards": [
            {"name": board.name, "blocks": len(board.blocks.seconds), "warm_up_blocks": board.blocks.warm_up,
             "kept_blocks": int(board.blocks.kept.sum()), "others_cpu": _finite(board.others),
             "waited": _finite(board.waited), "notes": [*board.notes]}
            for board in found.boards
        ],
        "least": found.rules.least, "confidence": confidence, "measured_s": round(found.measured_s, 3),
        "limit_s": found.limit_s, "seed": found.seed, "refused": found.refused or None,
    }  # fmt: skip


def _described(board: BoardRuns, subject: int, confidence: float) -> dict[str, Any]:
    low, middle, high = median(board, subject, confidence)
    return {"board": board.name, "median_s": _finite(middle), "interval_s": _pair(low, high)}


def _judged(found: ModelComparison, place: int, judgement: Judgement) -> dict[str, Any]:
    effects = [_changes(each) for each in judgement.effects]
    return {
        "subject": found.subjects[place], "against": found.subjects[0], "verdict": judgement.verdict.value,
        "sentence": answer(found, place, judgement), **_changes(judgement.effect),
        "agreeing_boards": judgement.agreeing, "outputs": found.outputs[place - 1],
        "boards": [{"board": board.name, **each} for board, each in zip(found.boards, effects, strict=False)],
    }  # fmt: skip


def _changes(effect: Effect | None) -> dict[str, Any]:
    if effect is None:
        return {"change": None, "interval": None}
    change, low, high = effect.change
    return {"change": _finite(change), "interval": _pair(low, high)}


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def _pair(low: float, high: float) -> Sequence[float] | None:
    return [low, high] if math.isfinite(low) and math.isfinite(high) else None
