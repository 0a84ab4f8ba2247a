"""The states of a server, and what changes them.

Rules:

1. A server that fails too often is set aside for a pause: `FAILURES` sessions in a row, or the first one on trial.
2. After the pause it is on trial. A session that goes well, or an operator, makes it one like all others again, at
   any time.
3. Failures of sessions that ran before it was set aside change nothing.
4. An operator's drain, and what is wrong with its health, go beside that. What is shown of all is what an operator
   has to know first: a drain, then a pause, then its health.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from types import MappingProxyType


class ServerState(str, Enum):
    """A server, between two events. `DRAINED` and `UNHEALTHY` are shown only, see rule 4."""

    OK = "ok"
    SET_ASIDE = "set aside"
    ON_TRIAL = "on trial"
    UNHEALTHY = "unhealthy"
    DRAINED = "drained"


class ServerEvent(str, Enum):
    """What happens to a server."""

    FAILED = "it failed too often"
    PAUSE_OVER = "its pause is over"
    CLEARED = "a session went well, or an operator enabled it"


OK, SET_ASIDE, ON_TRIAL, UNHEALTHY, DRAINED = ServerState
FAILED, PAUSE_OVER, CLEARED = ServerEvent

TRANSITIONS: Mapping[ServerState, Mapping[ServerEvent, ServerState]] = MappingProxyType(
    {
        OK: {FAILED: SET_ASIDE, CLEARED: OK},
        SET_ASIDE: {FAILED: SET_ASIDE, PAUSE_OVER: ON_TRIAL, CLEARED: OK},
        ON_TRIAL: {FAILED: SET_ASIDE, CLEARED: OK},
    }
)

FAILURES = 3
"""So many failures in a row are too many."""

HEALTHY = (OK, ON_TRIAL)
"""States of a server that may be given to anybody."""
