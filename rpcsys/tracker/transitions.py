"""The states of a lease and of a server, and the tables of their transitions."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from types import MappingProxyType
from typing import Final, Literal

# Leases.
#
# 1. A lease begins as granted. It runs once its session is opened; a second report of that changes nothing.
# 2. Its server's connection may break and come back while the session goes on, so each of both states has a second
#    one for the time without a connection.
# 3. A lease of one of TVM's servers stays granted until it ends: such a server sends nothing about its sessions.
# 4. Each lease ends once, and no state follows.


class LeaseState(str, Enum):
    """The state of a lease."""

    GRANTED = "granted"
    RUNNING = "running"
    GRANTED_AWAY = "granted, server away"
    RUNNING_AWAY = "running, server away"
    OVER = "over"


class LeaseEvent(str, Enum):
    """An event of a lease."""

    OPENED = "its session was opened"
    SERVER_LEFT = "its server's connection ended"
    SERVER_BACK = "its server has registered again"
    ENDED = "it ended"


GRANTED, RUNNING, GRANTED_AWAY, RUNNING_AWAY, OVER = LeaseState
OPENED, SERVER_LEFT, SERVER_BACK, ENDED = LeaseEvent

LEASE_TRANSITIONS: Mapping[LeaseState, Mapping[LeaseEvent, LeaseState]] = MappingProxyType(
    {
        GRANTED: {OPENED: RUNNING, SERVER_LEFT: GRANTED_AWAY, ENDED: OVER},
        RUNNING: {OPENED: RUNNING, SERVER_LEFT: RUNNING_AWAY, ENDED: OVER},
        GRANTED_AWAY: {OPENED: RUNNING_AWAY, SERVER_BACK: GRANTED, ENDED: OVER},
        RUNNING_AWAY: {OPENED: RUNNING_AWAY, SERVER_BACK: RUNNING, ENDED: OVER},
        OVER: {},
    }
)
IN_SESSION = (RUNNING, RUNNING_AWAY)  # states of a lease whose session was opened
AWAY = (GRANTED_AWAY, RUNNING_AWAY)  # states of a lease whose server has no connection


#: How the tracker learns of a lease's beginning and end.
OURS: Final = "ours"  # the server reports them
SILENT: Final = "silent"  # one of TVM's servers, which reports nothing: the lease ends with its next offer
INFERRED: Final = "inferred"  # one of several servers behind TVM's proxy: which of their leases ends is a guess
Reporting = Literal["ours", "silent", "inferred"]

# Servers.
#
# 1. A server is set aside for a pause after failures: `FAILURES` sessions in a row, or the first session on trial.
# 2. After the pause it is on trial. A session that works, or an operator, makes it OK again, at any time.
# 3. Failures of sessions that ran before it was set aside change nothing.
# 4. A drain and the server's health are kept beside this state. One state is shown: a drain before a pause, a pause
#    before the health.


class ServerState(str, Enum):
    """The state of a server. `DRAINED` and `UNHEALTHY` are shown only, see rule 4."""

    OK = "ok"
    SET_ASIDE = "set aside"
    ON_TRIAL = "on trial"
    UNHEALTHY = "unhealthy"
    DRAINED = "drained"


class ServerEvent(str, Enum):
    """An event of a server."""

    FAILED = "it failed too often"
    PAUSE_OVER = "its pause is over"
    CLEARED = "a session went well, or an operator enabled it"


OK, SET_ASIDE, ON_TRIAL, UNHEALTHY, DRAINED = ServerState
FAILED, PAUSE_OVER, CLEARED = ServerEvent

SERVER_TRANSITIONS: Mapping[ServerState, Mapping[ServerEvent, ServerState]] = MappingProxyType(
    {
        OK: {FAILED: SET_ASIDE, CLEARED: OK},
        SET_ASIDE: {FAILED: SET_ASIDE, PAUSE_OVER: ON_TRIAL, CLEARED: OK},
        ON_TRIAL: {FAILED: SET_ASIDE, CLEARED: OK},
    }
)
FAILURES = 3  # failed sessions in a row after which a server is set aside
HEALTHY = (OK, ON_TRIAL)  # states of a server that is offered
