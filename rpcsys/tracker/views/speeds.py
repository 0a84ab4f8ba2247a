"""The history of each board's canary for the page: its time by batches of runs, against its own."""

from __future__ import annotations

import math
from itertools import islice
from typing import TYPE_CHECKING, Any

from rpcsys.tracker.board_speed import SLOW

if TYPE_CHECKING:
    from rpcsys.tracker.board_speed import BoardSpeed
    from rpcsys.tracker.records import Records

MAX_BOARDS = 1000  # the slow ones first
POINTS = 64  # of a board at most: with more, each is the mean of several


def speeds(records: Records, at: float) -> dict[str, Any]:
    """By server: ``canary``, ``seconds`` of its own time, ``now`` of its last batches (both None while it is learnt).

    ``promise``: undisturbed runs after which a slowdown of 3 % is named; ``points``: time in seconds since 1970, the
    percents above its own time, and whether it was slow; ``runs``, ``disturbed`` in a row, and why it cannot run.
    """
    found = [(name, records.speeds[name]) for name in records.server_names if name in records.speeds]
    found.sort(key=lambda item: (item[1].state is not SLOW, item[0]))
    return {"now": at, "boards": {name: of_board(board) for name, board in islice(found, MAX_BOARDS)}}


def of_board(board: BoardSpeed) -> dict[str, Any]:
    """A board's row of `speeds`."""
    test = board.test
    return {
        "canary": test.canary,
        "state": board.state.value,
        "reason": board.reason,
        "runs": test.runs,
        "disturbed": board.disturbed,
        "problem": board.problem,
        "seconds": None if test.centre is None else math.exp(test.centre),
        "now": None if test.level is None else math.exp(test.level),
        "spread": None if test.centre is None else round(test.spread, 5),
        "promise": test.promise,
        "points": [] if test.centre is None else _points(board, test.centre),
    }


def _points(board: BoardSpeed, centre: float) -> list[list[float]]:
    points = list(board.test.points)
    size = -(-len(points) // POINTS) or 1
    groups = [points[place : place + size] for place in range(0, len(points), size)]
    return [
        [
            round(group[-1].at),
            round(100 * math.expm1(sum(point.level for point in group) / len(group) - centre), 2),
            int(any(point.slow for point in group)),
        ]
        for group in groups
    ]
