"""What can happen to a device server. What it may do about it is in :mod:`rpcsys.server.supervisor.actions`.

A log of events, each with its time, replays to the same state and the same actions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rpcsys.server.supervisor.actions import Frozen

if TYPE_CHECKING:
    from rpcsys.server.models.store import Version


class Event(Frozen):
    """Something happened at ``now``, in seconds of a monotonic clock."""

    now: float


class ChildReport(Event):
    """What a child has said, or what is seen of it."""

    child: int


class Tick(Event):
    """Time went by."""


class StopAsked(Event):
    """Someone wants the server to stop. The second time: now. ``patient``: when its sessions have ended by themselves."""

    patient: bool = False


# Clients


class Accepted(Event):
    """A client connected, and has said nothing yet."""

    conn: int
    peer: str


class Opened(Event):
    """A client has said its greeting (:mod:`rpcsys.wire.handshake`); ``parked``: the connection that waited for it at a proxy."""

    conn: int
    peer: str
    role: str
    key: str
    session: str | None = None
    serve: str | None = None
    timeout_s: float | None = None
    parked: int | None = None


class Broken(Event):
    """A connection ended or broke the protocol before its greeting was whole; ``why`` is empty if it left."""

    conn: int
    why: str = ""


class HungUp(Event):
    """A client with a session, or waiting for one, is gone."""

    conn: int


# Connections that wait at proxies


class Parked(Event):
    """A connection's greeting is out: the proxy can pair it."""

    number: int


class Answering(Event):
    """A parked connection hears the first bytes of an answer."""

    number: int


class Unparked(Event):
    """A parked connection is no more; ``how`` as in :mod:`rpcsys.server.supervisor.parking`, ``why`` for a person.

    ``jitter``, in [0, 1), shortens the next pause.
    """

    number: int
    how: str
    why: str
    jitter: float = 0.0


# Processes


class ZygoteUp(Event):
    """The zygote has imported what it should, and makes children when asked.

    ``shared``: why sessions share namespaces with all else on the board; empty when they have their own.
    """

    shared: str = ""


class Importing(Event):
    """The zygote, or the child ``child`` of a server that does not fork, is about to import ``what``."""

    what: str
    child: int | None = None


class ZygoteDown(Event):
    """The zygote is dead, and every process below it too but for `Unkilled` ones; ``cleaned`` names what had to be killed."""

    cleaned: tuple[str, ...] = ()


class Unkilled(Event):
    """Processes, by name, that have been seen alive seconds after a SIGKILL; none: those have ended.

    ``child``: whose they are, if its own process is one; its death says that they have ended.
    """

    names: tuple[str, ...]
    child: int | None = None


class Failed(Event):
    """A zygote or a child could not do its imports; ``why`` is one line for a person."""

    why: str


class ChildReady(ChildReport):
    """A child waits for its job."""


class ChildDead(ChildReport):
    """A child and all its descendants are dead, but for `Unkilled` ones.

    ``status``: exit status, or minus the signal that killed it; ``cleaned``: names of descendants that had to be killed;
    ``removed``: shared memory and the like that a killed child had; ``starved``: it had nearly all the memory that it may have.
    """

    status: int
    cleaned: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    starved: bool = False


# Sessions


class SessionOpened(ChildReport):
    """The process of a child's session has greeted its client, and its client it."""


class LimitAsked(ChildReport):
    """The client of a child's session asked for a time limit of its own."""

    limit_s: float


class MemoryExceeded(ChildReport):
    """The processes of a child's session have more memory than a session may."""


class CpusLeft(ChildReport):
    """Threads of a child's session might run on CPUs that its slot has not; they are set back."""


class ChildDone(ChildReport):
    """A child's session is over, and the child is about to exit; ``removed``: what will vanish with its namespaces."""

    outcome: str
    removed: tuple[str, ...] = ()


class StartFailed(Event):
    """A session could not be started, ``why`` in one line."""

    session: int
    why: str


class Removed(Event):
    """The directory of a session is gone, and its client's connection is closed.

    ``removed``: what else of it had to be removed; ``left``: what could not be, and why.
    """

    session: int
    removed: tuple[str, ...] = ()
    left: tuple[str, ...] = ()


class CommandDone(Event):
    """``--health-check`` or ``--recover`` is done; ``problem`` is what went wrong, "" if nothing did."""

    what: str
    problem: str = ""


# The tracker


class LinkUp(Event):
    """A tracker answers; ``ours`` says whether it speaks more than TVM's codes."""

    ours: bool


class LinkDown(Event):
    """The tracker cannot be reached, or the connection to it ended.

    ``jitter``, in [0, 1), shortens the pause before the next try; ``none``: a proxy says that it has none of ours.
    """

    why: str
    jitter: float = 0.0
    none: bool = False


class Registered(Event):
    """The tracker has taken our registration."""


class KeyMade(Event):
    """A new match key: the tracker has been told of it or, behind proxies, nobody yet."""

    matchkey: str


class Pending(Event):
    """TVM's tracker lists the match keys of ours that it has not handed out."""

    matchkeys: tuple[str, ...]


class KeyTaken(Event):
    """Our tracker has handed out a match key. ``user`` is a claim, ``address`` is where it came from."""

    lease: str
    epoch: int
    matchkey: str
    user: str
    address: str
    limit_s: float | None = None


class LeaseRenewed(Event):
    """Our tracker has renewed a lease: it ends ``limit_s`` from now (None: not by itself)."""

    lease: str
    epoch: int
    limit_s: float | None = None


class LeaseRevoked(Event):
    """Our tracker takes a lease back; ``reason`` may be :data:`rpcsys.wire.control.UNUSED`."""

    lease: str
    epoch: int
    reason: str


class EndConfirmed(Event):
    """Our tracker knows that a lease is over."""

    lease: str
    epoch: int


# Deployed modules: the disk, model hosts, deployers


class Catalogue(Event):
    """What the disk says is to be served."""

    versions: tuple[Version, ...]


class Loaded(ChildReport):
    """A host has its module in memory."""


class Unloadable(ChildReport):
    """A host cannot load its module, and leaves."""

    why: str


class Load(ChildReport):
    """How much a host has to do: calls that run, calls that wait, clients."""

    running: int
    waiting: int
    clients: int


class Stuck(ChildReport):
    """A call that was given up does not let go of a host's worker."""


class Leaving(ChildReport):
    """A host that is to leave begins no more calls."""


class Moved(ChildReport):
    """A host that leaves gives a client's connection back, between two frames."""

    conn: int
    peer: str
    greeted: bool


class NotTaken(ChildReport):
    """A host did not take a client that it was handed: it is dead, or hangs. The fields are those of ``Hand``."""

    conn: int
    peer: str
    fresh: bool
    greeted: bool


class Try(ChildReport):
    """A deployer has made a version, and wants to know whether it can be loaded."""

    version: Version


class Changed(ChildReport):
    """A deployer has changed what the disk says."""


class Asked(ChildReport):
    """A deployer's client wants to know what is served, and how much it has to do."""
