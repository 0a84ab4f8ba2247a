"""Timing a function: the arithmetic, with a simulated clock, and the changes of the board that make it doubtful."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from rpcsys.errors import RemoteArgumentError
from rpcsys.server.session import timing
from rpcsys.server.session.timing import MAX_NUMBER, MAX_REPEAT, board_state, changes, evaluate


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


def board(root: Path, mhz: float, governor: str, celsius: float, load: float = 0.5) -> str:
    """Make a folder with the files of Linux that are read; return its path."""
    for cpu in os.sched_getaffinity(0):
        folder = root / f"sys/devices/system/cpu/cpu{cpu}/cpufreq"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "scaling_cur_freq").write_text(f"{int(mhz * 1000)}\n")
        (folder / "scaling_governor").write_text(governor + "\n")
    for zone, value in (("thermal_zone0", celsius - 5), ("thermal_zone1", celsius)):
        folder = root / "sys/class/thermal" / zone
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "temp").write_text(f"{int(value * 1000)}\n")
    (root / "proc").mkdir(exist_ok=True)
    (root / "proc/loadavg").write_text(f"{load} 0.40 0.30 1/200 4242\n")
    return str(root)


def test_the_boards_state_is_read(tmp_path: Path) -> None:
    state = board_state(board(tmp_path, 1512, "ondemand", 61.5))
    cpus = [str(cpu) for cpu in sorted(os.sched_getaffinity(0))]
    assert state == {
        "cpu_mhz": dict.fromkeys(cpus, 1512.0),
        "governor": dict.fromkeys(cpus, "ondemand"),
        "temperature_c": 61.5,
        "load": 0.5,
    }


def test_missing_files_are_omitted(tmp_path: Path) -> None:
    assert board_state(str(tmp_path)) == {}


def test_a_file_without_a_number_is_omitted(tmp_path: Path) -> None:
    root = board(tmp_path, 1000, "performance", 40)
    for path in tmp_path.glob("sys/class/thermal/*/temp"):
        path.write_text("unknown\n")
    assert "temperature_c" not in board_state(root)


def test_this_machines_state_is_read() -> None:
    assert board_state()["load"] >= 0


@pytest.mark.parametrize(
    ("mhz", "governor", "celsius", "expected"),
    [
        (1500, "ondemand", 50, []),
        (1450, "ondemand", 59, []),
        (1200, "ondemand", 50, ["from 1500 to 1200 MHz"]),
        (1500, "powersave", 50, ["from ondemand to powersave"]),
        (1500, "ondemand", 61, ["warmed by 11 degrees"]),
    ],
)
def test_changes_are_warnings(tmp_path: Path, mhz: float, governor: str, celsius: float, expected: list[str]) -> None:
    before = board_state(board(tmp_path, 1500, "ondemand", 50))
    after = board_state(board(tmp_path, mhz, governor, celsius))
    lines = changes(before, after)
    per_cpu = len(os.sched_getaffinity(0))
    assert len(lines) == (len(expected) * per_cpu if expected and "warmed" not in expected[0] else len(expected))
    for part in expected:
        assert part in lines[0]


def test_an_unknown_state_before_is_no_change() -> None:
    assert changes({}, {"temperature_c": 90.0, "load": 1.0}) == []
