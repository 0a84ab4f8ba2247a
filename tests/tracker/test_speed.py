"""The sequential test of a board's times: what it names, how soon, and how rarely without a cause."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rpcsys.errors import ProtocolError
from rpcsys.tracker import speed
from rpcsys.tracker.speed import BATCH, BATCHES, LEARN, LEAST_RUNS, RECENT, SHIFT, SpeedTest, from_text, runs_needed

RUNS_A_DAY = 288  # one each five minutes
#: Logarithms of times of the built-in canary in hundred-thousandths, as they followed each other on one machine: from
#: ``python -m benchmarks.canaries``.
NOISE = json.loads(Path(__file__).with_name("canary_noise.json").read_text())
BLOCK = 20  # neighbours that stay together when days are drawn from these
LEVEL = math.log(0.01)


def drawn(noise, count, rng):
    """``count`` logarithms: blocks of neighbours of a real series, in random order."""
    series = np.array(NOISE[noise]) * 1e-5
    begins = rng.integers(0, len(series) - BLOCK, -(-count // BLOCK))
    return LEVEL + series[begins[:, None] + np.arange(BLOCK)].ravel()[:count]


def take_all(test, logarithms):
    """Count the times; the indexes at which the board was named, or was well again."""
    flips, was = [], test.slow
    for place, seconds in enumerate(np.exp(logarithms).tolist()):
        test.take(300.0 * place, seconds)
        if test.slow is not was:
            was = test.slow
            flips.append(place)
    return flips


@pytest.mark.slow
@pytest.mark.parametrize("noise", NOISE)
def test_an_unharmed_board_is_not_named_in_five_thousand_days(noise):
    """Twice, with what a quiet and a busy machine measured: ten thousand days in all."""
    days = drawn(noise, 5000 * RUNS_A_DAY, np.random.default_rng(22))
    assert take_all(SpeedTest("builtin"), days) == []


@pytest.mark.parametrize("noise", NOISE)
def test_less_evidence_would_name_it(noise, monkeypatch):
    monkeypatch.setattr(speed, "EVIDENCE", 2.0)
    assert take_all(SpeedTest("builtin"), drawn(noise, 300 * RUNS_A_DAY, np.random.default_rng(21)))


@pytest.mark.parametrize("spread", [0.001, 0.01, 0.02])
def test_a_slowdown_is_named_as_soon_as_promised_and_its_end_too(spread):
    rng, delays, ends, promises = np.random.default_rng(3), [], [], []
    for _ in range(12):
        test = SpeedTest("builtin")
        assert take_all(test, LEVEL + spread * rng.standard_normal(1024)) == []
        promises.append(test.promise)
        slow = take_all(test, LEVEL + math.log(1.03) + spread * rng.standard_normal(40 + 6 * test.promise))
        assert len(slow) == 1
        delays.append(slow[0] + 1)
        well = take_all(test, LEVEL + spread * rng.standard_normal(40 + 6 * test.promise))
        assert len(well) == 1
        ends.append(well[0] + 1)
    assert np.mean(delays) <= 1.2 * np.mean(promises)
    assert np.mean(ends) <= 1.3 * np.mean(promises)


@pytest.mark.parametrize("noise", NOISE)
def test_a_slowdown_is_named_among_real_noise(noise):
    test, rng = SpeedTest("builtin"), np.random.default_rng(5)
    assert take_all(test, drawn(noise, 2048, rng)) == []
    (named,) = take_all(test, drawn(noise, 5 * test.promise, rng) + math.log(1.03))
    assert named < 3 * test.promise


def test_the_promise_grows_with_the_square_of_the_spread():
    assert [runs_needed(spread) for spread in (0.0, 0.005, 0.01, 0.02, 0.03, 0.06)] == [6, 6, 9, 34, 75, 299]


@pytest.mark.parametrize("slower", [1.05, 1.2, 2.0])
@pytest.mark.parametrize("runs", [32, 60, 100, 300, 1000])
def test_what_names_a_board_is_no_part_of_its_own_time(runs, slower):
    test, rng = SpeedTest("builtin"), np.random.default_rng(runs)
    assert take_all(test, LEVEL + 0.015 * rng.standard_normal(runs)) == []
    (named,) = take_all(test, LEVEL + math.log(slower) + 0.015 * rng.standard_normal(5 * test.promise))
    assert named <= 2 * test.promise
    assert test.centre == pytest.approx(LEVEL, abs=0.02)


def test_a_board_that_becomes_slower_slowly_is_named_too():
    test, rng = SpeedTest("builtin"), np.random.default_rng(7)
    days = 30 * RUNS_A_DAY
    drift = np.linspace(0, 0.04, days)
    (named, *_) = take_all(test, LEVEL + drift + 0.003 * rng.standard_normal(days))
    assert drift[named] < 0.036  # half of it becomes its own time, the other half is named


def test_a_board_that_becomes_faster_has_a_new_time():
    test, rng = SpeedTest("builtin"), np.random.default_rng(8)
    assert take_all(test, LEVEL + 0.003 * rng.standard_normal(1000)) == []
    assert take_all(test, LEVEL - 0.1 + 0.003 * rng.standard_normal(4000)) == []
    assert test.centre == pytest.approx(LEVEL - 0.1, abs=0.003)
    assert take_all(test, LEVEL - 0.07 + 0.003 * rng.standard_normal(100))


def test_a_day_and_a_year_are_no_slowdown():
    rng, count = np.random.default_rng(9), 400 * RUNS_A_DAY
    for period in (RUNS_A_DAY, 365 * RUNS_A_DAY):
        wave = 0.006 * np.sin(2 * np.pi * np.arange(count) / period)
        assert take_all(SpeedTest("builtin"), LEVEL + wave + 0.004 * rng.standard_normal(count)) == []


def test_few_outliers_name_nobody_however_large():
    test = SpeedTest("builtin")
    assert take_all(test, np.full(200, LEVEL)) == []
    assert take_all(test, np.array([5.0] * (LEAST_RUNS - 1) + [LEVEL] * 50 + [5.0] * (LEAST_RUNS - 1))) == []
    assert take_all(test, np.full(50, LEVEL)) == []
    assert take_all(test, np.array([5.0] * LEAST_RUNS)) == [LEAST_RUNS - 1]


def test_nothing_is_said_before_it_has_learnt():
    test = SpeedTest("builtin")
    take_all(test, np.full(LEARN - 1, LEVEL))
    assert (test.centre, test.level, test.promise) == (None, None, None)
    take_all(test, np.full(BATCH, LEVEL))
    assert (test.centre, test.promise) == (pytest.approx(LEVEL), 9)
    assert test.level == pytest.approx(LEVEL)


def test_what_is_kept_is_bounded():
    test = SpeedTest("builtin")
    take_all(test, drawn(next(iter(NOISE)), 4 * BATCH * BATCHES, np.random.default_rng(2)))
    assert (len(test.points), len(test.recent)) == (BATCHES, RECENT)
    assert len(test.batch) < BATCH
    assert len(test.to_text()) < 12_000


@given(st.lists(st.floats(0, 1e11), max_size=200), st.lists(st.floats(1e-6, 1e3), max_size=40))
def test_a_test_as_text_goes_on_as_the_test(before, after):
    test = SpeedTest("builtin")
    for place, seconds in enumerate(before):
        test.take(300.0 * place, seconds)
    again = from_text(test.to_text())
    assert again.to_text() == test.to_text()
    for seconds in after:
        assert test.take(0.0, seconds) == again.take(0.0, seconds)
        assert (test.slow, test.runs) == (again.slow, again.runs)


JUNK = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)
FIELDS = json.loads(SpeedTest("builtin").to_text())


@given(st.dictionaries(st.sampled_from([*FIELDS]), JUNK))
def test_a_damaged_text_is_refused_or_a_test(fields):
    try:
        test = from_text(json.dumps({**FIELDS, **fields}))
    except ProtocolError:
        return
    test.take(0.0, 0.01)
    assert from_text(test.to_text()).runs == test.runs


def test_texts_that_are_none():
    for text in ("", "[]", "{}", "[" * 100_000, '{"canary": 1}'):
        with pytest.raises(ProtocolError):
            from_text(text)


def test_the_limit_of_a_slowdown_is_half_of_it():
    """A board that is slower by less than half is never named, one by more is, if later."""
    test = SpeedTest("builtin")
    take_all(test, np.full(300, LEVEL))
    assert take_all(test, np.full(3000, LEVEL + 0.45 * SHIFT)) == []
