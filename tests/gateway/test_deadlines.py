"""The deadlines of calls."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from rpcsys.gateway.deadlines import GRAIN_S, CallDeadlines
from tests.gateway.test_turns import call


@given(st.lists(st.floats(0, 100), max_size=30), st.floats(0, 110))
def test_calls_are_overdue_at_their_deadlines_and_not_before(times: list[float], now: float) -> None:
    deadlines = CallDeadlines()
    calls = []
    for time in times:
        calls.append(call())
        calls[-1].deadline = time
        deadlines.add(calls[-1])
    assert deadlines.next_due == min((math.ceil(time / GRAIN_S) * GRAIN_S for time in times), default=math.inf)
    late = deadlines.overdue(now)
    assert all(each.deadline is not None and each.deadline <= now + 1e-9 for each in late)
    assert {each for each in calls if each.deadline is not None and each.deadline <= now - GRAIN_S} <= set(late)
    for each in late:
        deadlines.discard(each)
        deadlines.discard(each)
    deadlines.restart()
    assert len(deadlines) == len(calls) - len(late)
    assert deadlines.next_due > now
    assert not deadlines.overdue(now)


def test_other_times_count_until_the_time_is_told() -> None:
    deadlines = CallDeadlines()
    deadlines.wake_at(7.0)
    deadlines.wake_at(9.0)
    assert deadlines.next_due == 7.0
    deadlines.restart()
    assert deadlines.next_due == math.inf
