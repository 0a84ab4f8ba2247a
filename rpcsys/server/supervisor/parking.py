"""Connections that wait at a proxy for a client. Decisions only.

The caller gives the wanted connections as (proxy, key) pairs; this part opens and closes connections to match them.
It retries a failing proxy without end, with a backoff for each proxy, and with one connection before the others.
"""

from __future__ import annotations

import collections
from dataclasses import dataclass
from enum import Enum

from rpcsys.link.backoff import Backoff
from rpcsys.server.supervisor import actions as do
from rpcsys.server.supervisor import events as ev
from rpcsys.server.supervisor.records import ServerRecords, earliest

CONNECT_S = 8.0  # from dialling to the sent greeting
ANSWER_S = 8.0  # from the first byte of a client's greeting to its last: the proxy sends it in one piece
#: First and longest pause before a proxy is tried again. Boards return within seconds, however long the proxy was down.
FIRST_PAUSE_S, PAUSE_S = 0.1, 5.0
LASTED_S = 5.0  # a connection that was parked this long was not refused: its end resets the backoff
#: How a parked connection ends: it is lost, or the proxy answers with a refusal.
LOST, DUPLICATE, MISMATCH = "lost", "duplicate", "mismatch"


ParkedState = Enum("ParkedState", "DIALLING PARKED ANSWERING")  # between two events


class ParkedEvent(str, Enum):
    """What happens to a connection to a proxy."""

    GREETED = "its greeting is sent"
    ANSWERED = "bytes of a client's greeting arrive"


DIALLING, PARKED, ANSWERING = ParkedState
GREETED, ANSWERED = ParkedEvent

TRANSITIONS = {
    DIALLING: {GREETED: PARKED, ANSWERED: ANSWERING},
    PARKED: {GREETED: PARKED, ANSWERED: ANSWERING},
    ANSWERING: {GREETED: ANSWERING, ANSWERED: ANSWERING},
}


@dataclass
class ParkedConnection:
    """``until``: when it is closed, None while it may wait; ``since``: when its greeting was sent."""

    proxy: int
    key: str
    until: float | None
    state: ParkedState = DIALLING
    since: float | None = None

    def move(self, event: ParkedEvent) -> bool:
        """Apply an event; whether the state changes."""
        before, self.state = self.state, TRANSITIONS[self.state][event]
        return self.state is not before


@dataclass
class KnownProxy:
    """``works``: it accepts connections; ``takes_one``: one for each key; ``logged``: the log reports that it works."""

    name: str
    backoff: Backoff
    works: bool = False
    takes_one: bool = False
    logged: bool = False


