"""The table of a server's states, read as its rules are, and what is shown of a server."""

import pytest

from rpcsys.tracker.entities import Condition
from rpcsys.tracker.server_states import HEALTHY, TRANSITIONS, ServerEvent, ServerState


@pytest.mark.parametrize("state", list(TRANSITIONS))
def test_a_server_is_set_aside_from_any_state_and_cleared_from_any(state):
    assert TRANSITIONS[state][ServerEvent.FAILED] is ServerState.SET_ASIDE
    assert TRANSITIONS[state][ServerEvent.CLEARED] is ServerState.OK


def test_a_pause_ends_in_a_trial():
    assert [state for state, row in TRANSITIONS.items() if ServerEvent.PAUSE_OVER in row] == [ServerState.SET_ASIDE]
    assert TRANSITIONS[ServerState.SET_ASIDE][ServerEvent.PAUSE_OVER] is ServerState.ON_TRIAL


@pytest.mark.parametrize("trust", list(TRANSITIONS))
@pytest.mark.parametrize("drained", [False, True])
@pytest.mark.parametrize("problem", ["", "no disk"])
def test_what_is_shown_is_what_an_operator_has_to_know_first(trust, drained, problem):
    condition = Condition(trust, drained, unhealthy=problem)
    order = (
        (drained, ServerState.DRAINED),
        (trust is ServerState.SET_ASIDE, ServerState.SET_ASIDE),
        (bool(problem), ServerState.UNHEALTHY),
        (True, trust),
    )
    assert condition.state is next(state for so, state in order if so)
    assert condition.open == (condition.state in HEALTHY) == (not drained and not problem and trust in HEALTHY)
