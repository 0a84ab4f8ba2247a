"""What a comparison has found, and the sentences that say it."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from rpcsys.measure.judge import Blocks, Effect, Judgement, Rules, Verdict

NAMED_OTHERS = 0.05  # a smaller share of others' work explains nothing
TIMES = 2.0  # a larger ratio is said as a multiple, not in percent


@dataclass(frozen=True)
class BoardRuns:
    """The turns of one board, and what disturbed it.

    ``others``: the mean share of its CPUs' time that other processes took. ``waited``: the share of the turns' time in
    which they were ready and had no CPU. None where the board does not show it. ``notes``: for a person.
    """

    name: str
    blocks: Blocks
    others: float | None
    waited: float | None
    notes: tuple[str, ...]


@dataclass(frozen=True)
class ModelComparison:
    """What `compare` found.

    Attributes
    ----------
    subjects : their names; each but the first is compared with the first
    judgements : of the second subject, the third and so on
    boards : their turns
    outputs : how the outputs of the other subjects differ from the first one's, for a person; "" for no difference
    rules : what was asked
    refused : why a board was not measured on to the end, for a person; "" where none was refused
    measured_s, limit_s : seconds of measuring, without loading and waiting, and the most that were allowed
    seed : of the order of turns
    """

    subjects: tuple[str, ...]
    judgements: tuple[Judgement, ...]
    boards: tuple[BoardRuns, ...]
    outputs: tuple[str, ...]
    rules: Rules
    refused: str
    measured_s: float
    limit_s: float
    seed: int

    def __str__(self) -> str:
        return "\n".join(sentences(self))

    def __repr__(self) -> str:
        return f"<comparison: {'; '.join(sentences(self))}>"


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
