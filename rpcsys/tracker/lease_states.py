"""The states of a lease, and what changes them.

Rules:

1. A lease begins as granted. It runs once its session is opened; news of that may come twice, and changes nothing then.
2. Its server's connection may break and come back. A session does not notice, so each of both states has one
   without a server.
3. A lease of one of TVM's servers stays granted until it ends: such a server says nothing of its sessions.
4. Any lease ends, once. Nothing follows.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from types import MappingProxyType


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

TRANSITIONS: Mapping[LeaseState, Mapping[LeaseEvent, LeaseState]] = MappingProxyType(
    {
        GRANTED: {OPENED: RUNNING, SERVER_LEFT: GRANTED_AWAY, ENDED: OVER},
        RUNNING: {OPENED: RUNNING, SERVER_LEFT: RUNNING_AWAY, ENDED: OVER},
        GRANTED_AWAY: {OPENED: RUNNING_AWAY, SERVER_BACK: GRANTED, ENDED: OVER},
        RUNNING_AWAY: {OPENED: RUNNING_AWAY, SERVER_BACK: RUNNING, ENDED: OVER},
        OVER: {},
    }
)

IN_SESSION = (RUNNING, RUNNING_AWAY)
"""States of a lease whose session was opened."""

AWAY = (GRANTED_AWAY, RUNNING_AWAY)
"""States of a lease whose server has no connection."""


class Reporting(str, Enum):
    """How a lease is known.

    The server says when it begins and ends (`OURS`); it is one of TVM's and says nothing, so the lease lasts until its
    next offer (`SILENT`); it is one of several behind TVM's proxy, and which of them ended is a guess (`INFERRED`).
    """

    OURS = "ours"
    SILENT = "silent"
    INFERRED = "inferred"


OURS, SILENT, INFERRED = Reporting
