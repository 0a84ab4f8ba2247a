"""Timing functions in turns: whose turn it is, what is counted, what the board says meanwhile, and what is refused."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import pytest

from rpcsys.errors import RemoteArgumentError
from rpcsys.module.module import running_call
from rpcsys.server.session import turns
from rpcsys.server.session.turns import MAX_TURNS, bound, time_turns, waited_seconds


def test_turns_run_in_the_order_with_one_call_before_that_is_not_timed():
    said: list[str] = []
    report = time_turns([lambda: said.append("a"), lambda: said.append("b")], [0, 1, 1, 0], [2, 1], 60)
    assert "".join(said) == "aaa" + "bb" + "bb" + "aaa"
    assert {len(column) for name, column in report.items() if name != "board"} == {4}
    assert report["board"].keys() == {"before", "after"}


def test_the_mean_of_a_call_is_returned(monkeypatch: pytest.MonkeyPatch):
    now = [0.0]

    def call() -> None:
        now[0] += 0.5

    monkeypatch.setattr(turns, "time", Clock(now))
    monkeypatch.setattr(turns, "waited_seconds", lambda: None)
    report = time_turns([call], [0, 0], [3], 60)
    assert (report["seconds"], report["waited"]) == ([0.5, 0.5], [None, None])


def test_waits_behind_the_last_call_are_not_those_of_a_turn(monkeypatch: pytest.MonkeyPatch):
    """The thread loses its CPU for 2 s in the call, and for 3 s when the file is read behind it."""
    now, waits = [0.0], [0.0]

    def call() -> None:
        now[0] += 5.0
        waits[0] += 2.0

    def read() -> float:
        if now[0]:
            now[0] += 3.0
            waits[0] += 3.0
        return waits[0]

    monkeypatch.setattr(turns, "time", Clock(now))
    monkeypatch.setattr(turns, "waited_seconds", read)
    assert turns._timed(call, 1) == (5.0, 2.0)


class Clock:
    """Clocks that show ``now``."""

    def __init__(self, now: list[float]) -> None:
        self.perf_counter = self.process_time = self.thread_time = lambda: now[0]


def test_a_turn_begins_before_the_limit_or_not_at_all():
    done: list[int] = []
    report = time_turns([lambda: done.append(time.sleep(0.02) or 1)], [0] * 1000, [1], 0.1)
    assert 1 <= len(report["seconds"]) < 100
    assert len(done) == 2 * len(report["seconds"])
    assert time_turns([done.clear], [0] * 10, [1], 0)["seconds"] == []


def test_a_stopped_call_ends_between_turns():
    running_call.stops = stops = []
    try:
        with pytest.raises(RemoteArgumentError, match="the measurement was stopped"):
            time_turns([lambda: [stop() for stop in stops]], [0, 0], [1], 60)
    finally:
        running_call.stops = []


def test_work_of_others_and_own_threads_is_told_apart():
    """Another thread works while the calling one sleeps."""
    ended = threading.Event()

    def burn() -> None:
        while not ended.is_set():
            sum(range(10_000))

    thread = threading.Thread(target=burn)
    thread.start()
    try:
        report = time_turns([lambda: time.sleep(0.2)], [0], [1], 60)
    finally:
        ended.set()
        thread.join()
    assert report["own_cpu"][0] > 5 * report["thread_cpu"][0]
    assert report["others_cpu"][0] is None or 0 <= report["others_cpu"][0] <= 1
    assert report["switches"][0] >= 0


def test_what_linux_shows(tmp_path: Path):
    (tmp_path / "schedstat").write_text("151070 2635635 3\n")
    assert waited_seconds(str(tmp_path / "schedstat")) == pytest.approx(0.002635635)
    for broken in ("", "1", "a b c"):
        (tmp_path / "schedstat").write_text(broken)
        assert waited_seconds(str(tmp_path / "schedstat")) is None
    assert waited_seconds(str(tmp_path / "none")) is None


@pytest.mark.parametrize(
    ("calls", "order", "number", "limit_s", "said"),
    [
        (0, [], [], 1, "targets are 1 to 100"),
        (101, [], [1] * 101, 1, "targets are 1 to 100"),
        (1, [0] * (MAX_TURNS + 1), [1], 1, "at most 10000 turns"),
        (1, [1], [1], 1, "order has places of targets, from 0 to 0, not 1"),
        (1, [-1], [1], 1, "order has places"),
        (1, [True], [1], 1, "order has places"),
        (1, [0.0], [1], 1, "order has places"),
        (1, [[]], [1], 1, "order has places"),
        (2, [0], [1], 1, "number has one item for each of 2 targets, not 1"),
        (1, [0], [0], 1, "number has whole numbers"),
        (1, [0], [10**9], 1, "number has whole numbers"),
        (1, [0], ["1"], 1, "number has whole numbers"),
        (1, [0], [1], -1, "limit_s must be"),
        (1, [0], [1], 3601, "limit_s must be"),
        (1, [0], [1], float("nan"), "limit_s must be"),
        (1, [0], [1], 10**400, "limit_s must be"),
    ],
)
def test_values_out_of_range_are_refused(calls: int, order: list[Any], number: list[Any], limit_s: float, said: str):
    with pytest.raises(RemoteArgumentError, match=said):
        time_turns([lambda: None] * calls, order, number, limit_s)


@pytest.mark.parametrize("targets", [[1], [["f"]], [["f", 1]], [["f", [], 1]], [[None, []]], [[{}, []]], ["fa"]])
def test_targets_of_another_form_are_refused(targets: list[Any]):
    with pytest.raises(RemoteArgumentError, match=r"a target is a list|a function is a name"):
        bound(targets, lambda name: print)


def test_arguments_are_bound():
    calls = bound([["f", [1, 2]], [[3, "main"], (4,)]], lambda name: lambda *args: (name, args))
    assert [call() for call in calls] == [("f", (1, 2)), ([3, "main"], (4,))]
