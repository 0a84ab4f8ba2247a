"""What a comparison says: sentences, a table, JSON."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from rpcsys.measure import judge
from rpcsys.measure.comparing import BoardRuns, ModelComparison
from rpcsys.measure.judge import Effect, Judgement, Verdict

NAMED_OTHERS = 0.05  # a smaller share of others' work explains nothing
TIMES = 2.0  # a larger ratio is said as a multiple, not in percent
HEAD = ("SUBJECT", "BOARD", "MEDIAN", "INTERVAL", "TURNS")


def sentences(found: ModelComparison) -> list[str]:
    """The answers, one for each subject after the first; then what a reader has to know of outputs and boards."""
    said = []
    for place, judgement in enumerate(found.judgements, 1):
        said.append(answer(found, place, judgement))
    for name, apart in zip(found.subjects[1:], found.outputs, strict=True):
        if apart:
            said.append(f"{name}: {apart} (from {found.subjects[0]})")
    for board in found.boards:
        said += [f"{board.name}: {note}" for note in board.notes]
    return said


def answer(found: ModelComparison, place: int, judgement: Judgement) -> str:
    """The sentence about one subject."""
    name, first, whole = found.subjects[place], found.subjects[0], judgement.effect
    if judgement.verdict is Verdict.UNKNOWN or whole is None:
        return _unknown(found, name, judgement)
    if judgement.verdict is Verdict.SAME:
        return f"{name}: no difference above {_percent(_bound(whole))} from {first}{_where(found)}"
    if judgement.verdict is Verdict.DISAGREE:
        return f"{name}: the boards disagree: {_by_board(found, judgement)}"
    text = f"{name} {_compared(whole, first)} ({_range(whole)}, {found.rules.confidence * 100:g} %)"
    if len(found.boards) == 1:
        return text
    return f"{text}, on {judgement.agreeing} of {len(found.boards)} boards"


def _compared(effect: Effect, first: str) -> str:
    ratio = math.exp(effect.estimate)
    if ratio >= TIMES:
        return f"takes {ratio:.2f} times as long as {first}"
    if ratio <= 1 / TIMES:
        return f"is {1 / ratio:.2f} times as fast as {first}"
    return f"is {_percent(abs(ratio - 1))} {'faster' if ratio < 1 else 'slower'} than {first}"


def _range(effect: Effect) -> str:
    """The interval in the unit and the sense of `_compared`."""
    ratio = math.exp(effect.estimate)
    ends = math.exp(effect.low), math.exp(effect.high)
    if ratio >= TIMES:
        return "{:.2f} to {:.2f}".format(*ends)
    if ratio <= 1 / TIMES:
        return "{:.2f} to {:.2f}".format(*sorted(1 / end for end in ends))
    sign = 1 if ratio >= 1 else -1
    return " to ".join(_number(end) for end in sorted(sign * (end - 1) for end in ends))


def _bound(whole: Effect) -> float:
    _, low, high = whole.change
    return max(abs(low), abs(high))


def _number(share: float) -> str:
    """A share as a number of percent, with two digits where it is below one percent."""
    percent = share * 100
    return f"{percent:.1f}" if abs(percent) >= 0.1 or percent == 0 else f"{percent:.2g}"


def _percent(share: float) -> str:
    return f"{_number(share)} %"


def _where(found: ModelComparison) -> str:
    return "" if len(found.boards) == 1 else f", on {len(found.boards)} boards"


def _by_board(found: ModelComparison, judgement: Judgement) -> str:
    said = []
    for board, effect in zip(found.boards, judgement.effects, strict=True):
        if effect is not None:
            said.append(f"{_compared(effect, found.subjects[0])} on {board.name} ({_range(effect)})")
    return "; ".join(said)


def _unknown(found: ModelComparison, name: str, judgement: Judgement) -> str:
    board = "this board" if len(found.boards) == 1 else "these boards"
    text = f"{name}: {board} cannot tell {_percent(found.rules.least)} today: "
    if found.refused:
        return text + found.refused
    if judgement.effect is None:
        return f"{text}{_turns(found)} turns in {found.limit_s:g} s are too few; type a longer --limit"
    low, high = judgement.effect.change[1:]
    between = f"the difference is between {_number(low)} and {_percent(high)}"
    return f"{text}{between}; {reason(found)}{_longer(found, judgement.effect)}"


def _turns(found: ModelComparison) -> int:
    return max(len(board.blocks.seconds) for board in found.boards)


def reason(found: ModelComparison) -> str:
    """Why the intervals are wide: what disturbed the worst board, or how far the times themselves spread."""
    worst = max(found.boards, key=lambda board: (board.waited or 0.0, board.others or 0.0))
    on = "" if len(found.boards) == 1 else f" on {worst.name}"
    if worst.others is not None and worst.others >= NAMED_OTHERS:
        waited = worst.waited or 0.0
        lost = f", and its turns waited {waited:.0%} of their time for one" if waited >= NAMED_OTHERS else ""
        return f"other processes took {worst.others * 100:.0f} % of its CPUs{on}{lost.replace('%', ' %')}"
    times = np.log(worst.blocks.seconds[worst.blocks.kept][:, 0])
    quarter, three = np.quantile(times, (0.25, 0.75)) if len(times) else (0.0, 0.0)
    return f"half of its own times{on} lie within {_percent(math.expm1(float(three - quarter)))}"


def _longer(found: ModelComparison, effect: Effect) -> str:
    """Which limit may be enough: intervals shrink with the root of the number of turns."""
    needed = found.limit_s * (effect.half_width / math.log1p(found.rules.least)) ** 2
    if needed <= found.limit_s:
        needed = 2 * found.limit_s
    return f"; --limit {_rounded(needed)} may be enough" if needed <= 3600 else ""


def _rounded(seconds: float) -> int:
    """Up to two digits, rounded up."""
    step = 10 ** max(0, math.floor(math.log10(seconds)) - 1)
    return int(math.ceil(seconds / step) * step)


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
    low, high = judge.median_interval(seconds, confidence) or (math.nan, math.nan)
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
