"""The actions of a device server: `state` decides them, `service` carries them out.

The numbers ``conn`` (from the service), ``session``, ``child`` and ``number`` (a parked connection) are never reused.
"""
# ruff: noqa: D101 - a comment after the name describes the action

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rpcsys.server.sandbox.messages import ChildKind

if TYPE_CHECKING:
    from typing_extensions import dataclass_transform

    from rpcsys.server.models.store import Version
else:

    def dataclass_transform(**_):
        """Stand in for the decorator that only type checkers read."""
        return lambda kind: kind


@dataclass_transform(frozen_default=True)
class Frozen:
    """Makes each subclass a dataclass that never changes. Fields hold numbers, text and tuples only.

    Only the type checker rejects assignments. The check at run time costs a board 0.5 MB for eighty classes.
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
    proxy: int = 0  # the index of the proxy to connect through, if there are proxies


class Disconnect(Action): ...  # close the connection to the tracker; no event about it follows


class RegisterServer(Action):  # register this server with the tracker
    running: tuple[tuple[str, int, float], ...] = ()  # lease, epoch, seconds since its start
    admitted: tuple[tuple[str, tuple[str, ...], str], ...] = ()  # who uses modules: what, modules, member


class Offer(Action):  # send a match key to the tracker
    matchkey: str = ""  # empty: make one first, answered by `KeyMade`


class MakeKey(Action): ...  # make a match key, answered by `KeyMade`


class Poll(Action): ...  # request the match keys that TVM's tracker has not handed out, answered by `Pending`


class ReportStart(Action):  # report to our tracker that a lease is in use
    lease: str
    epoch: int
    peer: str
    limit_s: float | None = None  # that a TVM client asked this server for, or its lease's if that is lower


class ReportEnd(Action):  # report to our tracker how a lease ended
    lease: str
    epoch: int
    outcome: str
    cleaned: tuple[str, ...] = ()  # names of killed processes
    removed: tuple[str, ...] = ()  # names of removed IPC objects and files
    fault: str = ""
    why: str = ""


class ReportHealth(Action):  # report the board's health to our tracker
    problem: str  # empty if there is none


class ReportDeployed(Action):  # report the deployed modules to our tracker
    modules: tuple[tuple[str, str, bool, int, int, int], ...]  # name, version, whether it is served, its load


# Processes


class StartZygote(Action): ...


class KillZygote(Action): ...  # kill the zygote and every process below it: `ZygoteDown` follows


class Spawn(Action):  # have the zygote make a child that waits for its job
    child: int
    kind: ChildKind = ChildKind.SESSION
    at_once: bool = False  # a session waits for it


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
    slot: int = 0  # no other running session has it
    note: bool = False  # first record the shared memory that exists now
    words: str = ""  # the error text to send to a TVM client
    longest_s: float | None = None  # that a session of the key may last
    pinned: str = ""  # its match key, if it is encrypted
    seed: str = ""  # the private key for that
    models_only: bool = False  # whether it may load nothing but models in ONNX's format


class BeFront(Action):  # hand a waiting child the job of the front
    child: int


class Secure(Action):  # have the front end TLS on a client's connection: `FrontTook`, `Secured` or `Broken` follow
    child: int
    conn: int
    matchkey: str  # that the client must say; a public name: with any secret
    seed: str
    session: bool  # whether the client speaks rpcsys/1


class EndSecured(Action):  # have the front end clients' connections
    child: int
    conns: tuple[int, ...]
    matchkey: str  # that the clients have said
    why: str  # a sentence for them


class Extend(Action):  # send a child the new end of its session
    child: int
    until: float | None  # on this machine's monotonic clock, None for no limit


class RunCanary(Action):  # hand a waiting child the job of a canary: `CanaryDone` follows, or its death alone
    child: int


class ReportCanary(Action):  # report a run of the canary to our tracker
    canary: str  # what ran, and with what: "" where it could not
    seconds: float
    disturbed: bool
    throttled: float
    problem: str


class RunCommand(Action):  # run ``--health-check`` or ``--recover``, answered by `CommandDone`
    what: str


# Clients


class Refuse(Action):  # answer a greeting, and close
    conn: int
    how: str  # "mismatch", or "version": the answer then holds our protocol's version


class Drop(Action):  # close a connection, sending nothing
    conn: int


class Finish(Action):  # shut down a session's connection in every process, and remove what the session left
    session: int
    conn: int
    error: tuple[str, ...] = ()  # class and text of the error to send to its rpcsys/1 client first
    sweep: str = ""  # where sessions share it, search shared memory too: "idle" if no other session runs, else "busy"
    unanswered: bool = False  # no process has answered the client's greeting
    pinned: str = ""  # its match key, if it is encrypted: the error becomes its last words


class TurnAway(Action):  # send a client an error and close its connection
    conn: int
    kind: str  # the error's class
    text: str
    fresh: bool  # its greeting has no answer yet
    pinned: str = ""  # as of `Finish`


class Attach(Action):  # pass a client's connection to the process of a hold, and close it in this one
    conn: int
    child: int
    peer: str


class Park(Action):  # dial a proxy: `Parked`, `Answering`, and `Opened` or `Unparked` follow
    number: int
    proxy: int
    key: str  # the key, or the match key, that the connection serves
    offered: bool  # whether ``key`` is a match key that this server itself offers to the tracker


class Unpark(Action):  # close a parked connection, sending nothing; no event about it follows
    number: int


# Deployed modules


class Reread(Action): ...  # read the deployed versions from the disk, answered by `Catalogue`


class BeHost(Action):  # make a waiting child the model host of a version
    child: int
    version: Version


class BeDeployer(Action):  # hand a client that deploys to a waiting child
    child: int
    conn: int
    peer: str
    modules: tuple[str, ...] = ("*",)  # patterns of those that it may replace


class Hand(Action):  # hand a client's connection to a host: `HandedOver` or `NotTaken` follows, or the host's death
    child: int
    conn: int
    peer: str
    fresh: bool  # its greeting has no answer yet
    greeted: bool  # it has sent its HELLO


class CloseHere(Action):  # close a connection here: a host serves it
    conn: int


class SendToChild(Action):  # send a host or a deployer one message
    child: int
    word: str  # the message's field
    value: Any


# The server


class Announce(Action): ...  # print the ready line


class PinGovernors(Action):  # have the CPUs of these slots, and no others, run at their highest frequency
    slots: tuple[int, ...]


class FindDevices(Action): ...  # ask the drivers of this board


class StopListening(Action): ...


class Log(Action):
    level: str  # "info", "warning" or "error"
    text: str
    event: str = ""  # "began" or "ended" for a session's lines: programs read it with ``fields``
    fields: tuple[tuple[str, Any], ...] = ()
    stranger: str = ""  # the address of an untrusted peer, whose lines are limited in number


class Exit(Action):  # end the server
    why: str = ""  # the failure to report, empty for none
