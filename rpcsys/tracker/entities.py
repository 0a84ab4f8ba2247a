"""The tracker's data classes: connections, offers, waiting requests, leases, servers and queues.

A dictionary with None as its values is an ordered set.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar

from rpcsys.tracker import transitions
from rpcsys.tracker.addresses import is_loopback
from rpcsys.tracker.events import Send
from rpcsys.tracker.transitions import GRANTED, OK, OURS, LeaseEvent, LeaseState, Reporting, ServerEvent, ServerState
from rpcsys.wire.keys import SERVER_PREFIX

if TYPE_CHECKING:
    from rpcsys.tracker.lab_view import Member
    from rpcsys.tracker.labels import DeviceFacts, Wants
    from rpcsys.wire.checks import Message
    from rpcsys.wire.control import DeployedModule

Port = TypeVar("Port")
PAST_LEASES = 64  # lengths of past leases kept for each key: only recent ones predict the next


class OfferTable(Protocol):
    """Offers that nobody has: `rpcsys.tracker.matching.OfferIndex`."""

    def remove(self, offer: SlotOffer) -> None:
        """Remove an offer that is there."""


@dataclass(slots=True)
class SlotOffer:
    """A match key that a server has offered: the right to one session there."""

    conn: int
    key: str
    match_key: str
    host: str
    port: int
    facts: DeviceFacts
    #: The free offers, or those reserved after a restart; one that is in neither, nor claimed, is withdrawn.
    index: OfferTable | None = field(default=None, compare=False, repr=False)
    claimed: int = 0  # the arrival of the request that has claimed it, 0 for none

    @property
    def free(self) -> bool:
        """Whether nobody has it, or has claimed it."""
        return self.index is not None


@dataclass(slots=True)
class WaitingRequest:
    """A request that waits for a device."""

    arrival: int  # a unique number that rises with time; ``arrival`` and ``since`` are the ticket's, if there is one
    conn: int
    id: int | None  # None for TVM's clients, which send none
    wants: Wants
    priority: float
    user: str
    since: float
    steps: int = 0  # how often its effective priority has risen
    limit_s: float | None = None
    count: int = 1
    ticket: str = ""  # TVM's clients are not told theirs
    recorded: bool = False  # whether the history has its ``waiting`` entry
    gathered: list[SlotOffer] = field(default_factory=list)  # offers that a request for several devices has claimed
    parked: str = ""  # why all others pass it, "" if they do not
    told: int = 0  # the last position that was sent to its client
    noted: str = ""  # the note that was sent with it
    timers: tuple[str, ...] = ()  # kinds of its deadlines (`rpcsys.tracker.records.Deadlines`)
    address: str = ""

    @property
    def key(self) -> str:
        """The key it wants, "" for any."""
        return self.wants.key

    @property
    def standing(self) -> float:
        """Its effective priority."""
        return self.priority + self.steps


class Sender(NamedTuple):
    """By what a request of TVM's, which presents no ticket, finds its place again after a restart."""

    address: str
    user: str
    key: str
    priority: float


@dataclass(slots=True)
class QueuePlace:
    """The place in the queue that a ticket keeps while its client is not connected."""

    ticket: str
    arrival: int
    since: float
    user: str
    wants: Wants
    sender: Sender | None = None  # of a request of TVM's
    absent: bool = False  # whether the settling after a restart has ended without its client


@dataclass(slots=True)
class LeaseRecord:
    """A lease: a match key that was granted."""

    lease: str
    epoch: int
    key: str
    server: int | None  # the server's connection, None while there is none
    server_name: str
    holder: int | None  # the client's connection, None once it has ended
    user: str
    address: str
    since: float
    limit_s: float | None
    how: Reporting = OURS
    state: LeaseState = GRANTED
    started_at: float | None = None
    polled_at: float | None = None  # when a TVM server last polled its match keys, which it does between sessions only
    reason: str = ""
    identity: str = ""  # its server's, "" for unknown
    told: int = 0  # the number of the message that announced it to the server
    arrival: int = 0  # its request's

    def move(self, event: LeaseEvent) -> None:
        """Change the state by an event."""
        self.state = transitions.LEASE_TRANSITIONS[self.state][event]

    def identified(self) -> dict[str, Any]:
        """The fields that its ``granted`` and ``over`` entries share."""
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
        """When its limit begins: at the session's start, or at the grant before there is a session."""
        return self.since if self.started_at is None else self.started_at

    @property
    def until(self) -> float | None:
        """The latest time at which it ends; None without a limit."""
        return None if self.limit_s is None else self.begun_at + self.limit_s


