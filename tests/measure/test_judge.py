"""Judging: intervals against scipy, how often a difference is named that is none, and what is settled when."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from rpcsys.intervals import median_interval
from rpcsys.measure.judge import Blocks, Differences, Effect, Rules, Verdict, _mser, effect, judge, pooled
from tests.measure.simulated import KINDS, Noise, blocks, judged


def differences(values: object, rounds: int = 8) -> Differences:
    """Differences in so many rounds of equal length."""
    array = np.asarray(values, float)
    return Differences(array, np.arange(len(array)) * rounds // max(len(array), 1))


def around(middle: float, spread: float = 0.001, count: int = 200, rounds: int = 10) -> Differences:
    return differences(middle + spread * np.random.default_rng(1).standard_normal(count), rounds)


RULES = Rules(0.01, 0.95, looks=10)

# ---------------------------------------------------------------- intervals


@given(st.lists(st.floats(-1, 1), min_size=1, max_size=60), st.sampled_from([0.9, 0.95, 0.999]))
def test_the_interval_of_a_median_is_where_the_sign_test_does_not_reject(values: list[float], confidence: float):
    found = median_interval(np.array(values), confidence)
    if found is None:
        assert 2 * 0.5 ** len(values) > 1 - confidence  # too few even if all were on one side
        return
    for end in found:
        outside = math.nextafter(end, math.inf if end == found[1] else -math.inf)
        if found[0] < found[1]:
            below, above = sum(v < outside for v in values), sum(v > outside for v in values)
            assert stats.binomtest(min(below, above), below + above).pvalue <= 1 - confidence + 1e-9


def test_an_interval_covers_that_of_blocks_and_that_of_rounds():
    found = around(0.02, 0.01)
    low, high = median_interval(found.values, 0.95)
    student = stats.ttest_1samp(found.by_round, 0).confidence_interval(0.95)
    assert effect(found, 0.95) == Effect(float(np.median(found.values)), min(low, student.low), max(high, student.high))
    many = around(0.02, 0.01, 400, 40)
    rounds = median_interval(many.by_round, 0.95)
    assert effect(many, 0.95).high >= rounds[1]


def test_two_loadings_that_differ_are_no_difference_of_models():
    """All blocks of a round are on one side, and rounds on both: blocks alone would name a difference."""
    values = np.repeat([0.05, -0.04, 0.06, -0.05, 0.05, 0.055], 50) + 0.001 * np.random.default_rng(1).random(300)
    assert median_interval(values, 0.99)[0] > 0
    assert judge([differences(values, 6)], RULES, True).verdict is Verdict.UNKNOWN


@pytest.mark.parametrize("values", [[], [0.1], [0.1] * 5])
def test_too_few_blocks_say_nothing(values: list[float]):
    assert effect(differences(values, 3), 0.95) is None
    assert judge([differences(values, 3)], RULES).settled is False
    assert judge([differences(values, 3)], RULES, True).verdict is Verdict.UNKNOWN


def test_too_few_rounds_say_nothing():
    assert effect(around(0.1, rounds=2), 0.95) is None


def test_the_mean_of_boards_has_an_interval_of_all_theirs():
    found = pooled([Effect(0.02, 0.01, 0.03), Effect(0.04, 0.01, 0.05)])
    assert (found.estimate, found.low) == pytest.approx((0.03, 0.03 - math.hypot(0.01, 0.03) / 2))
    assert found.high == pytest.approx(0.03 + math.hypot(0.01, 0.01) / 2)
    assert pooled([Effect(0.02, 0.01, 0.03)]) == Effect(0.02, 0.01, 0.03)


# ---------------------------------------------------------------- verdicts


@pytest.mark.parametrize(
    ("middle", "verdict"), [(0.03, Verdict.SLOWER), (-0.03, Verdict.FASTER), (0.0, Verdict.SAME), (0.005, Verdict.SAME)]
)
def test_a_clear_answer_is_settled_at_once(middle: float, verdict: Verdict):
    found = judge([around(middle)], RULES)
    assert (found.verdict, found.settled) == (verdict, True)
    assert found.effect.low <= middle <= found.effect.high


def test_a_wide_interval_waits_for_more_turns():
    found = judge([around(0.03, 0.04, 200)], Rules(0.001, 0.95, 10))
    assert (found.settled, judge([around(0.03, 0.04, 200)], Rules(0.001, 0.95, 10), True).settled) == (False, True)


def test_boards_are_counted_that_agree():
    found = judge([around(0.03), around(0.05), around(0.04)], RULES)
    assert (found.verdict, found.agreeing) == (Verdict.SLOWER, 3)
    assert found.effect.estimate == pytest.approx(0.04, abs=0.001)


def test_boards_that_disagree_are_not_averaged():
    found = judge([around(0.03), around(-0.03)], RULES)
    assert (found.verdict, found.settled) == (Verdict.DISAGREE, True)


def test_boards_on_both_sides_of_nothing_are_the_same():
    assert judge([around(0.004), around(-0.004)], RULES).verdict is Verdict.SAME


def test_a_difference_needs_more_confidence_than_is_shown():
    """62 of 100 rounds on one side are enough at 95 %, and not at 99 %."""
    values = np.repeat(np.where(np.arange(100) < 62, 0.01, -0.01), 2)
    assert effect(differences(values, 100), 0.95).low > 0 > effect(differences(values, 100), 0.99).low
    assert judge([differences(values, 100)], Rules(1e-4, 0.95), True).verdict is Verdict.UNKNOWN


def test_the_chance_of_an_error_is_divided():
    rules = Rules(0.01, 0.95, looks=10, comparisons=2)
    assert (1 - rules.shown, 1 - rules.sure) == pytest.approx((0.05 / 20, 0.01 / 20))
    assert 1 - Rules(0.01, 0.999).sure == pytest.approx(0.001)


# ---------------------------------------------------------------- blocks


def test_the_warm_up_is_cut_and_no_more():
    rng = np.random.default_rng(2)
    flat = rng.normal(0, 0.01, 200)
    assert _mser(np.where(np.arange(200) < 40, 1.0, 0.0) + flat) == 40
    assert _mser(np.zeros(200)) == 0
    assert _mser(np.arange(200.0)) <= 100  # never more than half
    assert _mser(np.ones(3)) == 0


def test_disturbed_blocks_are_left_out_where_others_are_enough():
    seconds = np.ones((100, 2))
    few = np.zeros((100, 2), bool)
    few[::2, 1] = True
    rounds = np.arange(100) // 10
    assert Blocks(seconds, few, rounds).kept.sum() == 50
    assert Blocks(seconds, ~few, rounds).kept.sum() == 100  # a turn of every block
    assert Blocks(np.empty((0, 2)), np.empty((0, 2), bool), rounds[:0]).kept.sum() == 0


@pytest.mark.parametrize("noise", KINDS)
def test_exchanged_subjects_keep_the_same_blocks_and_change_the_sign(noise: Noise):
    """What is cut does not depend on whose turn it is: the tests would not be exact otherwise."""
    made = blocks(noise, np.random.default_rng(3), 4)
    made.disturbed[::7, 0] = True
    other = Blocks(made.seconds[:, ::-1], made.disturbed[:, ::-1], made.rounds)
    assert np.array_equal(made.kept, other.kept)
    assert np.allclose(made.differences(1).values, -other.differences(1).values)


# ---------------------------------------------------------------- how often it is wrong

CASES = 200  # of each kind of noise


def rates(noise: Noise, cases: int, change: float, loads: float, least: float, limit_s: float) -> tuple[int, int, int]:
    """How many cases are named, on the wrong side, and outside the interval."""
    named = wrong = outside = 0
    for case in range(cases):
        rng = np.random.default_rng([case, int(loads * 1000), int(change * 1000)])
        found, _ = judged(blocks(noise, rng, limit_s, change, loads), least, limit_s)
        side = {Verdict.SLOWER: 1, Verdict.FASTER: -1}.get(found.verdict, 0)
        named += side != 0
        wrong += side * change < 0
        outside += found.effect is not None and not found.effect.change[1] <= change <= found.effect.change[2]
    return named, wrong, outside


@pytest.mark.parametrize("noise", KINDS)
def test_some_equal_subjects_are_not_called_different(noise: Noise):
    named, _, _ = rates(noise, 12, 0.0, 0.03, 1e-4, 3)
    assert named <= 1


@pytest.mark.parametrize("noise", [noise for noise in KINDS if noise.__name__ in ("drift", "bimodal")])
def test_a_planted_difference_is_found(noise: Noise):
    named, wrong, _ = rates(noise, 8, 0.02, 0.0, 0.005, 8)
    assert (named, wrong) == (8, 0)


@pytest.mark.slow
@pytest.mark.parametrize("loads", [0.0, 0.03])
def test_equal_subjects_are_called_different_in_one_case_of_a_hundred_at_most(loads: float):
    """With a true rate of 1 %, more than this would be named in one run of a thousand."""
    counts = [rates(noise, CASES, 0.0, loads, 1e-4, 3) for noise in KINDS]
    named, outside = sum(each[0] for each in counts), sum(each[2] for each in counts)
    cases = CASES * len(KINDS)
    assert named <= stats.binom.ppf(0.999, cases, 0.01)
    assert outside <= stats.binom.ppf(0.999, cases, 0.05)
