"""What a device server may decide to do: `state` decides, `service` does it.

``conn`` (by the service), ``session``, ``child``, ``number`` (of a parked connection) are given once and never again.
"""
# ruff: noqa: D101 - a comment behind the name says what an action does

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rpcsys.server.sandbox.messages import ChildKind

if TYPE_CHECKING:
    from typing_extensions import dataclass_transform

    from rpcsys.server.models.store import Version
else:

    def dataclass_transform(**_):
        """For the type checker."""
        return lambda kind: kind


@dataclass_transform(frozen_default=True)
class Frozen:
    """Its subclasses are dataclasses that never change, of nothing but numbers, text and tuples.

    Who sets a field is told by the type checker: to tell it at run time costs a board 0.5 MB for eighty classes.
    """

    def __init_subclass__(cls) -> None:
        dataclass(eq=False, repr=False)(cls)

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and vars(self) == vars(other)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in vars(self).items())})"


class Action(Frozen): ...


# The tracker


class Connect(Action):  # open a connection to the tracker
    proxy: int = 0  # through which of them, if it stands behind some


class Disconnect(Action): ...  # close the connection to the tracker; nothing more is heard of it


class RegisterServer(Action):  # tell the tracker who we are
    running: tuple[tuple[str, int, float], ...] = ()  # lease, epoch, seconds since its start


class Offer(Action):  # send a match key to the tracker
    matchkey: str = ""  # empty: make one first, answered by `KeyMade`


class MakeKey(Action): ...  # make a match key, answered by `KeyMade`


class Poll(Action): ...  # ask TVM's tracker for the match keys that it has not handed out, answered by `Pending`


class ReportStart(Action):  # report to our tracker that a lease is in use
    lease: str
    epoch: int
    peer: str


class ReportEnd(Action):  # report to our tracker how a lease ended
    lease: str
    epoch: int
    outcome: str
    cleaned: tuple[str, ...] = ()  # what had to be killed
    removed: tuple[str, ...] = ()
    fault: str = ""


class ReportHealth(Action):  # tell our tracker what is wrong with this board
    problem: str  # empty for nothing


class ReportDeployed(Action):  # tell our tracker what is deployed
    modules: tuple[tuple[str, str, bool, int, int, int], ...]  # name, version, whether it is served, its load


# Processes


class StartZygote(Action): ...


class KillZygote(Action): ...  # with every process below it: `ZygoteDown` follows


class Spawn(Action):  # have the zygote make a child that waits for its job
    child: int
    kind: ChildKind = ChildKind.SESSION


class Kill(Action):  # have the zygote kill a child with all its descendants
    child: int


class Start(Action):  # hand a client's connection to a waiting child
    session: int
    conn: int
    child: int
    kind: str  # as in :class:`rpcsys.server.sandbox.messages.Job`
    peer: str
    limit_s: float | None = None
    lease: str | None = None
    slot: int = 0  # of no other session at the time
    note: bool = False  # first note what shared memory there is
    words: str = ""  # what is left to be told to a TVM client


class Extend(Action):  # tell a child when its session ends
    child: int
    until: float | None  # on this machine's monotonic clock, None for no limit


class RunCommand(Action):  # run ``--health-check`` or ``--recover``, answered by `CommandDone`
    what: str


# Clients


class Refuse(Action):  # answer a greeting, and close
    conn: int
    how: str  # "mismatch", or "version": with what we speak


class Drop(Action):  # close a connection without a word
    conn: int


class Finish(Action):  # close a session's connection for everyone who holds it, and remove what is left of it
    session: int
    conn: int
    error: tuple[str, ...] = ()  # class and text of what its rpcsys/1 client is told first
    sweep: str = ""  # look for shared memory too, where sessions share it: "idle" if no other runs, else "busy"
    unanswered: bool = False  # no process has answered the client's greeting


class TurnAway(Action):  # close a client's connection, having told it why
    conn: int
    kind: str  # the error's class
    text: str
    fresh: bool  # its greeting is to be answered


class Park(Action):  # dial a proxy: `Parked`, `Answering`, and `Opened` or `Unparked` follow
    number: int
    proxy: int
    key: str  # which is served
    offered: bool  # it is a match key that the tracker knows from this server itself


class Unpark(Action):  # close a parked connection without a word; nothing more is heard of it
    number: int


# Deployed modules


class Reread(Action): ...  # read from the disk what is deployed, answered by `Catalogue`


class BeHost(Action):  # give a waiting child a version to load and serve
    child: int
    version: Version


class BeDeployer(Action):  # give a waiting child a client that deploys
    child: int
    conn: int
    peer: str


class Hand(Action):  # hand a client's connection to a host
    child: int
    conn: int
    peer: str
    fresh: bool  # its greeting is to be answered
    greeted: bool  # it has sent its HELLO


class SendToChild(Action):  # tell a host or a deployer something
    child: int
    word: str
    value: Any


# The server


class Announce(Action): ...  # the server serves: print the ready line


class StopListening(Action): ...


class Log(Action):
    level: str  # "info", "warning" or "error"
    text: str
    event: str = ""  # "began" or "ended", of a session: the same for programs
    fields: tuple[tuple[str, Any], ...] = ()
    stranger: str = ""  # the address of the one it is about, who could make any number of such lines


class Exit(Action):  # end the server
    why: str = ""  # a failure that the user has to know of