class Parking:
    """``connections`` by number, and the state of each proxy."""

    def __init__(self, records: ServerRecords) -> None:
        self.records = records
        self.connections: dict[int, ParkedConnection] = {}
        self._proxies = [KnownProxy(name, Backoff(FIRST_PAUSE_S, PAUSE_S)) for name in records.policy.proxies]
        self._put_off: set[int] = set()
        self._last = 0

    @property
    def waiting(self) -> int:
        return sum(connection.state is not DIALLING for connection in self.connections.values())

    def parked(self, event: ev.Parked) -> list[do.Action]:
        connection = self.connections.get(event.number)
        if connection is None:
            return []
        if connection.move(GREETED):
            connection.until, connection.since = None, event.now
        proxy = self._proxies[connection.proxy]
        proxy.works = True
        if proxy.logged:
            return []
        proxy.logged = True
        return [do.Log("info", f"waiting for clients at the proxy at {proxy.name}")]

    def answering(self, event: ev.Answering) -> list[do.Action]:
        connection = self.connections.get(event.number)
        if connection is not None and connection.move(ANSWERED):
            connection.until = event.now + ANSWER_S
        return []

    def over(self, connection: ParkedConnection, served: bool) -> None:
        """Note the end of a paired connection. Without a session (``served``), the proxy is not dialled for a while."""
        if served:
            self._proxies[connection.proxy].backoff.worked()
        else:
            self._pause(connection)

    def lost(self, event: ev.Unparked) -> list[do.Action]:
        connection = self.connections.pop(event.number, None)
        if connection is None:
            return []
        if event.how == DUPLICATE and self._others_wait(connection.proxy, connection.key):
            # TVM's proxy accepts one connection for each key. The next is dialled when a client has taken this one.
            self._proxies[connection.proxy].takes_one = True
            return []
        return self._failed(connection, event.why, event.jitter, takes_one=event.how == DUPLICATE)

    def _others_wait(self, proxy: int, key: str) -> bool:
        return any((other.proxy, other.key) == (proxy, key) for other in self.connections.values())

    def _failed(
        self, connection: ParkedConnection, why: str, jitter: float = 0.0, *, takes_one: bool = False
    ) -> list[do.Action]:
        proxy = self._proxies[connection.proxy]
        if not takes_one:
            # Another proxy may run there when it is back: one connection tests it first.
            proxy.takes_one = proxy.works = False
        if not self._pause(connection, jitter):
            return []
        proxy.logged = False
        return [do.Log("warning", f"the proxy at {proxy.name}: {why}; trying again until it works")]

    def _pause(self, connection: ParkedConnection, jitter: float = 0.0) -> bool:
        """Pause before a connection's proxy is dialled again; whether this is its first failure in a row."""
        backoff, now = self._proxies[connection.proxy].backoff, self.records.now
        if not backoff.allows(now):  # when a proxy ends, all its connections end: that is one failure
            return False
        if connection.since is not None and now - connection.since >= LASTED_S:
            backoff.worked()
        return backoff.failed(now, jitter)

    # Opening and closing connections

    def settle(self, wanted: list[tuple[int, str]]) -> list[do.Action]:
        """Open and close connections to match ``wanted``: a (proxy, key) pair for each connection."""
        self._put_off.clear()
        if not wanted and not self.connections:
            return []
        missing = collections.Counter(wanted)
        actions: list[do.Action] = []
        for number, connection in list(self.connections.items()):
            if missing[connection.proxy, connection.key]:
                missing[connection.proxy, connection.key] -= 1
            elif connection.state is not ANSWERING:  # a client whose greeting arrives is admitted or refused
                actions += self._close(number)
        for (proxy, key), count in missing.items():
            actions += self._dial(proxy, key, count)
        return actions

    def _dial(self, number: int, key: str, count: int) -> list[do.Action]:
        proxy = self._proxies[number]
        if proxy.takes_one:
            count = min(count, 0 if self._others_wait(number, key) else 1)
        elif not proxy.works:
            dialled = any(other.proxy == number and other.state is DIALLING for other in self.connections.values())
            count = min(count, 0 if dialled else 1)
        if count and not proxy.backoff.allows(self.records.now):
            self._put_off.add(number)
            return []
        actions: list[do.Action] = []
        for _ in range(count):
            self._last += 1
            self.connections[self._last] = ParkedConnection(number, key, self.records.now + CONNECT_S)
            actions.append(do.Park(self._last, number, key, key != self.records.policy.key))
        return actions

    def _close(self, number: int) -> list[do.Action]:
        del self.connections[number]
        return [do.Unpark(number)]

    def close(self) -> list[do.Action]:
        self._put_off.clear()
        return [action for number in list(self.connections) for action in self._close(number)]

    def deadline(self) -> float | None:
        if not self.connections and not self._put_off:
            return None
        pauses = (self._proxies[number].backoff.until for number in self._put_off)
        return earliest([*pauses, *(connection.until for connection in self.connections.values())])

    def tick(self) -> list[do.Action]:
        """Close connections whose time is over."""
        actions: list[do.Action] = []
        for number, connection in list(self.connections.items()):
            if connection.until is not None and self.records.now >= connection.until:
                answering = connection.state is ANSWERING
                why = "it sent half an answer" if answering else "it takes no connection"
                actions += [*self._close(number), *self._failed(connection, why)]
        return actions
