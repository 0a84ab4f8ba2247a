"""What a tracker remembers: connections, offers, requests that wait, leases, servers, and what is known of a key."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

from rpcsys.tracker import lease_states, server_states
from rpcsys.tracker.lease_states import GRANTED, OURS, LeaseEvent, LeaseState, Reporting
from rpcsys.tracker.server_states import DRAINED, OK, SET_ASIDE, UNHEALTHY, ServerEvent, ServerState

if TYPE_CHECKING:
    from rpcsys.tracker.labels import Facts, Wants
    from rpcsys.wire.control import DeployedModule

Port = TypeVar("Port")

PAST_LEASES = 64
"""Lengths of past leases kept for each key: what was usual last month says little."""


@dataclass(slots=True)
class Offer:
    """A match key that a server holds ready: the right to one session there.

    ``free``: in the pool; ``claimed``: the arrival of the request that gathers it, 0 for none. Neither: held back.
    """

    conn: int
    key: str
    match_key: str
    host: str
    port: int
    facts: Facts
    free: bool = False
    claimed: int = 0


@dataclass(slots=True)
class Waiting:
    """A request without a device. ``id`` is None for TVM's clients, which give none.

    ``since`` and ``arrival`` are those of its ticket, ``recorded`` says whether anybody was told of that; ``steps``
    is how often it has risen. ``gathered`` are the offers that a request for several has claimed; one that is
    ``parked``, for the reason there, lets all others pass. ``told`` is the last position told; ``timers`` what may
    be due of it (`rpcsys.tracker.deadlines`).
    """

    arrival: int
    conn: int
    id: int | None
    wants: Wants
    priority: float
    user: str
    since: float
    steps: int = 0
    limit_s: float | None = None
    count: int = 1
    ticket: str | None = None
    recorded: bool = False
    gathered: list[Offer] = field(default_factory=list)
    parked: str = ""
    told: int = 0
    timers: tuple[str, ...] = ()
    address: str = ""

    @property
    def key(self) -> str:
        """The key it wants, "" for any."""
        return self.wants.key

    @property
    def standing(self) -> float:
        """Its effective priority."""
        return self.priority + self.steps


@dataclass(slots=True)
class Place:
    """The place in the queue of a ticket whose client is away."""

    arrival: int
    since: float
    user: str
    wants: Wants


@dataclass(slots=True)
class Settling:
    """What an earlier run knew and this one has not seen yet; ``arrival`` is the last that its records have."""

    servers: dict[str, None] = field(default_factory=dict)
    tickets: dict[str, None] = field(default_factory=dict)
    arrival: int = 0


@dataclass(slots=True)
class Lease:
    """A match key that was handed out. ``server`` and ``holder`` are connections; both may have left.

    ``polled_at``: when one of TVM's servers last asked for match keys: it does not during a session. ``identity``
    is its server's, "" for unknown; ``told`` the number of the question that told the server of it.
    """

    lease: str
    epoch: int
    key: str
    server: int | None
    server_name: str
    holder: int | None
    user: str
    address: str
    since: float
    limit_s: float | None
    how: Reporting = OURS
    state: LeaseState = GRANTED
    started_at: float | None = None
    polled_at: float | None = None
    reason: str = ""
    identity: str = ""
    told: int = 0

    def move(self, event: LeaseEvent) -> None:
        """Something happened to it."""
        self.state = lease_states.TRANSITIONS[self.state][event]

    @property
    def opened(self) -> bool:
        """Whether its session was opened."""
        return self.state in lease_states.IN_SESSION

    @property
    def until(self) -> float | None:
        """When it is over at the latest; None if it is not limited. The limit counts from the session's opening."""
        begun = self.since if self.started_at is None else self.started_at
        return None if self.limit_s is None else begun + self.limit_s


@dataclass(slots=True)
class Server:
    """How one of our servers has registered itself.

    ``identity`` is a digest of the one it says, which nobody else knows: that one is its own through broken connections
    and restarts of the tracker; "" if it says none.
    """

    name: str
    key: str
    slots: int
    host: str
    port: int | None
    labels: dict[str, str]
    loads: tuple[str, ...]
    facts: Facts
    identity: str = ""