@dataclass(slots=True)
class Server:
    """The registration of one of our servers."""

    name: str
    key: str
    slots: int
    host: str
    port: int | None
    labels: dict[str, str]
    loads: tuple[str, ...]
    devices: tuple[str, ...]
    facts: DeviceFacts
    #: A digest of the server's secret identity, which stays the same across connections; "" if it sends none.
    identity: str = ""
    pin: str = ""  # of its connections for deployed modules; "" for none that are encrypted


class Use(NamedTuple):
    """What a member does with deployed modules; fields as those of `rpcsys.wire.control.ModuleUse`."""

    what: str
    modules: tuple[str, ...]
    member: str


class GivenSecret(NamedTuple):
    """A secret for a use, and until when the server takes it: 0 for one that an earlier run has given."""

    secret: str
    until: float


@dataclass(slots=True)
class GoneServer:
    """One of our servers whose connection has ended, and which has not registered again."""

    key: str
    host: str
    port: int | None
    identity: str
    since: float
    reason: str

    def is_now(self, server: Server) -> bool:
        """Whether ``server`` is this one under another name: it has its identity, or its address and port."""
        place = self.port is not None and (self.host, self.port) == (server.host, server.port)
        return place or bool(self.identity and self.identity == server.identity)


@dataclass(slots=True)
class Condition:
    """A server's health; it outlives the server's connection and the tracker's run."""

    trust: ServerState = OK  # OK, SET_ASIDE or ON_TRIAL
    drained: bool = False
    drained_by: str = field(default="", compare=False)  # the operator; "" if not known
    unhealthy: str = ""  # the problem that the server's own check found
    silent: str = ""  # a sentence while the server does not answer heartbeats
    slow: str = ""  # a sentence while its canary sets it aside
    failures: int = 0  # in a row
    reason: str = ""
    pause_s: float = 0.0  # the length of the last pause, 0 if there was none since a session worked
    until: float | None = None  # when the pause ends
    since: float = field(default=0.0, compare=False)  # when its offers were withdrawn

    def move(self, event: ServerEvent) -> None:
        """Change the state by an event."""
        self.trust = transitions.SERVER_TRANSITIONS[self.trust][event]

    @property
    def problem(self) -> str:
        """Why it is unhealthy now, by its heartbeats, its own check or its canary; "" if it is healthy."""
        return self.silent or self.unhealthy or self.slow

    @property
    def open(self) -> bool:
        """Whether its offers can be granted."""
        return self.state in transitions.HEALTHY

    @property
    def state(self) -> ServerState:
        """The state that is shown to people."""
        if self.drained:
            return transitions.DRAINED
        return transitions.UNHEALTHY if self.problem and self.trust is not transitions.SET_ASIDE else self.trust


