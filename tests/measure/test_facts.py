"""What disturbed a turn, by what the board says."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from rpcsys.measure.facts import Facts


def report(turns: int, **more: Any) -> dict[str, Any]:
    """A quiet board's report of turns of ten calls, a millisecond each."""
    quiet = {"seconds": 0.001, "own_cpu": 0.01, "thread_cpu": 0.01, "others_cpu": 0.0, "waited": 0.0, "switches": 0}
    return {**{name: [value] * turns for name, value in quiet.items()}, "board": {}, **more}


def facts(*reports: dict[str, Any]) -> Facts:
    made = Facts(2)
    for each in reports:
        made.add([0, 1] * 50, [10, 10], each)
    return made


def test_the_first_block_of_a_round_is_left_out_where_there_are_others():
    made = facts(report(20), report(9), report(4)).blocks
    assert made.rounds.tolist() == [0] * 9 + [1] * 4 + [2] * 2  # of 10, 4 and 2 blocks
    assert made.seconds.shape == (15, 2)


def test_waits_are_no_time_of_a_model_in_the_calling_thread():
    made = facts(report(8, seconds=[0.001, 0.003] * 4, waited=[0.0, 0.02] * 4))
    assert made.alone
    assert made.blocks.seconds == pytest.approx(np.full((4, 2), 0.001))
    assert made.blocks.disturbed.tolist() == [[False, True]] * 4
    assert made.waited == pytest.approx(0.5)


def test_a_lost_cpu_disturbs():
    assert facts(report(4, switches=[1, 0, 0, 0])).blocks.disturbed.tolist() == [[True, False], [False, False]]


def test_threads_of_a_model_wait_for_each_other_and_that_is_its_own_doing():
    """Taking it off would make the model with too many threads look fast."""
    made = facts(
        report(4, own_cpu=[0.01, 0.03] * 2, waited=[0.0, 0.005] * 2, switches=[0, 9] * 2, others_cpu=[0.0, 0, 0.5, 0])
    )
    assert not made.alone
    assert made.blocks.seconds == pytest.approx(np.full((2, 2), 0.001))
    assert made.blocks.disturbed.tolist() == [[False, False], [True, False]]


def test_what_a_board_does_not_show_disturbs_nothing():
    made = facts(report(4, others_cpu=[None] * 4, waited=[None] * 4))
    assert (made.others, made.waited) == (None, None)
    assert not made.blocks.disturbed.any()


def test_a_coarse_clock_reads_zero():
    assert (facts(report(4, seconds=[0.0] * 4)).blocks.seconds > 0).all()


def test_no_turns():
    made = Facts(2)
    assert (made.others, made.waited, made.alone) == (None, None, True)
    assert made.blocks.seconds.shape == (0, 2)
    assert made.blocks.differences(1).values.size == 0
