"""Every decision of the proxy, as plain synchronous code: an event goes in, actions come out.

A stream waits under a **name** until its other half says the same one. A client's name is the key it asks for. A
server's is its key; or, for one that offers its connections to the tracker itself, the match key; or, for one that the
proxy has to offer (:mod:`rpcsys.proxy.offers`), a match key that the proxy makes.

Rules kept here:

- A stream is joined once, or refused once, and never after it left.
- Without a tracker a key belongs to one server: a second is a duplicate, and so is a second client that waits, as with
  TVM's proxy. Streams of one ``-server=ID`` are no duplicates of each other, and clients of such a server stand in line.
- Of several streams of one server the newest is taken: an old one may have died without a word.
- Everybody's waiting ends: by a time, by its end, or with the proxy. How many wait is bounded, by address and in all.
- Nothing depends on a clock, on chance or on the order of a hash table.

Known weakness: names are found in a hash table, not compared in constant time; Python's hash is keyed anew in each process.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from rpcsys.proxy.events import (
    Action,
    Draining,
    Event,
    Join,
    Left,
    Opened,
    Pending,
    Refuse,
    Started,
    Tick,
    TrackerDown,
    TrackerUp,
)
from rpcsys.proxy.offers import Offers
from rpcsys.wire import keys
from rpcsys.wire.handshake import CLIENT, SERVER

DUPLICATE, MISMATCH = "duplicate", "mismatch"

EARLY_S = 3.0
"""With a tracker, how long a client with an unknown match key waits: the server's own stream may be on its way still,
behind a lost packet. TVM's proxy refuses at once."""


@dataclass
class Waiting:
    """A stream without its other half. ``until``: when its time is over, None for never."""

    conn: int
    address: str
    role: str
    key: str
    name: str
    server: str
    since: float
    until: float | None


