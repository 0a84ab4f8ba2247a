"""Attaching to a hold: the file that the variable RPCSYS_LEASE names, and sessions under its match key.

The holder locks its file while it lives, so that a file whose holder is gone is known as one.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
from typing import Any, Dict, Mapping, NamedTuple, Optional

from rpcsys.client.session import Session
from rpcsys.errors import ConnectError, ProtocolError, SessionError, SessionLost, UsageError, printable
from rpcsys.wire.checks import match_key, port, text

VARIABLE = "RPCSYS_LEASE"
MAX_BYTES = 64 << 10
_LEAVE = f"exit its shell, or type: unset {VARIABLE}"
_RELEASED = f"the hold of {{}} is over, or was released: {_LEAVE}"
_EXPLAINED_S = 1.0  # for a holder to note why its hold is over


class HoldFile(NamedTuple):
    """What a hold's file says.

    ``lease``: as the tracker gave it, with the match key; ``pid``: the holder's; ``until``: seconds since 1970, None
    without a limit; ``over``: why the hold has ended, "" while it lasts.
    """

    path: str
    tracker: str
    lease: Dict[str, Any]
    pid: int
    since: float
    until: Optional[float]
    over: str = ""

    @property
    def server(self) -> str:
        """The name of its board."""
        return printable(str(self.lease.get("server") or self.lease["host"]))

    def fits(self, key: Optional[str], labels: Mapping[str, str]) -> bool:
        """Whether a request of this key with these labels means this hold."""
        named = {"server": self.lease.get("server"), **self.lease.get("labels", {})}
        return key in (None, self.lease["key"]) and all(named.get(name) == labels[name] for name in labels)


def read(path: str) -> HoldFile:
    """Read a hold's file, whether its holder lives or not. Raises `UsageError`: there is none, or it is damaged."""
    try:
        with open(path, "rb") as stream:
            blob = stream.read(MAX_BYTES)
            alive = locked(stream.fileno())
        found = HoldFile(path, **json.loads(blob))
        lease = found.lease
        text(lease["key"], "key"), text(lease["host"], "host"), port(lease["port"], "port")
        match_key(lease["matchkey"], "match key")
    except FileNotFoundError:
        raise UsageError(_RELEASED.format(path)) from None
    except OSError as error:
        raise UsageError(f"cannot read the hold of {path} ({error.strerror}): {_LEAVE}") from None
    except (ValueError, TypeError, KeyError, RecursionError, ProtocolError):
        raise UsageError(f"{path} is no file of a hold: {_LEAVE}") from None
    return found if alive or found.over else found._replace(over="its holder, a process on this machine, is gone")


def locked(descriptor: int) -> bool:
    """Whether the holder of the file lives."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    return False


def attach(path: str, session_timeout: Optional[float] = None) -> Session:
    """Open a session on the board of a hold, beside those that are attached to it. The hold outlasts the session.

    Raises `UsageError` for a file that is none, `SessionLost` with the reason where the hold is over, or was released,
    and what `rpcsys.client.connect` raises.
    """
    from rpcsys.client.connection import open_session  # here, because queries need no numpy

    found = _lasting(path)
    lease = found.lease
    address = (lease["host"], lease["port"])
    try:
        return open_session(address, lease["matchkey"], session_timeout=session_timeout, lease=lease)
    except (ConnectError, SessionError):
        _lasting(path)  # the better reason, where the holder has one
        raise


def _known(path: str) -> HoldFile:
    """What a hold's file says, for who attaches. Raises `SessionLost` without one: the hold was released."""
    if not os.path.exists(path):
        raise SessionLost(_RELEASED.format(path))
    return read(path)


def _lasting(path: str) -> HoldFile:
    found = _known(path)
    if found.over:
        raise SessionLost(f"the hold of {found.server} is over ({printable(found.over)}): {_LEAVE}")
    return found


def explained(path: str, error: SessionLost) -> SessionLost:
    """The error of an attached session with the reason of the hold's end; ``error`` itself if the hold lasts."""
    until = time.monotonic() + _EXPLAINED_S
    while time.monotonic() < until:
        try:
            _lasting(path)
        except (SessionLost, UsageError) as end:
            return SessionLost(str(end))
        time.sleep(_EXPLAINED_S / 20)
    return error


def here() -> str:
    """The file of the hold of this environment; "" without one."""
    return os.environ.get(VARIABLE, "")


def holds(lease: Mapping[str, Any]) -> bool:
    """Whether a lease, of a session, is that of the hold of this environment, which outlasts the session."""
    try:
        return bool(here()) and read(here()).lease["matchkey"] == lease.get("matchkey")
    except UsageError:  # it is released
        return False


def to_hold(key: Optional[str], labels: Mapping[str, str], session_timeout: Optional[float]) -> Optional[Session]:
    """A session attached to the hold of this environment; None where a request does not mean it. Errors as `attach`."""
    path = here()
    if not path or not _known(path).fits(key, labels):
        return None
    return attach(path, session_timeout)
