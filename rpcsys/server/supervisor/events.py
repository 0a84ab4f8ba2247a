"""The events of a device server. Its actions are in :mod:`rpcsys.server.supervisor.actions`.

Replaying recorded events, with their times, gives the same state and the same actions.
"""
# ruff: noqa: D101 - a comment after the name describes when an event is posted

from __future__ import annotations

from typing import TYPE_CHECKING

from rpcsys.server.supervisor.actions import Frozen

if TYPE_CHECKING:
    from rpcsys.server.models.store import Version


class Event(Frozen):
    now: float  # when it happened, in seconds of a monotonic clock


class ChildReport(Event):  # a child's message, or an observation of it
    child: int


class LeaseReport(Event):  # a message of our tracker about a lease
    lease: str
    epoch: int


class Tick(Event): ...  # a deadline of the state has passed


class StopAsked(Event):  # a signal to stop; the second one ends sessions at once
    patient: bool = False  # wait until the sessions have ended by themselves


class DevicesFound(Event):  # each driver has answered, or does not in its time
    names: tuple[str, ...]
    problems: tuple[str, ...]


# Clients


class Accepted(Event):  # a client has connected
    conn: int
    peer: str


class Opened(Event):  # a client's greeting is whole (:mod:`rpcsys.wire.handshake`)
    conn: int
    peer: str
    role: str
    key: str
    session: str | None = None
    serve: str | None = None
    timeout_s: float | None = None
    parked: int | None = None  # the connection that waited for it at a proxy


class Secured(Event):  # the front has opened a connection: its client has the match key, and gets no answer yet
    conn: int
    session: str | None = None  # the options of the greeting inside
    serve: str | None = None
    timeout_s: float | None = None
    said: str = ""  # the match key, where the front takes any secret behind the server's own pin


class FrontClosed(Event):  # such a connection has ended
    conn: int


class FrontTook(Event): ...  # the front has taken an order


class Broken(Event):  # a connection ended or broke the protocol before its greeting was whole
    conn: int
    why: str = ""  # empty if the client hung up


class HungUp(Event):  # a client that has greeted hung up
    conn: int


# Connections that wait at proxies


class Parked(Event):  # a connection's greeting is sent: the proxy can join it with a client
    number: int


class Answering(Event):  # the first bytes of an answer arrive on a parked connection
    number: int


class Unparked(Event):  # a parked connection has ended
    number: int
    how: str  # as in :mod:`rpcsys.server.supervisor.parking`
    why: str  # for the log
    jitter: float = 0.0  # in [0, 1), shortens the next pause


# Processes


class ZygoteUp(Event):  # the zygote has done its imports and can make children
    shared: str = ""  # why sessions share namespaces with the rest of the board; empty when they have their own


class Importing(Event):  # an import begins
    what: str
    child: int | None = None  # the child that it delays; None: an import of the zygote, for all


class ZygoteDown(Event):  # the zygote and all processes below it are dead, except `Unkilled` ones
    cleaned: tuple[str, ...] = ()  # names of killed processes


class Unkilled(Event):  # processes are alive seconds after a SIGKILL
    names: tuple[str, ...]  # empty: they have ended
    child: int | None = None  # the child, if its own process is one of them; its death then ends this state


class Failed(Event):  # a zygote or a child could not do its imports
    why: str  # one line for the log
    child: int | None = None  # the child that cannot be made for that reason; None: none can


class ChildReady(ChildReport): ...  # it waits for its job


class ChildDead(ChildReport):  # it and all its descendants are dead, except `Unkilled` ones
    status: int  # exit status, or minus the signal that killed it
    cleaned: tuple[str, ...] = ()  # names of killed descendants
    removed: tuple[str, ...] = ()  # names of IPC objects that a killed child left
    starved: bool = False  # its memory was near its limit


# Sessions


class SessionOpened(ChildReport): ...  # the session's process and its client have exchanged their HELLO


class Held(ChildReport): ...  # the session is a hold: connections may attach under its match key


class LimitAsked(ChildReport):  # the session's client requested a time limit
    limit_s: float


class MemoryExceeded(ChildReport): ...  # the session's processes exceed its memory limit


