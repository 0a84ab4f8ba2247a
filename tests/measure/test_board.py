"""One board: how many calls a turn has, and what stays loaded there."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from rpcsys.client import Session
from rpcsys.measure.board import MeasuredBoard
from rpcsys.measure.schedule import TURN_S
from rpcsys.measure.subjects import Subject


def test_a_round(shared_session: Session, spin: Path):
    board = MeasuredBoard(shared_session, [Subject(spin, "base"), Subject(spin, "slower")])
    board.load(None)
    board.calibrate(10.0)
    rng = np.random.default_rng(1)
    board.load_again(rng, 60.0)
    assert board.load_s > 0
    board.take(board.start(rng, max(0.2, board.least_s)).result())
    found = board.facts.blocks
    assert len(found.seconds) >= 1
    assert (found.seconds > 0).all()
    assert board.least_s < 100 * TURN_S
    board.take(board.look().result())
    assert len(board.facts.blocks.seconds) == len(found.seconds)
    assert board.name == "{}:{}".format(*shared_session.address)


def test_a_fast_function_has_many_calls_in_a_turn(shared_session: Session):
    board = MeasuredBoard(shared_session, [])
    board._functions, board._arguments = [shared_session.get_function("testing.nop")] * 2, [[], []]
    board.calibrate(10.0)
    assert board._number[0] == board._number[1] > 100
