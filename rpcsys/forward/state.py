"""The decisions of ``rpcsys connect``: what is forwarded, what is answered here, and which session is whose.

TVM's client leases a device by REQUEST, and then opens a session with the match key at the host and port of the reply.
Here the reply names the forwarder itself, which remembers the server's address by the match key. No socket, no clock.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from rpcsys.errors import RpcsysError, ServerRefused, one_line
from rpcsys.wire import pinned_keys
from rpcsys.wire.control import Hello
from rpcsys.wire.handshake import CLIENT, Greeting
from rpcsys.wire.pinned_keys import shown
from rpcsys.wire.tracker import FAIL, GET_PENDING, PING, PUT, REQUEST, STOP, SUCCESS, SUMMARY, UPDATE_INFO

LEASE_S = 60.0  # how long a match key is remembered: clients use theirs at once
MAX_LEASES = 4096
_OF_SERVERS = frozenset((PUT, UPDATE_INFO, GET_PENDING, STOP))


class DeskLease(NamedTuple):
    """A device that was leased: the server's address, until when it is remembered, and whether it speaks no TLS."""

    host: str
    port: int
    match_key: str
    until: float
    plain: bool = False


class ForwardState:
    """What is leased and not used yet. ``host``, ``port``: the forwarder's own."""

    def __init__(self, host: str, port: int) -> None:
        self._own = [host, port]
        self._leased: dict[str, DeskLease] = {}  # oldest first

    def __len__(self) -> int:
        return len(self._leased)

    def own_answer(self, message: Any) -> Any:
        """The answer to a message that is not forwarded: servers register with the tracker itself. None: forward it."""
        if type(message) is dict:
            return None
        code = message[0] if type(message) is list and message else None
        return FAIL if code in _OF_SERVERS else None

    def reply(self, message: Any, now: float) -> Any:
        """The tracker's message as it is for this desk: what was leased is at the forwarder's own address."""
        leased = _leased(message, now + LEASE_S)
        if leased is None:
            return message
        if not leased.plain and pinned_keys.parse(leased.match_key) is None:
            key = shown(leased.match_key)
            return [FAIL, f"the server of {key} does not encrypt, and the lab's rules do not allow that ([tvm] from)"]
        self._forget(now)
        self._leased[leased.match_key] = leased
        return [SUCCESS, [*self._own, leased.match_key]]

    def session(self, greeting: Greeting, now: float) -> DeskLease:
        """Where the session of a greeting is. Raises `ServerRefused`: nothing was leased here with that match key."""
        self._forget(now)
        leased = self._leased.pop(greeting.key, None)
        if leased is None or greeting.role != CLIENT:
            raise ServerRefused(f"{shown(greeting.key)} was not leased here in the last {LEASE_S:g} s, or is used")
        return leased

    def _forget(self, now: float) -> None:
        while self._leased:
            oldest = next(iter(self._leased.values()))
            if oldest.until > now and len(self._leased) < MAX_LEASES:
                return
            del self._leased[oldest.match_key]


def is_hello(message: Any) -> bool:
    """Whether a message is a ping of a client of rpcsys, whose answer is the tracker's hello."""
    return (
        type(message) is list
        and len(message) > 1
        and message[0] == PING
        and type(message[1]) is dict
        and message[1].get("op") == Hello.op
    )


def failure(message: Any, error: RpcsysError) -> Any:
    """The answer to a message that did not reach the tracker, or whose answer did not come."""
    text = one_line(error)
    refusal = {"ok": False, "error": type(error).__name__, "message": text}
    if type(message) is dict:
        return {"id": message.get("id"), **refusal}
    if is_hello(message):
        return refusal
    code = message[0] if type(message) is list and message else None
    return [FAIL, text] if code in (REQUEST, SUMMARY) else FAIL


def _leased(message: Any, until: float) -> DeskLease | None:
    """What a reply to REQUEST hands out; None for any other message."""
    if type(message) is not list or len(message) < 2 or message[0] != SUCCESS or type(message[1]) is not list:
        return None
    match message[1]:
        case [str(host), int(port), str(match_key)]:
            more = message[2] if len(message) > 2 else None
            return DeskLease(host, port, match_key, until, type(more) is dict and more.get("plain") is True)
    return None
