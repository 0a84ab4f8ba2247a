"""What the runs of a board's canary say of it."""

from __future__ import annotations

import itertools
import json
import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rpcsys.errors import ProtocolError
from rpcsys.tracker import board_speed
from rpcsys.tracker.board_speed import BELOW, LEARNING, SLOW, WELL, BoardSpeed
from rpcsys.tracker.speed import BATCH, LEARN, LEAST_RUNS, SpeedTest
from rpcsys.wire.control import CanaryRun


class Board:
    """A board, and its runs of so many seconds each."""

    def __init__(self, limit_s=None):
        self.speed = BoardSpeed("rpi4", SpeedTest("builtin"))
        self.limit_s = limit_s
        self.at = 0.0

    def run(self, seconds, times=1, throttled=0.0, others=()):
        kept = False
        for _ in range(times):
            self.at += 300.0
            message = CanaryRun(1, "builtin", seconds, False, throttled, self.limit_s)
            kept = self.speed.take(self.at, message, others)
        return kept

    @property
    def now(self):
        return self.speed.state


def test_a_board_is_learnt_then_well_then_slow_then_well():
    board = Board()
    board.run(0.01, LEARN - 1)
    assert board.now is LEARNING
    assert board.run(0.01)
    assert board.now is WELL
    board.run(0.01, 100)
    board.run(0.0103, 5)
    assert board.now is WELL
    board.run(0.0103, 20)
    assert board.now is SLOW
    assert board.speed.reason == "its canary takes 3.0% longer than its own 10 ms"
    board.run(0.01, 20)
    assert (board.now, board.speed.reason) == (WELL, "")


def test_a_quota_is_said():
    board = Board()
    board.run(0.01, 100)
    board.run(0.0103, 20, throttled=0.031)
    assert board.speed.reason == "its canary takes 3.0% longer than its own 10 ms; a CPU quota takes 3.1% of its time"


def test_a_quota_names_a_board_whose_times_spread_too_much_to_tell():
    board, spread = Board(), itertools.cycle([0.008, 0.01, 0.013])

    def runs(count, throttled):
        for seconds in itertools.islice(spread, count):
            board.run(seconds, throttled=throttled)

    runs(200, throttled=0.0)
    assert board.speed.test.promise > 1000
    runs(LEAST_RUNS - 1, throttled=0.03)
    assert board.now is WELL
    runs(1, throttled=0.03)
    assert (board.now, board.speed.test.slow) == (SLOW, False)
    assert board.speed.reason == "a CPU quota takes 3.0% of its canary's time; it took 0.0% before"
    again = BoardSpeed.restored("rpi4", board.speed.test.to_text(), board.speed.reason, over=False, apart=False)
    assert (again.state, again.reason) == (SLOW, board.speed.reason)
    runs(300, throttled=0.03)
    assert board.now is SLOW
    assert board.speed.test.centre == pytest.approx(math.log(0.01), abs=0.001)
    runs(LEAST_RUNS, throttled=0.0)
    assert (board.now, board.speed.reason) == (WELL, "")


@pytest.mark.parametrize(("usual", "spread"), [(0.0, 0.0), (0.03, 0.005), (0.3, 0.01), (0.5, 0.05)])
def test_a_quota_that_was_always_there_names_nobody(usual, spread):
    board, chance = Board(), random.Random(1)
    for _ in range(20_000):
        board.run(0.01, throttled=max(0.0, chance.gauss(usual, spread)))
        assert board.now is not SLOW
    board.run(0.01, LEAST_RUNS + 3, throttled=usual + max(0.02, 5 * spread))
    assert board.now is SLOW


def test_the_quota_of_a_board_that_an_older_version_has_learnt_is_learnt_then():
    board = Board()
    board.run(0.01, 200, throttled=0.3)
    text = json.loads(board.speed.test.to_text())
    for name in ("quota", "quota_squares", "quota_runs", "quota_hits", "capped"):
        del text[name]
    board.speed = BoardSpeed.restored("rpi4", json.dumps(text), "", over=False, apart=False)
    board.run(0.01, 200, throttled=0.3)
    assert board.now is WELL
    board.run(0.01, LEAST_RUNS, throttled=0.33)
    assert board.now is SLOW


def test_a_run_above_the_limit_names_at_once_and_three_below_clear():
    board = Board(limit_s=0.02)
    assert not board.run(0.01)
    assert board.run(0.03)
    assert (board.now, board.speed.reason) == (SLOW, "its canary takes 30 ms, and its limit is 20 ms")
    board.run(0.01, BELOW - 1)
    board.run(0.03)
    board.run(0.01, BELOW - 1)
    assert board.now is SLOW
    assert board.run(0.01)
    assert board.now is WELL


def test_a_limit_that_is_gone_names_nobody():
    board = Board(limit_s=0.02)
    board.run(0.03)
    board.limit_s = None
    board.run(0.03)
    assert board.now is WELL


def test_a_board_is_slow_among_its_siblings_and_comes_back():
    board = Board()
    board.run(0.012, 4 * BATCH)
    assert board.now is WELL
    others = [-4.60517] * 5  # 10 ms each
    board.run(0.012, BATCH, others=others)
    assert board.now is SLOW
    assert board.speed.reason == "its canary takes 20.0% longer than those of its 5 siblings"
    board.run(0.01, 4 * BATCH, others=others)
    assert board.now is WELL


def test_a_board_as_it_was_is_as_it_was():
    board = Board()
    board.run(0.01, 100)
    board.run(0.0103, 30)
    text = board.speed.test.to_text()
    assert board_speed.fits(text)
    again = BoardSpeed.restored("rpi4", text, board.speed.reason, over=False, apart=False)
    assert (again.state, again.reason, again.test.runs) == (SLOW, board.speed.reason, 130)
    well = BoardSpeed.restored("rpi4", Board().speed.test.to_text(), "", over=False, apart=False)
    assert well.state is LEARNING
    assert BoardSpeed.restored("rpi4", Board().speed.test.to_text(), "x", over=True, apart=False).state is SLOW


@given(st.text(max_size=100))
def test_damaged_texts_are_refused(text):
    assert not board_speed.fits(text)
    with pytest.raises(ProtocolError):
        BoardSpeed.restored("rpi4", text, "", over=False, apart=False)


@given(
    st.lists(st.tuples(st.floats(0, 1e11), st.floats(0, 1e11), st.none() | st.floats(0, 10)), max_size=80),
    st.lists(st.floats(-20, 20), max_size=8),
)
def test_any_runs_leave_a_state_that_says_why(runs, others):
    board = Board()
    for seconds, throttled, limit_s in runs:
        board.limit_s = limit_s
        board.run(seconds, 1, throttled, others)
        assert (board.now is SLOW) == bool(board.speed.reason)
        flags = board.speed.test.named or board.speed.over or board.speed.apart
        assert (board.now is SLOW) == flags
    assert board_speed.fits(board.speed.test.to_text())
