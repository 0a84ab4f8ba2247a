"""The table of a lease's states, read as its rules are."""

import pytest

from rpcsys.tracker.lease_states import AWAY, IN_SESSION, TRANSITIONS, LeaseEvent, LeaseState

ALIVE = [state for state in LeaseState if state is not LeaseState.OVER]


def test_every_state_has_a_row_and_all_but_the_first_come_from_another():
    assert set(TRANSITIONS) == set(LeaseState)
    reached = {target for row in TRANSITIONS.values() for target in row.values()}
    assert reached == set(LeaseState)


@pytest.mark.parametrize("state", ALIVE)
def test_any_lease_ends_and_is_opened_once(state):
    row = TRANSITIONS[state]
    assert row[LeaseEvent.ENDED] is LeaseState.OVER
    assert row[LeaseEvent.OPENED] in IN_SESSION
    assert TRANSITIONS[row[LeaseEvent.OPENED]][LeaseEvent.OPENED] is row[LeaseEvent.OPENED]
    assert (row[LeaseEvent.OPENED] in AWAY) == (state in AWAY), "news of a session move no server"


def test_nothing_follows_the_end():
    assert not TRANSITIONS[LeaseState.OVER]


@pytest.mark.parametrize("state", ALIVE)
def test_a_server_that_leaves_and_comes_back_changes_nothing_else(state):
    row = TRANSITIONS[state]
    if state in AWAY:
        assert LeaseEvent.SERVER_LEFT not in row
        assert TRANSITIONS[row[LeaseEvent.SERVER_BACK]][LeaseEvent.SERVER_LEFT] is state
    else:
        assert LeaseEvent.SERVER_BACK not in row
        assert TRANSITIONS[row[LeaseEvent.SERVER_LEFT]][LeaseEvent.SERVER_BACK] is state
