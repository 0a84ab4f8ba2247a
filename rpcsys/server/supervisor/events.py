"""What can happen to a device server. What it may do about it is in :mod:`rpcsys.server.supervisor.actions`.

A log of events, each with its time, replays to the same state and the same actions.
"""
# ruff: noqa: D101 - a comment behind the name says when an event is posted

from __future__ import annotations

from typing import TYPE_CHECKING

from rpcsys.server.supervisor.actions import Frozen

if TYPE_CHECKING:
    from rpcsys.server.models.store import Version


class Event(Frozen):
    now: float  # when it happened, in seconds of a monotonic clock


class ChildReport(Event):  # what a child has said, or what is seen of it
    child: int


class LeaseReport(Event):  # what our tracker says of a lease
    lease: str
    epoch: int


class Tick(Event): ...  # time went by


class StopAsked(Event):  # someone wants the server to stop; the second time: now
    patient: bool = False  # when its sessions have ended by themselves


# Clients


class Accepted(Event):  # a client connected, and has said nothing yet
    conn: int
    peer: str


class Opened(Event):  # a client has said its greeting (:mod:`rpcsys.wire.handshake`)
    conn: int
    peer: str
    role: str
    key: str
    session: str | None = None
    serve: str | None = None
    timeout_s: float | None = None
    parked: int | None = None  # the connection that waited for it at a proxy


class Broken(Event):  # a connection ended or broke the protocol before its greeting was whole
    conn: int
    why: str = ""  # empty if it left


class HungUp(Event):  # a client with a session, or waiting for one, is gone
    conn: int


# Connections that wait at proxies


class Parked(Event):  # a connection's greeting is out: the proxy can pair it
    number: int


class Answering(Event):  # a parked connection hears the first bytes of an answer
    number: int


class Unparked(Event):  # a parked connection is no more
    number: int
    how: str  # as in :mod:`rpcsys.server.supervisor.parking`
    why: str  # for a person
    jitter: float = 0.0  # in [0, 1), shortens the next pause


# Processes


class ZygoteUp(Event):  # the zygote has imported what it should, and makes children when asked
    shared: str = ""  # why sessions share namespaces with all else on the board; empty when they have their own


class Importing(Event):  # an import is about to begin
    what: str
    child: int | None = None  # the importing child, of a server that does not fork; None: the zygote


class ZygoteDown(Event):  # the zygote is dead, and every process below it too but for `Unkilled` ones
    cleaned: tuple[str, ...] = ()  # names of what had to be killed


class Unkilled(Event):  # processes have been seen alive seconds after a SIGKILL
    names: tuple[str, ...]  # none: those have ended
    child: int | None = None  # whose they are, if its own process is one; its death says that they have ended


class Failed(Event):  # a zygote or a child could not do its imports
    why: str  # one line for a person


class ChildReady(ChildReport): ...  # it waits for its job


class ChildDead(ChildReport):  # it and all its descendants are dead, but for `Unkilled` ones
    status: int  # exit status, or minus the signal that killed it
    cleaned: tuple[str, ...] = ()  # names of descendants that had to be killed
    removed: tuple[str, ...] = ()  # shared memory and the like that a killed child had
    starved: bool = False  # it had nearly all the memory that it may have


# Sessions


class SessionOpened(ChildReport): ...  # the process of a child's session has greeted its client, and its client it


class LimitAsked(ChildReport):  # the client of a child's session asked for a time limit of its own
    limit_s: float


class MemoryExceeded(ChildReport): ...  # its session's processes have more memory than a session may


class CpusLeft(ChildReport): ...  # threads of its session might run on CPUs that its slot has not; they are set back


class ChildDone(ChildReport):  # its session is over, and it is about to exit
    outcome: str
    removed: tuple[str, ...] = ()  # what will vanish with its namespaces


class StartFailed(Event):  # a session could not be started
    session: int
    why: str  # in one line


class Removed(Event):  # the directory of a session is gone, and its client's connection is closed
    session: int
    removed: tuple[str, ...] = ()  # what else of it had to be removed
    left: tuple[str, ...] = ()  # what could not be, and why


class CommandDone(Event):  # ``--health-check`` or ``--recover`` is done
    what: str
    problem: str = ""  # what went wrong


# The tracker


class LinkUp(Event):  # a tracker answers
    ours: bool  # whether it speaks more than TVM's codes


class LinkDown(Event):  # the tracker cannot be reached, or the connection to it ended
    why: str
    jitter: float = 0.0  # in [0, 1), shortens the pause before the next try
    none: bool = False  # a proxy says that it has none of ours


class Registered(Event): ...  # the tracker has taken our registration


class KeyMade(Event):  # a new match key: the tracker has been told of it or, behind proxies, nobody yet
    matchkey: str


class Pending(Event):  # TVM's tracker lists the match keys of ours that it has not handed out
    matchkeys: tuple[str, ...]


class KeyTaken(LeaseReport):  # it has handed out a match key
    matchkey: str
    user: str  # a claim
    address: str  # where the claim came from
    limit_s: float | None = None


class LeaseRenewed(LeaseReport):
    limit_s: float | None = None  # seconds from now on; None: it does not end by itself


class LeaseRevoked(LeaseReport):
    reason: str  # may be :data:`rpcsys.wire.control.UNUSED`


class EndConfirmed(LeaseReport): ...  # it knows that the lease is over


# Deployed modules: the disk, model hosts, deployers


class Catalogue(Event):  # what the disk says is to be served
    versions: tuple[Version, ...]


class Loaded(ChildReport): ...  # a host has its module in memory


class Unloadable(ChildReport):  # a host cannot load its module, and leaves
    why: str


class Load(ChildReport):  # how much a host has to do
    running: int  # calls
    waiting: int  # calls
    clients: int


class Stuck(ChildReport): ...  # a call that was given up does not let go of a host's worker


class Leaving(ChildReport): ...  # a host that is to leave begins no more calls


class Moved(ChildReport):  # a host that leaves gives a client's connection back, between two frames
    conn: int
    peer: str
    greeted: bool


class NotTaken(ChildReport):  # a host did not take a client of `Hand`: it is dead, or hangs
    conn: int
    peer: str
    fresh: bool
    greeted: bool


class Try(ChildReport):  # a deployer has made a version, and wants to know whether it can be loaded
    version: Version


class Changed(ChildReport): ...  # a deployer has changed what the disk says


class Asked(ChildReport): ...  # a deployer's client wants to know what is served, and how much it has to do
