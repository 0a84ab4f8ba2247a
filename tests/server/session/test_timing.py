"""Timing a function: the arithmetic, with a simulated clock, and what is told beside the times."""

from __future__ import annotations

import pytest

from rpcsys.errors import RemoteArgumentError
from rpcsys.server.session import timing
from rpcsys.server.session.timing import MAX_NUMBER, MAX_REPEAT, evaluate


class Clock:
    """A clock whose calls take ``costs`` seconds, one after another; all later calls take the last."""

    def __init__(self, *costs):
        self.now, self.calls, self.costs, self.slept = 0.0, 0, list(costs), []

    def perf_counter(self):
        return self.now

    def sleep(self, seconds):
        self.slept.append(seconds)
        self.now += seconds

    def call(self):
        self.calls += 1
        self.now += self.costs.pop(0) if len(self.costs) > 1 else self.costs[0]


@pytest.fixture
def run(monkeypatch):
    def run(clock, **options):
        monkeypatch.setattr(timing, "time", clock)
        return evaluate(clock.call, options)

    return run


def test_results_are_means_without_the_first_call(run):
    clock = Clock(100.0, 1.0, 3.0, 5.0, 7.0)
    assert run(clock, number=2, repeat=2) == [2.0, 6.0]
    assert clock.calls == 5


def test_the_default_is_one_repeat_of_ten_calls(run):
    clock = Clock(0.5)
    assert run(clock) == [0.5]
    assert clock.calls == 11


def test_cooldown_is_between_repeats(run):
    clock = Clock(1.0)
    assert run(clock, number=1, repeat=3, cooldown_s=2) == [1.0] * 3
    assert sum(clock.slept) == 4.0


def test_calls_are_added_until_a_repeat_is_long_enough(run):
    clock = Clock(0.25)
    assert run(clock, number=1, repeat=3, min_repeat_ms=10_000) == [0.25] * 3
    assert clock.calls == 1 + 1 + 40 * 3  # the first estimate is right, and kept


def test_a_call_that_gets_faster_is_repeated_more(run):
    clock = Clock(*[4.0] * 2, 1.0)
    (mean,) = run(clock, number=1, min_repeat_ms=8000)
    assert mean == 1.0


def test_a_coarse_clock_stops_at_the_most_calls(run, monkeypatch):
    monkeypatch.setattr(timing, "MAX_NUMBER", 5000)
    clock = Clock(0.0)
    assert run(clock, number=100, min_repeat_ms=1) == [0.0]
    assert clock.calls == 1 + 100 + 1000 + 5000


def test_caches_are_flushed_before_each_measurement_and_that_is_not_timed(run, monkeypatch):
    clock = Clock(1.0)
    flushed = []

    def flusher(size):
        return lambda: (flushed.append((size, clock.calls)), clock.sleep(50))

    monkeypatch.setattr(timing, "_flusher", flusher)
    assert run(clock, number=2, repeat=2, min_repeat_ms=3000, cache_flush_bytes=4096) == [1.0, 1.0]
    assert flushed == [(4096, 1), (4096, 3), (4096, 7)]


def test_flushing_takes_any_size():
    timing._flusher(1 << 20)()
    assert timing._flusher(0)() is None


def test_results_include_the_boards_state(monkeypatch):
    states = iter([{"cpu_mhz": {"0": 1500.0}, "load": 0.1}, {"cpu_mhz": {"0": 600.0}, "load": 1.0}])
    monkeypatch.setattr(timing, "board_state", lambda: next(states))
    answer = timing.measure(lambda: None, {"number": 1})
    assert len(answer["results"]) == 1
    assert answer["board"]["before"] == {"cpu_mhz": {"0": 1500.0}, "load": 0.1}
    assert answer["board"]["after"]["load"] == 1.0
    assert answer["warnings"] == ["CPU 0 went from 1500 to 600 MHz during the measurement"]


@pytest.mark.parametrize(
    "options",
    [
        {"number": 0}, {"number": -1}, {"number": 1.0}, {"number": "1"}, {"number": True}, {"number": MAX_NUMBER + 1},
        {"repeat": 0}, {"repeat": None}, {"repeat": MAX_REPEAT + 1}, {"min_repeat_ms": -1}, {"min_repeat_ms": "1"},
        {"min_repeat_ms": float("nan")}, {"min_repeat_ms": float("inf")}, {"cooldown_s": 3601}, {"cooldown_s": True},
        {"cache_flush_bytes": -1}, {"cache_flush_bytes": 1 << 40}, {"cache_flush_bytes": 1.0},
    ],
)  # fmt: skip
def test_options_out_of_range_are_refused(run, options):
    clock = Clock(1.0)
    with pytest.raises(RemoteArgumentError, match=next(iter(options)) + " must be"):
        run(clock, **options)
    assert clock.calls == 0
