"""What can happen to a device server. What it may do about it is in :mod:`rpcsys.server.supervisor.actions`.

Events go into :class:`rpcsys.server.supervisor.state.State`, actions come out. All are frozen, hold nothing but numbers, text and
tuples, and turn into JSON and back (:func:`to_json`, :func:`from_json`): a log of events replays to the same state.

``now`` is a monotonic clock in seconds. ``conn``, ``session`` and ``child`` are numbers given once and
never again: connections by the service, sessions and children by the state.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from rpcsys.server.supervisor.actions import Action


@dataclass(frozen=True)
class Event:
    """Something happened at ``now``."""

    now: float


@dataclass(frozen=True)
class Tick(Event):
    """Time went by."""


@dataclass(frozen=True)
class Accepted(Event):
    """A stranger connected, and has said nothing yet."""

    conn: int
    peer: str


@dataclass(frozen=True)
class Opened(Event):
    """A connection has said its greeting (see :mod:`rpcsys.wire.handshake`)."""

    conn: int
    peer: str
    role: str
    key: str
    session: str | None = None
    serve: str | None = None
    timeout_s: float | None = None


@dataclass(frozen=True)
class Broken(Event):
    """A connection ended or broke the protocol before its greeting was whole; ``why`` is empty if it left."""

    conn: int
    why: str = ""


@dataclass(frozen=True)
class HungUp(Event):
    """A client with a session, or waiting for one, is gone."""

    conn: int


@dataclass(frozen=True)
class ZygoteUp(Event):
    """The zygote has imported what it should, and forks when asked.

    ``shared``: why sessions share namespaces with all else on the board; empty when they have their own.
    """

    shared: str = ""


@dataclass(frozen=True)
class Importing(Event):
    """A zygote, or the child ``child`` of a server that does not fork, is about to import ``what``."""

    what: str
    child: int | None = None


@dataclass(frozen=True)
class ZygoteDown(Event):
    """The zygote is dead, and every process below it too but for `Unkilled` ones; ``cleaned`` names what had to be killed."""

    cleaned: tuple[str, ...] = ()


@dataclass(frozen=True)
class Unkilled(Event):
    """Processes, by name, that have been seen alive seconds after a SIGKILL; none: those have ended.

    ``child``: whose they are, if its own process is one; its death says that they have ended.
    """

    names: tuple[str, ...]
    child: int | None = None


@dataclass(frozen=True)
class Failed(Event):
    """A zygote or a child could not do its imports; ``why`` is one line for a person."""

    why: str


@dataclass(frozen=True)
class ChildReady(Event):
    """A child waits for a session."""

    child: int


@dataclass(frozen=True)
class LimitAsked(Event):
    """The client of a child's session asked for a time limit of its own."""

    child: int
    limit_s: float


@dataclass(frozen=True)
class SessionOpened(Event):
    """The process of a child's session has greeted its client, and its client it."""

    child: int


@dataclass(frozen=True)
class ChildDone(Event):
    """A child's session is over, and the child is about to exit.

    ``removed``: shared memory and the like that will vanish with its namespaces.
    """

    child: int
    outcome: str
    removed: tuple[str, ...] = ()


@dataclass(frozen=True)
class MemoryExceeded(Event):
    """The processes of a child's session have more memory than a session may."""

    child: int


@dataclass(frozen=True)
class CpusLeft(Event):
    """Threads of a child's session might run on CPUs that its slot has not; they are set back."""

    child: int


@dataclass(frozen=True)
class ChildDead(Event):
    """A child and all its descendants are dead, but for `Unkilled` ones.

    ``status``: exit status, or minus the signal that killed it; ``cleaned``: names of descendants that had
    to be killed; ``removed``: shared memory and the like that a
    killed child had; ``starved``: it had nearly all the memory that it may have when it died.
    """

    child: int
    status: int
    cleaned: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    starved: bool = False


@dataclass(frozen=True)
class StartFailed(Event):
    """A session could not be started, ``why`` in one line."""

    session: int
    why: str


@dataclass(frozen=True)
class Removed(Event):
    """The directory of a session is gone, and its client's connection is closed.

    ``removed``: what else of it had to be removed; ``left``: what could not be, and why.
    """

    session: int
    removed: tuple[str, ...] = ()
    left: tuple[str, ...] = ()


@dataclass(frozen=True)
class LinkUp(Event):
    """A tracker answers; ``ours`` says whether it speaks more than TVM's codes."""

    ours: bool


@dataclass(frozen=True)
class LinkDown(Event):
    """The tracker cannot be reached, or the connection to it ended.

    ``jitter``, in [0, 1), shortens the pause before the next try; ``none``: a proxy says that it has none of ours.
    """

    why: str
    jitter: float = 0.0
    none: bool = False


@dataclass(frozen=True)
class Registered(Event):
    """The tracker has taken our registration."""


@dataclass(frozen=True)
class Offered(Event):
    """A new match key was sent to the tracker."""

    matchkey: str


@dataclass(frozen=True)
class Pending(Event):
    """TVM's tracker lists the match keys of ours that it has not handed out."""

    matchkeys: tuple[str, ...]


@dataclass(frozen=True)
class Taken(Event):
    """Our tracker has handed out a match key. ``user`` is a claim, ``address`` is where it came from."""

    lease: str
    epoch: int
    matchkey: str
    user: str
    address: str
    limit_s: float | None = None


@dataclass(frozen=True)
class Limit(Event):
    """Our tracker has renewed a lease: it ends ``limit_s`` from now (None: not by itself)."""

    lease: str
    epoch: int
    limit_s: float | None = None


@dataclass(frozen=True)
class EndLease(Event):
    """Our tracker takes a lease back; ``reason`` may be :data:`rpcsys.wire.control.UNUSED`."""

    lease: str
    epoch: int
    reason: str


@dataclass(frozen=True)
class Confirmed(Event):
    """Our tracker has taken in that a lease is over."""

    lease: str
    epoch: int


@dataclass(frozen=True)
class Stop(Event):
    """Someone wants the server to stop. The second time: now. ``patient``: when its sessions have ended by themselves."""

    patient: bool = False


def to_json(item: Event | Action) -> dict[str, Any]:
    """``{"is": class, field: value…}``, made of what JSON has."""
    return {"is": type(item).__name__, **dataclasses.asdict(item)}


def from_json(plain: dict[str, Any]) -> Any:
    """The inverse of :func:`to_json`, also after a trip through JSON text. KeyError for a class unknown."""
    kinds = {kind.__name__: kind for root in (Event, Action) for kind in root.__subclasses__()}
    return kinds[plain["is"]](**{name: _tuples(value) for name, value in plain.items() if name != "is"})


def _tuples(value: Any) -> Any:
    return tuple(_tuples(item) for item in value) if isinstance(value, (list, tuple)) else value