@dataclass(slots=True)
class Condition:
    """What is wrong with a server; it outlives the server's connection, and the tracker's run.

    ``trust``: whether it was set aside; ``pause_s`` for how long the last time, 0 if it never was since it last worked.
    ``unhealthy``: its own word; ``silent``: why it is taken to hang.
    """

    trust: ServerState = OK
    drained: bool = False
    unhealthy: str = ""
    silent: str = ""
    failures: int = 0
    reason: str = ""
    pause_s: float = 0.0
    until: float | None = None

    def move(self, event: ServerEvent) -> None:
        """Something happened to it."""
        self.trust = server_states.TRANSITIONS[self.trust][event]

    @property
    def problem(self) -> str:
        """What is wrong with it at this moment, whether or not it says so itself."""
        return self.silent or self.unhealthy

    @property
    def open(self) -> bool:
        """Whether it may be given to anybody."""
        return self.state in server_states.HEALTHY

    @property
    def state(self) -> ServerState:
        """What is shown of it."""
        if self.drained:
            return DRAINED
        if self.problem and self.trust is not SET_ASIDE:
            return UNHEALTHY
        return self.trust

    @property
    def remarkable(self) -> bool:
        """Whether there is anything to remember."""
        return self != Condition()


@dataclass(slots=True)
class Peer:
    """A connection, with all that vanishes when it ends.

    ``local`` is the address at which it reached the tracker; ``report`` what a TVM server calls itself, and where
    it is; ``name`` what the tracker calls a server; ``asked`` counts the questions that the tracker has put to it,
    and ``heard`` is the last that it has answered well. ``keepalive``: it answers when it is asked whether it
    lives; ``unanswered``: how often it has been looked at since it was asked. ``address`` is its own also if it
    came through proxies: then ``gate`` is where clients find the outermost of them, and ``proxies`` how many there
    are; without a gate, they are not believed. ``deployed``: its modules, found at a proxy with ``deployed_key``.
    ``fresh``: nothing else was said yet. Dictionaries stand for ordered sets.
    """

    conn: int
    address: str
    local: str
    user: str = ""
    report: tuple[str, str, int] | None = None
    server: Server | None = None
    name: str = ""
    asked: int = 0
    heard: int = 0
    keepalive: bool = False
    unanswered: int = 0
    gate: tuple[str, int] | None = None
    proxies: int = 0
    fresh: bool = True
    deployed: tuple[DeployedModule, ...] = ()
    deployed_key: str = ""
    serves: dict[str, None] = field(default_factory=dict)
    offers: dict[str, Offer] = field(default_factory=dict)
    waiting: dict[int, Waiting] = field(default_factory=dict)
    requests: dict[int, Waiting] = field(default_factory=dict)
    serving: dict[str, Lease] = field(default_factory=dict)
    holding: dict[str, Lease] = field(default_factory=dict)

    @property
    def who(self) -> str:
        """Whose device time it uses: TVM's clients send no user, so their address stands for one."""
        return self.user or self.address

    def reached_at(self, host: str | None, port: Port) -> tuple[str, int | Port]:
        """Where clients find what it serves; ``host`` and ``port`` are its own words."""
        at, number = self.gate or (self.address, port)
        return host or at, number

    def ask(self) -> int:
        """The number of the tracker's next question to it."""
        self.asked += 1
        return self.asked

    @property
    def slots(self) -> int:
        """How many sessions it serves at once, as far as it is known."""
        return len(self.offers) + len(self.serving) if self.server is None else self.server.slots


@dataclass(slots=True)
class Queue:
    """One key ("" for requests without): who serves it, waits for it and holds it. ``left_at``: when a
    server left last.
    """

    key: str
    servers: dict[int, None] = field(default_factory=dict)
    waiting: dict[int, Waiting] = field(default_factory=dict)
    leases: dict[str, Lease] = field(default_factory=dict)
    lengths: deque[float] = field(default_factory=lambda: deque(maxlen=PAST_LEASES))
    left_at: float = float("-inf")