class CpusLeft(ChildReport): ...  # threads of the session were allowed CPUs of other slots; this is undone


class ChildDone(ChildReport):  # its session is over, and it is about to exit
    outcome: str
    removed: tuple[str, ...] = ()  # IPC objects that end with its namespaces
    why: str = ""  # a sentence: what in it ended the session


class StartFailed(Event):  # a session could not be started
    session: int
    why: str  # in one line


class Removed(Event):  # a session's directory is removed and its client's connection closed
    session: int
    removed: tuple[str, ...] = ()  # names of removed IPC objects
    left: tuple[str, ...] = ()  # paths that could not be removed, with the reason


class CommandDone(Event):  # ``--health-check`` or ``--recover`` has ended
    what: str
    problem: str = ""  # why it failed; empty for success


class CanaryDone(ChildReport):  # the canary's process has a result
    canary: str = ""  # what ran, and with what
    seconds: float = 0.0  # of one run
    disturbed: bool = False  # by other processes
    throttled: float = 0.0  # the share of the time that a CPU quota took
    why: str = ""  # why it could not run


# The tracker


class LinkUp(Event):  # a tracker answers
    ours: bool  # whether it is rpcsys's, not TVM's
    open: bool = False  # whether it is that of a lab which still serves everybody


class LinkDown(Event):  # the tracker cannot be reached, or the connection to it ended
    why: str
    jitter: float = 0.0  # in [0, 1), shortens the pause before the next try
    none: bool = False  # the proxy reports that it has no tracker of ours
    at_once: bool = False  # another replica of the tracker leads now: try it without a pause


class Registered(Event): ...  # the tracker has accepted our registration


class KeyMade(Event):  # a new match key: offered to the tracker or, behind proxies, not yet offered
    matchkey: str
    seed: str = ""  # of a pinned one: the private key of its session, hexadecimal


class Pending(Event):  # TVM's tracker lists this server's match keys that it has not handed out
    matchkeys: tuple[str, ...]


class KeyTaken(LeaseReport):  # the tracker has handed out a match key
    matchkey: str
    user: str  # the user's name, as the client claims it
    address: str  # the client's address
    limit_s: float | None = None
    longest_s: float | None = None  # that a session of the key may last; None: no limit
    code: bool = True  # whether its session may load more than models in ONNX's format
    plain: bool = False  # whether its client may come in the clear


class LeaseRenewed(LeaseReport):
    limit_s: float | None = None  # seconds from now; None: no limit


class LeaseRevoked(LeaseReport):
    reason: str  # may be :data:`rpcsys.wire.outcomes.UNUSED`
    why: str = ""  # a sentence for the holder


class Admitted(Event):  # the tracker lets a member use deployed modules
    secret: str
    what: str  # as of `rpcsys.wire.control.Admit`
    modules: tuple[str, ...]
    member: str
    until_s: float


class Unadmitted(Event):  # the tracker ends such a use
    what: str
    modules: tuple[str, ...]
    member: str
    why: str = ""  # a sentence for the member


class EndConfirmed(LeaseReport): ...  # the tracker has recorded the end of the lease


# Deployed modules: the disk, model hosts, deployers


class Catalogue(Event):  # the versions on the disk that are to be served
    versions: tuple[Version, ...]


class Loaded(ChildReport): ...  # a host has its module in memory


class Unloadable(ChildReport):  # a host cannot load its module, and exits
    why: str


class Load(ChildReport):  # the load of a host
    running: int  # calls
    waiting: int  # calls
    clients: int


class Stuck(ChildReport): ...  # a call whose client has given it up still holds a host's worker


class Leaving(ChildReport): ...  # a host that is to leave starts no more calls


class Moved(ChildReport):  # a host that leaves returns a client's connection, between two frames
    conn: int
    peer: str
    greeted: bool


class HandedOver(ChildReport):  # a host has a connection of `Hand`, and has not used it yet
    conn: int


class NotTaken(ChildReport):  # a host accepts no connection: it is dead, or hangs
    conn: int


class Try(ChildReport):  # a deployer has made a version and requests a test that it loads
    version: Version


class Changed(ChildReport): ...  # a deployer has changed the versions on the disk


class Asked(ChildReport): ...  # a deployer's client requests the modules' states and loads
