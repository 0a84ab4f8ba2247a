"""The events and actions of the tracker's state. An instance never changes.

``at``: seconds since 1970, which never run backwards; ``conn``: the number of a connection, never used twice.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from rpcsys.tracker.lab_view import LabView, Member
from rpcsys.wire.tracker import ToTracker

# These classes are not frozen: a frozen instance takes three times as long to make, and a busy tracker makes a hundred
# thousand a second.
#
# Events.


@dataclass(slots=True)
class TrackerStarted:
    """The tracker starts."""

    at: float
    instance: str  # random, so that names differ from all other runs'
    stop_key: str | None = None
    limits: Mapping[str, float] = field(default_factory=dict)  # by key, the longest session in seconds
    proxy_from: tuple[str, ...] = ()  # addresses and networks of trusted proxies; empty: this machine
    lab: LabView | None = None
    secret: str = ""  # random: what is made of it nobody can guess
    term: int = 0  # that of the leader that it is; 0: it is no replica
    canary_aside: bool = False  # whether boards that their canaries find slow are not offered


@dataclass(slots=True)
class HistoryEntry:
    """An entry for history, metrics and log: an action, and part of `Restored`. By ``kind``, ``details`` has:

    =============  ===============================================================================================
    ``granted``    a lease begins: lease, epoch, key, server, user, address, limit_s, waited_s, priority, arrival
                   (the request's), how (`rpcsys.tracker.transitions.Reporting`), identity (of the server)
    ``begun``      its session was opened: lease, peer
    ``limited``    it was renewed: lease, limit_s (from its beginning, None for no limit)
    ``over``       it is over: lease, epoch, key, server, user, address, since, held_s, outcome, reason (a
                   sentence for people), fault (the server's own, else ``""``), cleaned
    ``waiting``    a request waits: ticket, arrival, key ("" for any), labels, count, priority, user, address,
                   since; tvm (true) for one of TVM's, whose client is not told its ticket: it is recorded
                   only if it waits for a moment
    ``waited``     its ticket has no place any more: ticket, waited_s, why (``granted``, ``cancelled``,
                   ``timeout``, ``unknown``, ``left``)
    ``absent``     its client was not back when the settling after a restart ended: ticket; ``back``: ticket
    ``unheard``    the lease that it was granted is over before its client can have heard of that: request (its arrival,
                   as text), user; ``heard``: the client is back, or has not come in time: request
    ``joined``     a server has registered: server, key, address, port, slots, labels, how (``ours``, ``silent``)
    ``gone``       its connection has ended: server, reason
    ``set_aside``  sessions in a row failed: server, reason, failures, pause_s, until (seconds since 1970)
    ``trusted``    a session worked after that: server
    ``unhealthy``  it failed its health check or does not answer: server, reason; ``healthy``: server
    ``slow``       its canary finds it slow: server, reason; ``well``: server
    ``canary``     what is known of its speed: server, key, test (`rpcsys.tracker.speed`), reason, over, apart;
                   ``unlearnt``: dropped, as too many others are known: server
    ``not_named``  a proxy is not trusted: address (its own), reason (a sentence for people)
    ``drained``    an operator drained it: server, by; ``enabled``: undoes that and a `set_aside`
    ``forgotten``  its health is dropped, as it or many others have been gone for long: server
    =============  ===============================================================================================
    """

    at: float
    kind: str
    details: Mapping[str, Any]


@dataclass(slots=True)
class Restored:
    """The last run's records, right after `TrackerStarted`: what still holds (`rpcsys.tracker.batch.LiveState`), and
    every ``over`` of the last ten hours (device time halves every hour) with key, user, since, held_s and outcome. The
    entries are in the order in which they were made. ``epoch``, ``arrivals``: the highest in a journal of replicas.
    """

    at: float
    entries: tuple[HistoryEntry, ...]
    epoch: int = 0
    arrivals: int = 0


@dataclass(slots=True)
class Connected:
    """A peer at ``address`` has sent the magic; ``local`` is the tracker's address to which it connected."""

    at: float
    conn: int
    address: str
    local: str


@dataclass(slots=True)
class Authenticated:
    """The peer has proved to speak for a member; `Received` of its hello follows."""

    at: float
    conn: int
    member: Member


@dataclass(slots=True)
class LabChanged:
    """The lab's rules, pins or members have changed."""

    at: float
    lab: LabView


@dataclass(slots=True)
class Revoked:
    """A membership has ended: its connections and leases are to end, too."""

    at: float
    name: str


@dataclass(slots=True)
class ReplicasChanged:
    """The replicas of this tracker are those at ``addresses`` now, which relay connections while they do not lead.

    ``text``: the replicas in a line for people.
    """

    at: float
    addresses: tuple[str, ...]
    text: str = ""


@dataclass(slots=True)
class SitesChanged:
    """Other sites can be reached, or can be reached no longer: ``text`` is a line about all of them for people."""

    at: float
    text: str


@dataclass(slots=True)
class Received:
    """A well-formed message has arrived."""

    at: float
    conn: int
    message: ToTracker


@dataclass(slots=True)
class Disconnected:
    """The connection has ended."""

    at: float
    conn: int


@dataclass(slots=True)
class TimePassed:
    """``TrackerState.next_deadline`` is reached."""

    at: float


# Actions; `HistoryEntry` is one, too.


@dataclass(slots=True)
class Send:
    """Send ``message`` (plain JSON) over ``conn``."""

    conn: int
    message: Any


@dataclass(slots=True)
class Close:
    """Close a connection. Its `Disconnected` follows."""

    conn: int
    reason: str


@dataclass(slots=True)
class Refused:
    """Record that a peer may not do what it has asked for: the operation, what it is about, and why."""

    at: float
    who: str
    address: str
    op: str
    on: str
    why: str


@dataclass(slots=True)
class Allowed:
    """Record the right that a peer gets, or what it does by one: fields as those of `Refused`."""

    at: float
    who: str
    address: str
    op: str
    on: str


@dataclass(slots=True)
class StopTracker:
    """Stop the tracker, after everything unsent is sent."""


OfLab = Authenticated | LabChanged | Revoked
OfOthers = ReplicasChanged | SitesChanged
Event = TrackerStarted | Restored | Connected | OfLab | OfOthers | Received | Disconnected | TimePassed
Action = Send | Close | Refused | Allowed | StopTracker | HistoryEntry
