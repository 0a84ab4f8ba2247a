"""Results at the tracker, as a runner keeps and finds them: nothing is lost, and no trouble is a candidate's."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any

import pytest

from rpcsys.errors import NotSupported, TrackerLost, UsageError
from rpcsys.tvm import lab_results
from rpcsys.tvm.lab_results import LabResults


class FakeTracker:
    """A tracker that keeps results, or raises ``trouble``."""

    def __init__(self) -> None:
        self.kept: dict[str, list[float]] = {}
        self.messages = 0
        self.trouble: Exception | None = None

    def find_results(self, identities: Iterable[str]) -> dict[str, list[float]]:
        self._check()
        return {each: self.kept[each] for each in identities if each in self.kept}

    def keep_results(self, kept: dict[str, list[float]]) -> None:
        self._check()
        self.messages += 1
        self.kept.update(kept)

    def _check(self) -> None:
        if self.trouble is not None:
            raise self.trouble


@pytest.fixture
def tracker() -> FakeTracker:
    return FakeTracker()


def opened(tracker: Any) -> LabResults:
    return LabResults(tracker)


def test_results_are_kept_together_and_at_the_end_all_are(tracker: FakeTracker) -> None:
    shared = opened(tracker)
    for number in range(300):
        shared.keep(str(number), [1.0], {})
    shared.keep("0", [2.0], {})
    shared.close()
    shared.close()
    assert tracker.kept == {"0": [2.0], **{str(number): [1.0] for number in range(1, 300)}}
    assert tracker.messages <= 6
    assert opened(tracker).find(["0", "x"]) == {"0": [2.0]}
    shared.keep("late", [1.0], {})
    assert shared._sender is None


def test_results_wait_for_a_tracker_that_is_away(tracker: FakeTracker, caplog: pytest.LogCaptureFixture) -> None:
    shared = opened(tracker)
    tracker.trouble = TrackerLost("the tracker is gone")
    with caplog.at_level(logging.WARNING, "rpcsys.tuning"):
        assert shared.find(["a"]) == {}
        shared.keep("a", [1.0], {})
        assert shared._sender is not None
        shared._sender.join(60)
        shared.keep("b", [2.0], {})  # it is not asked again at once
        assert shared._sender is None
    assert len(caplog.records) == 1
    tracker.trouble = None
    shared.close()
    assert tracker.kept == {"a": [1.0], "b": [2.0]}


def test_what_waits_is_bounded(tracker: FakeTracker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lab_results, "MAX_PENDING", 10)
    shared = opened(tracker)
    shared._retry_at = float("inf")
    for number in range(50):
        shared.keep(str(number), [1.0], {})
    shared.close()
    assert list(tracker.kept) == [str(number) for number in range(40, 50)]


def test_what_no_tracker_takes_is_not_sent(tracker: FakeTracker) -> None:
    shared = opened(tracker)
    for seconds in ([], [0.0], [float("inf")], [1.0] * 1000):
        shared.keep("a", seconds, {})
    shared.close()
    assert tracker.messages == 0


def test_a_tracker_that_keeps_none_is_a_mistake_of_the_user(tracker: FakeTracker) -> None:
    shared = opened(tracker)
    tracker.trouble = NotSupported("update rpcsys there")
    for _ in range(2):
        with pytest.raises(UsageError, match="update rpcsys there"):
            shared.find(["a"])
    with pytest.raises(UsageError):
        shared.keep("a", [1.0], {})
    shared.close()
