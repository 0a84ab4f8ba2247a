"""The tables of states compared with their rules, and the state that is shown of a server."""

import pytest

from rpcsys.tracker.entities import Condition
from rpcsys.tracker.transitions import (
    AWAY,
    HEALTHY,
    IN_SESSION,
    LEASE_TRANSITIONS,
    SERVER_TRANSITIONS,
    LeaseEvent,
    LeaseState,
    ServerEvent,
    ServerState,
)

ALIVE = [state for state in LeaseState if state is not LeaseState.OVER]


def test_every_state_has_a_row_and_all_but_the_first_come_from_another():
    assert set(LEASE_TRANSITIONS) == set(LeaseState)
    reached = {target for row in LEASE_TRANSITIONS.values() for target in row.values()}
    assert reached == set(LeaseState)


@pytest.mark.parametrize("state", ALIVE)
def test_any_lease_ends_and_is_opened_once(state):
    row = LEASE_TRANSITIONS[state]
    assert row[LeaseEvent.ENDED] is LeaseState.OVER
    assert row[LeaseEvent.OPENED] in IN_SESSION
    assert LEASE_TRANSITIONS[row[LeaseEvent.OPENED]][LeaseEvent.OPENED] is row[LeaseEvent.OPENED]
    assert (row[LeaseEvent.OPENED] in AWAY) == (state in AWAY), "news of a session move no server"


def test_nothing_follows_the_end():
    assert not LEASE_TRANSITIONS[LeaseState.OVER]


@pytest.mark.parametrize("state", ALIVE)
def test_a_server_that_leaves_and_comes_back_changes_nothing_else(state):
    row = LEASE_TRANSITIONS[state]
    if state in AWAY:
        assert LeaseEvent.SERVER_LEFT not in row
        assert LEASE_TRANSITIONS[row[LeaseEvent.SERVER_BACK]][LeaseEvent.SERVER_LEFT] is state
    else:
        assert LeaseEvent.SERVER_BACK not in row
        assert LEASE_TRANSITIONS[row[LeaseEvent.SERVER_LEFT]][LeaseEvent.SERVER_BACK] is state


@pytest.mark.parametrize("state", list(SERVER_TRANSITIONS))
def test_a_server_is_set_aside_from_any_state_and_cleared_from_any(state):
    assert SERVER_TRANSITIONS[state][ServerEvent.FAILED] is ServerState.SET_ASIDE
    assert SERVER_TRANSITIONS[state][ServerEvent.CLEARED] is ServerState.OK


def test_a_pause_ends_in_a_trial():
    assert [state for state, row in SERVER_TRANSITIONS.items() if ServerEvent.PAUSE_OVER in row] == [
        ServerState.SET_ASIDE
    ]
    assert SERVER_TRANSITIONS[ServerState.SET_ASIDE][ServerEvent.PAUSE_OVER] is ServerState.ON_TRIAL


@pytest.mark.parametrize("trust", list(SERVER_TRANSITIONS))
@pytest.mark.parametrize("drained", [False, True])
@pytest.mark.parametrize("problem", ["", "no disk"])
def test_a_drain_is_shown_before_a_pause_and_a_pause_before_the_health(trust, drained, problem):
    condition = Condition(trust, drained, unhealthy=problem)
    order = (
        (drained, ServerState.DRAINED),
        (trust is ServerState.SET_ASIDE, ServerState.SET_ASIDE),
        (bool(problem), ServerState.UNHEALTHY),
        (True, trust),
    )
    assert condition.state is next(state for so, state in order if so)
    assert condition.open == (condition.state in HEALTHY) == (not drained and not problem and trust in HEALTHY)