@dataclass(slots=True)
class Peer:
    """A connection, with everything that ends with it."""

    conn: int
    address: str  # the peer's own address, also behind proxies
    local: str  # the tracker's address to which it connected
    user: str = ""
    member: Member | None = None  # who it has proved to speak for, in a lab
    report: tuple[str, str, int] | None = None  # a TVM server's key, host and port
    server: Server | None = None
    name: str = ""  # the server's unique name, "" for a client
    asked: int = 0  # how many messages with a number the tracker has sent to it
    heard: int = 0  # the number of the last message that it has answered with "ok"
    keepalive: bool = False  # whether it answers heartbeats
    unanswered: int = 0  # heartbeat checks since its last answer
    gate: tuple[str, int] | None = None  # the address of its outermost proxy, if the proxies are trusted
    proxies: int = 0
    relayed: bool = False  # whether a standby relays it
    since: float = 0.0  # a server: when it registered, or its last lease ended
    fresh: bool = True  # whether it has sent nothing but `Via`
    deployed: tuple[DeployedModule, ...] = ()
    deployed_key: str = ""  # the key under which a proxy finds its modules
    admitted: dict[Use, GivenSecret] = field(default_factory=dict)  # to its modules; the last that was asked for last
    serves: dict[str, None] = field(default_factory=dict)
    offers: dict[str, SlotOffer] = field(default_factory=dict)
    waiting: dict[int, WaitingRequest] = field(default_factory=dict)
    requests: dict[int, WaitingRequest] = field(default_factory=dict)
    serving: dict[str, LeaseRecord] = field(default_factory=dict)
    holding: dict[str, LeaseRecord] = field(default_factory=dict)

    @property
    def who(self) -> str:
        """The user whose device time it uses. TVM's clients send none, so their address takes its place."""
        return self.user or self.address

    @property
    def slots(self) -> int:
        """How many sessions it serves at once; for a TVM server, its offers and leases."""
        return len(self.offers) + len(self.serving) if self.server is None else self.server.slots

    def fits(self, wants: Wants) -> bool:
        """Whether it can serve a request, whatever its condition."""
        if wants.bare:
            return wants.key in self.serves
        return self.server is not None and wants.fit(self.server.facts)

    def slots_for(self, wants: Wants) -> int:
        """How many sessions it serves at once for a request that it fits."""
        if self.server is not None:
            return self.server.slots
        offered = sum(wants.fit(offer.facts) for offer in self.offers.values())
        return offered + sum(lease.key == wants.key for lease in self.serving.values())

    @property
    def is_tvm_proxy(self) -> bool:
        """Whether it is one of TVM's proxies, which do not name the server of an offer."""
        return (self.report is not None and self.report[0].startswith(SERVER_PREFIX + "proxy[")) or len(self.serves) > 1

    def reached_at(self, host: str | None, port: Port) -> tuple[str, int | Port]:
        """The address for its clients, from the ``host`` and ``port`` that it has sent, or of its proxy."""
        at, number = self.gate or (self.address, port)
        return host or at, number

    def for_modules(self, viewer: Peer) -> dict[str, Any]:
        """The place of a server's deployed modules: host, port, and the key that addresses the server at a proxy."""
        assert self.server is not None
        host, port = self.gate or (self.server.host, self.server.port)
        return {"host": viewer.sees(host), "port": port, "key": self.deployed_key}

    def sees(self, host: str) -> str:
        """``host`` as the peer can reach it. For a server on the tracker's machine that is the tracker's address."""
        if host == self.address or not is_loopback(host) or is_loopback(self.address):
            return host
        return self.local

    def ask(self) -> int:
        """The number of the tracker's next message to it."""
        self.asked += 1
        return self.asked

    def order(self, message: Message) -> Send:
        """Send it a message."""
        return Send(self.conn, message.to_json())

    def done(self, asked: int, **fields: Any) -> Send:
        """Answer the message with the id ``asked``."""
        return Send(self.conn, {**fields, "id": asked, "ok": True})  # `Answer` as it is on the wire

    def refuse(self, asked: int, message: str, error: str = "BadRequest") -> Send:
        """Refuse the message with the id ``asked``."""
        return Send(self.conn, {"id": asked, "ok": False, "error": error, "message": message})


@dataclass(slots=True)
class Queue:
    """One key ("" for requests without one): its servers, waiting requests and leases."""

    key: str
    servers: dict[int, None] = field(default_factory=dict)
    waiting: dict[int, WaitingRequest] = field(default_factory=dict)
    leases: dict[str, LeaseRecord] = field(default_factory=dict)
    lengths: deque[float] = field(default_factory=lambda: deque(maxlen=PAST_LEASES))  # of past leases, in seconds
    left_at: float = float("-inf")  # when the last server left