class State:
    """The proxy between two events."""

    def __init__(self, started: Started) -> None:
        self.tracked = started.tracker
        self.draining = False
        self.waiting: dict[int, Waiting] = {}
        self.running: dict[int, str] = {}
        self.owned: Counter[str] = Counter()
        self.offers = Offers()
        self._started = started
        self._lines: dict[tuple[str, str], dict[int, Waiting]] = {}
        # All of one role have the same time to wait, so the first to come is the first whose time is over.
        self._timed: dict[str, dict[int, Waiting]] = {CLIENT: {}, SERVER: {}}
        self._addresses: Counter[str] = Counter()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, State) and vars(self) == vars(other)

    __hash__ = None  # type: ignore[assignment]

    @property
    def next_deadline(self) -> float | None:
        """When a `Tick` is wanted at the latest, None if nothing is due."""
        firsts = [next(iter(timed.values())) for timed in self._timed.values() if timed]
        return min((one.until for one in firsts if one.until is not None), default=None)

    def apply(self, event: Event) -> list[Action]:
        """Take an event in; what has to be done about it, in order."""
        if isinstance(event, Opened):
            return self._opened(event)
        if isinstance(event, Left):
            return self._left(event)
        if isinstance(event, Tick):
            return self._tick(event)
        if isinstance(event, TrackerUp):
            return self.offers.tracker_up(event, self._rename)
        if isinstance(event, TrackerDown):
            self.offers.tracker_down()
        elif isinstance(event, Pending):
            return self.offers.pending(event, self._rename)
        elif isinstance(event, Draining):
            return self._drain()
        return []

    def counts(self) -> Counter[tuple[str, str]]:
        """How many wait, by role and key."""
        return Counter((one.role, one.key) for one in self.waiting.values())

    # Streams come.

    def _opened(self, event: Opened) -> list[Action]:
        if self.draining:
            return [Refuse(event.conn, "", "the proxy is stopping")]
        if not event.key.isprintable():
            return [Refuse(event.conn, MISMATCH, "its key holds what cannot be printed")]
        return self._server(event) if event.role == SERVER else self._client(event)

    def _client(self, event: Opened) -> list[Action]:
        parked = self._lines.get((SERVER, event.key))
        if parked:
            server = next(reversed(parked.values()))
            self._forget(server.conn)
            self.offers.taken(server.conn)
            return [self._join(event.conn, server)]
        if self._lines.get((CLIENT, event.key)) and not (self.tracked or self.owned[event.key]):
            return [Refuse(event.conn, DUPLICATE, f"another client waits for {event.key!r}")]
        key = keys.split_match_key(event.key)[0] if self.tracked and ":" in event.key else event.key
        wait = EARLY_S if self.tracked else self._started.timeout_client
        return self._wait(_waiting(event, key, event.key, event.at + wait))

    def _server(self, event: Opened) -> list[Action]:
        proxied = self.tracked and not event.offered
        key = keys.split_match_key(event.key)[0] if event.offered and ":" in event.key else event.key
        if proxied and not keys.is_key(key):  # the tracker would hang up, and take everybody's offers with it
            return [Refuse(event.conn, MISMATCH, f"{key!r:.60} is no key that a tracker takes")]
        name = f"{key}:{event.fresh[0]}" if proxied else event.key
        others = self._lines.get((SERVER, name), {})
        if any(not event.server or one.server != event.server for one in others.values()):
            return [Refuse(event.conn, DUPLICATE, f"another server has {name!r}")]
        until = None if self.tracked else event.at + self._started.timeout_server
        server = _waiting(event, key, name, until)
        clients = self._lines.get((CLIENT, name))
        if clients:
            client = next(iter(clients))
            self._forget(client)
            return [self._join(client, server)]
        refused = self._wait(server)
        return refused or (self.offers.parked(event.conn, key, name) if proxied else [])

    def _wait(self, one: Waiting) -> list[Action]:
        """Have a stream wait, unless too many do."""
        reason = self._full(one.address)
        if reason:
            return [Refuse(one.conn, "", reason)]
        self.waiting[one.conn] = one
        self._lines.setdefault((one.role, one.name), {})[one.conn] = one
        self._addresses[one.address] += 1
        if one.until is not None:
            self._timed[one.role][one.conn] = one
        if one.server:
            self.owned[one.name] += 1
        return []

    def _full(self, address: str) -> str:
        """Why nobody from ``address`` may wait now, "" if somebody may."""
        if len(self.waiting) >= self._started.max_waiting:
            return f"{len(self.waiting)} streams wait already (--max-waiting)"
        count = self._addresses[address]
        if count >= self._started.max_waiting_per_address:
            return f"{count} streams of {address} wait already (--max-waiting-per-address)"
        return ""

    def _join(self, client: int, server: Waiting) -> Action:
        """A server's stream is taken. Its name stays its own while the pair lives."""
        self.running[server.conn] = server.name if server.server else ""
        if server.server:
            self.owned[server.name] += 1
        return Join(client, server.conn, server.key)

    # And go.

    def _left(self, event: Left) -> list[Action]:
        name = self.running.pop(event.conn, None)
        if name:
            self._disown(name)
        if self._forget(event.conn) is not None:
            self.offers.lost(event.conn)
        return []

    def _forget(self, conn: int) -> Waiting | None:
        """A stream waits no more."""
        one = self.waiting.pop(conn, None)
        if one is None:
            return None
        self._leave_line(one)
        self._timed[one.role].pop(conn, None)
        self._addresses[one.address] -= 1
        if not self._addresses[one.address]:
            del self._addresses[one.address]
        if one.server:
            self._disown(one.name)
        return one

    def _leave_line(self, one: Waiting) -> None:
        line = self._lines[one.role, one.name]
        del line[one.conn]
        if not line:
            del self._lines[one.role, one.name]

    def _disown(self, name: str) -> None:
        self.owned[name] -= 1
        if not self.owned[name]:
            del self.owned[name]

    def _rename(self, conn: int, name: str) -> None:
        """A server's stream waits under another name."""
        one = self.waiting[conn]
        self._leave_line(one)
        if one.server:
            self._disown(one.name)
            self.owned[name] += 1
        one.name = name
        self._lines.setdefault((one.role, name), {})[conn] = one

    def _tick(self, event: Tick) -> list[Action]:
        actions: list[Action] = []
        for timed in self._timed.values():
            while timed:
                one = next(iter(timed.values()))
                if one.until is None or one.until > event.at:
                    break
                self._forget(one.conn)
                waited = event.at - one.since
                actions.append(Refuse(one.conn, MISMATCH, f"nobody came for {one.name!r} in {waited:.0f} s"))
        return actions

    def _drain(self) -> list[Action]:
        self.draining = True
        gone = list(self.waiting)
        for conn in gone:
            self._forget(conn)
        self.offers = Offers()
        return [Refuse(conn, "", "the proxy is stopping") for conn in gone]


def _waiting(event: Opened, key: str, name: str, until: float | None) -> Waiting:
    return Waiting(event.conn, event.address, event.role, key, name, event.server, event.at, until)
