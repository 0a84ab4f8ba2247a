"""What a device server may decide to do: :mod:`~rpcsys.server.supervisor.state` decides, :mod:`~rpcsys.server.supervisor.service` does it.

``conn``, ``session``, ``child`` and ``number`` (of a parked connection) are given once and never again: connections' by the
service, the others by the state.
"""

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

    Who sets a field is told by the type checker: what would tell it at run time costs a board 0.5 MB for eighty classes.
    """

    def __init_subclass__(cls) -> None:
        dataclass(eq=False, repr=False)(cls)

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and vars(self) == vars(other)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in vars(self).items())})"


class Action(Frozen):
    """Something to do."""


# The tracker


class Connect(Action):
    """Open a connection to the tracker; ``proxy`` says through which of them if it stands behind some."""

    proxy: int = 0


class Disconnect(Action):
    """Close the connection to the tracker; nothing more is heard of it."""


class RegisterServer(Action):
    """Tell the tracker who we are; ``running`` holds (lease, epoch, seconds since its start)."""

    running: tuple[tuple[str, int, float], ...] = ()


class Offer(Action):
    """Send a match key to the tracker; "": make one first (answered by ``KeyMade``)."""

    matchkey: str = ""


class MakeKey(Action):
    """Make a match key (answered by ``KeyMade``)."""


class Poll(Action):
    """Ask TVM's tracker for the match keys that it has not handed out (answered by ``Pending``)."""


class ReportStart(Action):
    """Report to our tracker that a lease is in use."""

    lease: str
    epoch: int
    peer: str


class ReportEnd(Action):
    """Report to our tracker how a lease ended, what had to be killed, and what to be removed."""

    lease: str
    epoch: int
    outcome: str
    cleaned: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    fault: str = ""


class ReportHealth(Action):
    """Tell our tracker what is wrong with this board, "" for nothing."""

    problem: str


class ReportDeployed(Action):
    """Tell our tracker what is deployed: of each module its name, version, whether it is served, and its load."""

    modules: tuple[tuple[str, str, bool, int, int, int], ...]


# Processes


class StartZygote(Action):
    """Start a zygote."""


class KillZygote(Action):
    """Kill the zygote, with every process below it: ``ZygoteDown`` follows."""


class Spawn(Action):
    """Have the zygote make a child that waits for its job."""

    child: int
    kind: ChildKind = ChildKind.SESSION


class Kill(Action):
    """Have the zygote kill a child with all its descendants."""

    child: int


class Start(Action):
    """Hand a client's connection to a waiting child. ``kind`` as in :class:`rpcsys.server.sandbox.messages.Job`.

    ``slot``: from 0 on, of no other session at the time. ``note``: first note what shared memory there is.
    ``words``: what is left to be told to a TVM client.
    """

    session: int
    conn: int
    child: int
    kind: str
    peer: str
    limit_s: float | None = None
    lease: str | None = None
    slot: int = 0
    note: bool = False
    words: str = ""


class Extend(Action):
    """Tell a child that its session ends at ``until`` (on this machine's monotonic clock), None for no limit."""

    child: int
    until: float | None


class RunCommand(Action):
    """Run ``--health-check`` or ``--recover`` (answered by ``CommandDone``)."""

    what: str


# Clients


class Refuse(Action):
    """Answer a greeting with ``mismatch``, or with what we speak (``version``), and close."""

    conn: int
    how: str


class Drop(Action):
    """Close a connection without a word."""

    conn: int


class Finish(Action):
    """Close a session's connection for everyone who holds it and remove what is left of it.

    ``error``: class and text of the error that its rpcsys/1 client is told of first; ``sweep``: where sessions
    share namespaces, look for shared memory and the like too: ``idle`` if no other runs, else ``busy``;
    ``unanswered``: no process has answered the client's greeting.
    """

    session: int
    conn: int
    error: tuple[str, ...] = ()
    sweep: str = ""
    unanswered: bool = False


class TurnAway(Action):
    """Close a client's connection, having told it why: an error of the class ``kind``. ``fresh`` as in :class:`Hand`."""

    conn: int
    kind: str
    text: str
    fresh: bool


class Park(Action):
    """Dial a proxy and say which key is served: ``Parked``, ``Answering``, and ``Opened`` or ``Unparked`` follow.

    ``offered``: the key is a match key that the tracker knows from this server itself.
    """

    number: int
    proxy: int
    key: str
    offered: bool


class Unpark(Action):
    """Close a parked connection without a word; nothing more is heard of it."""

    number: int


# Deployed modules


class Reread(Action):
    """Read from the disk what is deployed (answered by ``Catalogue``)."""


class BeHost(Action):
    """Give a waiting child a version to load and serve."""

    child: int
    version: Version


class BeDeployer(Action):
    """Give a waiting child a client that deploys."""

    child: int
    conn: int
    peer: str


class Hand(Action):
    """Hand a client's connection to a host. ``fresh``: its greeting is to be answered; ``greeted``: it has sent its HELLO."""

    child: int
    conn: int
    peer: str
    fresh: bool
    greeted: bool


class SendToChild(Action):
    """Tell a host or a deployer something."""

    child: int
    word: str
    value: Any


# The server


class Announce(Action):
    """The server serves: print the ready line."""


class StopListening(Action):
    """Take no more connections."""


class Log(Action):
    """Tell the log. ``level`` is ``info``, ``warning`` or ``error``.

    ``event`` and ``fields`` say the same to programs, where it is something that happened to a session: ``began``
    or ``ended``. ``stranger``: the address of the one it is about, who could make any number of such lines.
    """

    level: str
    text: str
    event: str = ""
    fields: tuple[tuple[str, Any], ...] = ()
    stranger: str = ""


class Exit(Action):
    """End the server. With ``why`` it is a failure the user has to know of."""

    why: str = ""
