"""A session's states, limits and log lines."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rpcsys.server.supervisor.session_record import (
    CLEANING,
    END_SEEN,
    ENDING,
    EXPLAINING,
    LATE_S,
    OVER,
    OVERDUE,
    RUNNING,
    STARTED,
    TRANSITIONS,
    UNEXPLAINED,
    SessionRecord,
)


def session(*events, kind="rpcsys/1", **fields):
    made = SessionRecord(7, "peer", kind, number=3, **fields)
    for event in events:
        made.move(event)
    return made


@pytest.mark.parametrize(
    ("events", "state"),
    [
        ((STARTED,), RUNNING),
        ((STARTED, END_SEEN, END_SEEN), ENDING),
        ((STARTED, END_SEEN, UNEXPLAINED), OVERDUE),
        ((STARTED, UNEXPLAINED, STARTED), EXPLAINING),
        ((STARTED, UNEXPLAINED, STARTED, OVER), CLEANING),
        ((OVER,), CLEANING),
    ],
)
def test_events_change_a_sessions_state(events, state):
    assert session(*events).state is state


def test_cleaning_is_reachable_and_final():
    assert all(after.get(OVER) is CLEANING for state, after in TRANSITIONS.items() if state is not CLEANING)
    with pytest.raises(KeyError):
        session(OVER, STARTED)


@given(st.lists(st.none() | st.floats(0, 1e6), max_size=5))
def test_the_shortest_limit_holds(limits):
    one = session(STARTED)
    for limit in limits:
        one.limit(limit)
    given_limits = [limit for limit in limits if limit is not None]
    assert one.limit_s == min(given_limits, default=None)
    assert one.due == (min(given_limits) + LATE_S if given_limits else None)


def test_a_tvm_session_ends_exactly_at_its_limit():
    one = session(STARTED, kind="tvm")
    one.limit(5.0)
    assert one.due == 5.0


def test_the_log_lines_of_a_session():
    one = session(lease="L1", limit_s=9.0)
    assert one.began_text() == "session 3 of peer begins: rpcsys/1, for at most 9 s lease=L1"
    one.outcome, one.cleaned, one.removed = "lost", ("sh", "cc"), ("/dev/shm/a",)
    text = "session 3 of peer ended after 1.2 s: lost; had to be killed: sh, cc; had to be removed: /dev/shm/a lease=L1"
    assert one.ended_text(1.24) == text
