"""When to look at the turns of a comparison, which subject has which turn, and how many calls a turn has.

Subjects are measured in rounds, and loaded anew before each: where a model's memory lies and which CPUs its threads
have lasts as long as the model is loaded, and changes its times by some percent (T. Mytkowicz et al., Producing Wrong
Data Without Doing Anything Obviously Wrong, ASPLOS 2009; T. Kalibera and R. Jones, Rigorous Benchmarking in Reasonable
Time, ISMM 2013).

A round has blocks: each subject has one turn in every block, in an order that is drawn anew. So under the
hypothesis that two subjects are the same, which of two neighbouring turns is the longer one is the toss of a coin,
whatever the machine does: the randomisation, not a model of the noise, makes the tests of `judge` exact (R. A. Fisher,
The Design of Experiments, 1935).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

TURN_S = 0.005  # of calls in one turn: many turns are undisturbed on a machine that others use
FIRST_LOOK_S = 1.0
GROWTH = 1.5  # from one look to the next: a comparison ends at most half as late again as it could
ROUND_S = 0.25  # between two loadings of the subjects, and two looks at the board's state; more if loading is slow
LOADS = 40  # of all subjects within the limit; they are not loaded again where fewer would fit
MAX_TURNS = 10_000  # of one request, which servers take
MAX_NUMBER = 10_000_000
ALIKE = 10.0  # subjects whose times differ by less have the same number of calls in a turn


def looks(limit_s: float) -> tuple[float, ...]:
    """The seconds of measuring after which the turns are judged; the last one is the limit.

    They are fixed before anything is measured, so that `judge` can divide the chance of an error among them.
    """
    first = min(FIRST_LOOK_S, limit_s / 8)
    count = max(1, math.ceil(math.log(limit_s / first) / math.log(GROWTH)))
    return (*(first * GROWTH**look for look in range(count)), limit_s)


def order(rng: np.random.Generator, subjects: int, turn_s: float, seconds: float) -> list[int]:
    """The subject of each turn, in blocks, for at least so many ``seconds``; ``turn_s``: of the shortest turn."""
    blocks = math.ceil(1.5 * seconds / max(turn_s * subjects, 1e-6)) + 1
    blocks = min(blocks, MAX_TURNS // subjects)
    return [int(place) for _ in range(blocks) for place in rng.permutation(subjects)]


def numbers(seconds: Sequence[float]) -> list[int]:
    """How many calls of each subject one turn has, by the seconds of a call.

    It is the same for all unless they surely differ. A shorter turn is disturbed less: on a busy machine, that alone
    made one function 3 % faster than itself.
    """
    if max(seconds) <= ALIKE * min(seconds):
        return [_number(math.fsum(seconds) / len(seconds))] * len(seconds)
    return [_number(each) for each in seconds]


def _number(seconds: float) -> int:
    return max(1, min(round(TURN_S / max(seconds, 1e-12)), MAX_NUMBER))


def blocks(drawn: Sequence[int], values: Sequence[Any], subjects: int) -> list[list[Any]]:
    """The values of turns by block and subject; a block that was not finished is left out."""
    made = []
    for start in range(0, len(values) - subjects + 1, subjects):
        by_subject: list[Any] = [None] * subjects
        for place in range(start, start + subjects):
            by_subject[drawn[place]] = values[place]
        made.append(by_subject)
    return made
