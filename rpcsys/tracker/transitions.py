"""The states of a lease and of a server, and what changes them: the tables that the tracker runs on."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from types import MappingProxyType
from typing import Final, Literal

# Leases.
#
# 1. A lease begins as granted. It runs once its session is opened; news of that may come twice, and changes nothing then.
# 2. Its server's connection may break and come back. A session does not notice, so each of both states has one
#    without a server.
# 3. A lease of one of TVM's servers stays granted until it ends: such a server says nothing of its sessions.
# 4. Any lease ends, once. Nothing follows.


class LeaseState(str, Enum):
    """A lease, between two events."""

    GRANTED = "granted"
    RUNNING = "running"
    GRANTED_AWAY = "granted, server away"
    RUNNING_AWAY = "running, server away"
    OVER = "over"


class LeaseEvent(str, Enum):
    """What happens to a lease."""

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


#: How the tracker knows of a lease's beginning and end.
OURS: Final = "ours"  # the server says so
SILENT: Final = "silent"  # one of TVM's servers, which says nothing: the lease lasts until its next offer
INFERRED: Final = "inferred"  # one of several servers behind TVM's proxy: which of their leases ended is a guess
Reporting = Literal["ours", "silent", "inferred"]

# Servers.
#
# 1. A server that fails too often is set aside for a pause: `FAILURES` sessions in a row, or the first one on trial.
# 2. After the pause it is on trial. A session that goes well, or an operator, makes it one like all others again, at
#    any time.
# 3. Failures of sessions that ran before it was set aside change nothing.
# 4. An operator's drain, and what is wrong with its health, go beside that. What is shown of all is what an operator
#    has to know first: a drain, then a pause, then its health.


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

SERVER_TRANSITIONS: Mapping[ServerState, Mapping[ServerEvent, ServerState]] = MappingProxyType(
    {
        OK: {FAILED: SET_ASIDE, CLEARED: OK},
        SET_ASIDE: {FAILED: SET_ASIDE, PAUSE_OVER: ON_TRIAL, CLEARED: OK},
        ON_TRIAL: {FAILED: SET_ASIDE, CLEARED: OK},
    }
)
FAILURES = 3  # so many failures in a row are too many
HEALTHY = (OK, ON_TRIAL)  # states of a server that may be given to anybody
