"""What a tracker remembers: connections, offers, requests that wait, leases, servers, and what is known of a key.

Dictionaries stand for ordered sets.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from rpcsys.tracker import transitions
from rpcsys.tracker.addresses import is_loopback
from rpcsys.tracker.events import Send
from rpcsys.tracker.transitions import GRANTED, OK, OURS, LeaseEvent, LeaseState, Reporting, ServerEvent, ServerState
from rpcsys.wire.keys import SERVER_PREFIX

if TYPE_CHECKING:
    from rpcsys.tracker.labels import DeviceFacts, Wants
    from rpcsys.wire.checks import Message
    from rpcsys.wire.control import DeployedModule

Port = TypeVar("Port")
PAST_LEASES = 64  # lengths of past leases kept for each key: what was usual last month says little


@dataclass(slots=True)
class SlotOffer:
    """A match key that a server holds ready: the right to one session there."""

    conn: int
    key: str
    match_key: str
    host: str
    port: int
    facts: DeviceFacts
    free: bool = False  # in the index; one that is neither free nor claimed is held back
    claimed: int = 0  # the arrival of the request that gathers it, 0 for none


@dataclass(slots=True)
class WaitingRequest:
    """A request without a device."""

    arrival: int  # its own, or that of its ticket, as ``since`` is
    conn: int
    id: int | None  # None for TVM's clients, which give none
    wants: Wants
    priority: float
    user: str
    since: float
    steps: int = 0  # how often it has risen
    limit_s: float | None = None
    count: int = 1
    ticket: str | None = None
    recorded: bool = False  # whether there is a history entry of its beginning
    gathered: list[SlotOffer] = field(default_factory=list)  # claimed by a request for several
    parked: str = ""  # why it lets all others pass
    told: int = 0  # the last position told
    timers: tuple[str, ...] = ()  # what may be due of it (`rpcsys.tracker.records.Deadlines`)
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
class QueuePlace:
    """The place in the queue of a ticket whose client is away."""

    arrival: int
    since: float
    user: str
    wants: Wants


@dataclass(slots=True)
class Settling:
    """What an earlier run knew and this one has not seen yet."""

    servers: dict[str, None] = field(default_factory=dict)
    tickets: dict[str, None] = field(default_factory=dict)
    arrival: int = 0  # the last that its history has


@dataclass(slots=True)
class LeaseRecord:
    """A match key that was handed out."""

    lease: str
    epoch: int
    key: str
    server: int | None  # its connection, None while it is away
    server_name: str
    holder: int | None  # the client's connection, None once it is gone
    user: str
    address: str
    since: float
    limit_s: float | None
    how: Reporting = OURS
    state: LeaseState = GRANTED
    started_at: float | None = None
    polled_at: float | None = None  # when one of TVM's servers last asked for match keys: not during a session
    reason: str = ""
    identity: str = ""  # its server's, "" for unknown
    told: int = 0  # the number of the question that told the server of it

    def move(self, event: LeaseEvent) -> None:
        """Something happened to it."""
        self.state = transitions.LEASE_TRANSITIONS[self.state][event]

    def identified(self) -> dict[str, Any]:
        """What history entries of its beginning and its end have in common."""
        return {
            "lease": self.lease,
            "epoch": self.epoch,
            "key": self.key,
            "server": self.server_name,
            "user": self.user,
            "address": self.address,
        }

    @property
    def opened(self) -> bool:
        """Whether its session was opened."""
        return self.state in transitions.IN_SESSION

    @property
    def begun_at(self) -> float:
        """When its limit begins to count: with the session, and until then with the grant."""
        return self.since if self.started_at is None else self.started_at

    @property
    def until(self) -> float | None:
        """When it is over at the latest; None if it is not limited."""
        return None if self.limit_s is None else self.begun_at + self.limit_s


@dataclass(slots=True)
class Server:
    """How one of our servers has registered itself."""

    name: str
    key: str
    slots: int
    host: str
    port: int | None
    labels: dict[str, str]
    loads: tuple[str, ...]
    facts: DeviceFacts
    #: A digest of what it calls itself and nobody else knows: its own through broken connections and restarts of the
    #: tracker; "" if it says nothing.
    identity: str = ""


@dataclass(slots=True)
class Condition:
    """What is wrong with a server; it outlives the server's connection, and the tracker's run."""

    trust: ServerState = OK  # whether it was set aside
    drained: bool = False
    unhealthy: str = ""  # its own word
    silent: str = ""  # why it is taken to hang
    failures: int = 0
    reason: str = ""
    pause_s: float = 0.0  # of the last time, 0 if it was never set aside since it last worked
    until: float | None = None

    def move(self, event: ServerEvent) -> None:
        """Something happened to it."""
        self.trust = transitions.SERVER_TRANSITIONS[self.trust][event]

    @property
    def problem(self) -> str:
        """What is wrong with it at this moment, whether or not it says so itself."""
        return self.silent or self.unhealthy

    @property
    def open(self) -> bool:
        """Whether it may be given to anybody."""
        return self.state in transitions.HEALTHY

    @property
    def state(self) -> ServerState:
        """What is shown of it."""
        if self.drained:
            return transitions.DRAINED
        return transitions.UNHEALTHY if self.problem and self.trust is not transitions.SET_ASIDE else self.trust


@dataclass(slots=True)
class Peer:
    """A connection, with all that vanishes when it ends."""

    conn: int
    address: str  # its own, also if it came through proxies
    local: str  # the address at which it reached the tracker
    user: str = ""
    report: tuple[str, str, int] | None = None  # what a TVM server calls itself, and where it is
    server: Server | None = None
    name: str = ""  # what the tracker calls a server
    asked: int = 0  # questions that the tracker has put to it
    heard: int = 0  # the last question that it has answered well
    keepalive: bool = False  # whether it answers heartbeats
    unanswered: int = 0  # how often it has been checked since it was asked
    gate: tuple[str, int] | None = None  # where clients find the outermost of its proxies, if they are believed
    proxies: int = 0
    fresh: bool = True  # nothing else was said yet
    deployed: tuple[DeployedModule, ...] = ()
    deployed_key: str = ""  # with which its modules are found at a proxy
    serves: dict[str, None] = field(default_factory=dict)
    offers: dict[str, SlotOffer] = field(default_factory=dict)
    waiting: dict[int, WaitingRequest] = field(default_factory=dict)
    requests: dict[int, WaitingRequest] = field(default_factory=dict)
    serving: dict[str, LeaseRecord] = field(default_factory=dict)
    holding: dict[str, LeaseRecord] = field(default_factory=dict)

    @property
    def who(self) -> str:
        """Whose device time it uses: TVM's clients send no user, so their address stands for one."""
        return self.user or self.address

    @property
    def slots(self) -> int:
        """How many sessions it serves at once, as far as it is known."""
        return len(self.offers) + len(self.serving) if self.server is None else self.server.slots

    @property
    def is_tvm_proxy(self) -> bool:
        """Whether it is one of TVM's proxies, which offers for servers that it does not tell apart."""
        return (self.report is not None and self.report[0].startswith(SERVER_PREFIX + "proxy[")) or len(self.serves) > 1

    def reached_at(self, host: str | None, port: Port) -> tuple[str, int | Port]:
        """Where clients find what it serves; ``host`` and ``port`` are its own words."""
        at, number = self.gate or (self.address, port)
        return host or at, number

    def sees(self, host: str) -> str:
        """``host`` as the peer can reach it: a server on the tracker's own machine is where the tracker is."""
        if host == self.address or not is_loopback(host) or is_loopback(self.address):
            return host
        return self.local

    def ask(self) -> int:
        """The number of the tracker's next question to it."""
        self.asked += 1
        return self.asked

    def order(self, message: Message) -> Send:
        """Have it told something."""
        return Send(self.conn, message.to_json())

    def done(self, asked: int, **fields: Any) -> Send:
        """The final answer to what it asked."""
        return Send(self.conn, {**fields, "id": asked, "ok": True})  # what `Answer` is on the wire

    def refuse(self, asked: int, message: str, error: str = "BadRequest") -> Send:
        """The final answer to what cannot be."""
        return Send(self.conn, {"id": asked, "ok": False, "error": error, "message": message})


@dataclass(slots=True)
class Queue:
    """One key ("" for requests without): who serves it, waits for it and holds it."""

    key: str
    servers: dict[int, None] = field(default_factory=dict)
    waiting: dict[int, WaitingRequest] = field(default_factory=dict)
    leases: dict[str, LeaseRecord] = field(default_factory=dict)
    lengths: deque[float] = field(default_factory=lambda: deque(maxlen=PAST_LEASES))  # of past leases, in seconds
    left_at: float = float("-inf")  # when a server left last
