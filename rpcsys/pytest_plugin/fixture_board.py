"""A leased board of a fixture, and what is known of it."""

from __future__ import annotations

import concurrent.futures
import json
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Dict, List, Optional

import pytest

from rpcsys.errors import RpcsysError, one_line

if TYPE_CHECKING:
    from rpcsys.client import Session, Tracker

#: Lines of a session's output in a report, the last ones.
PRINTED_LINES = 200
#: Seconds to wait for a board's state, which comes after the calls that run; and for the end of a lease.
STATE_S = 5.0
ENDED_S = 5.0
POLL_S = 0.05


@dataclass
class FixtureBoard:
    """A board as a fixture has it."""

    lease: Dict[str, Any]  # the tracker's answer
    session: Optional[Session] = None  # None: TVM's client has it
    failed: bool = False  # a test that has it
    left: str = ""  # how the lease ended, once it has, and what the board had to clean

    @property
    def name(self) -> str:
        """Of its server; its address where the tracker does not name servers."""
        return str(self.lease.get("server") or "{}:{}".format(self.lease.get("host"), self.lease.get("port")))

    @property
    def key(self) -> str:
        """The key that it was leased by."""
        return str(self.lease.get("key", ""))

    def at_failure(self) -> Dict[str, str]:
        """What its session has printed and the board's state, by title; nothing of a session of TVM's client."""
        if self.session is None:
            return {}
        state = state_of(self.session)  # first: lines that were printed before come with the answer
        return {"printed": printed(self.session), "state": state}


#: On a test, module or session: its boards by fixture.
BOARDS = pytest.StashKey[Dict[str, List[FixtureBoard]]]()


def state_of(session: Session) -> str:
    """A line for each field of the board's state, or why it is not known. Waits `STATE_S` seconds at most."""
    if session.closed is not None:
        return f"the session has ended: {one_line(session.closed)}"
    try:
        state: Dict[str, Any] = session._submit_builtin("session.board_state").result(STATE_S)
    except concurrent.futures.TimeoutError:
        return f"no answer within {STATE_S:g} s: another call runs"
    except RpcsysError as error:
        return one_line(error)
    return "\n".join(f"{name}: {json.dumps(value)}" for name, value in state.items())


def printed(session: Session) -> str:
    """The last `PRINTED_LINES` that the session has printed until now."""
    lines = session._log.kept()
    left_out = len(lines) - PRINTED_LINES
    first = [f"({left_out} lines before these)"] if left_out > 0 else []
    return "\n".join([*first, *lines[-PRINTED_LINES:]]) or "(nothing)"


def ended(tracker: Tracker, lease: Dict[str, Any]) -> str:
    """How a lease ended and what the board had to clean, by the tracker's history. Waits `ENDED_S` seconds at most."""
    deadline = time.monotonic() + ENDED_S
    try:
        while time.monotonic() < deadline:
            for row in tracker.history(server=lease.get("server"), limit=20):
                if row["lease"] == lease.get("lease"):
                    return _ended(row["reason"], row["fault"], row["cleaned"])
            time.sleep(POLL_S)
    except RpcsysError as error:
        return f"not known: {one_line(error)}"
    return f"not known: the board has not reported the end of the session within {ENDED_S:g} s"


def _ended(reason: str, fault: str, cleaned: Dict[str, Any]) -> str:
    lines = [f"{what}: {', '.join(map(str, names))}" for what, names in cleaned.items()]
    fault = f"; the board's fault: {fault}" if fault else ""
    return "\n".join([f"{reason}{fault}", *(lines or ["nothing had to be cleaned"])])
