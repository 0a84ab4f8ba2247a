"""What a device server may decide to do. What can happen to it is in :mod:`rpcsys.server.supervisor.events`.

:class:`rpcsys.server.supervisor.state.State` decides, :mod:`rpcsys.server.supervisor.service` carries it out. ``conn``, ``session`` and ``child``
are numbers given once and never again: connections by the service, sessions and children by the state.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from rpcsys.server.sandbox.messages import ChildKind


@dataclass(frozen=True)
class Action:
    """Something to do."""


@dataclass(frozen=True)
class Connect(Action):
    """Open a connection to the tracker, ``proxy`` says through which of them if it stands behind some."""

    proxy: int = 0


@dataclass(frozen=True)
class Disconnect(Action):
    """Close the connection to the tracker; nothing more is heard of it."""


@dataclass(frozen=True)
class Register(Action):
    """Tell the tracker who we are; ``running`` holds (lease, epoch, seconds since its start)."""

    running: tuple[tuple[str, int, float], ...] = ()


@dataclass(frozen=True)
class Offer(Action):
    """Make a match key, send it to the tracker, and say so with :class:`rpcsys.server.supervisor.events.Offered`; or send this one."""

    matchkey: str = ""


@dataclass(frozen=True)
class Poll(Action):
    """Ask TVM's tracker for the match keys not handed out (answered by :class:`rpcsys.server.supervisor.events.Pending`)."""


@dataclass(frozen=True)
class Started(Action):
    """Report to our tracker that a lease is in use."""

    lease: str
    epoch: int
    peer: str


@dataclass(frozen=True)
class Ended(Action):
    """Report to our tracker how a lease ended, what had to be killed, and what to be removed."""

    lease: str
    epoch: int
    outcome: str
    cleaned: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    fault: str = ""


@dataclass(frozen=True)
class StartZygote(Action):
    """Start a zygote."""


@dataclass(frozen=True)
class KillZygote(Action):
    """Kill the zygote, with every process below it: :class:`rpcsys.server.supervisor.events.ZygoteDown` follows."""


@dataclass(frozen=True)
class Spawn(Action):
    """Have the zygote make a child that waits for what it is to do."""

    child: int
    kind: ChildKind = ChildKind.SESSION


@dataclass(frozen=True)
class Kill(Action):
    """Have the zygote kill a child with all its descendants."""

    child: int


@dataclass(frozen=True)
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


@dataclass(frozen=True)
class Extend(Action):
    """Tell a child that its session ends at ``until`` (on this machine's monotonic clock), None for no limit."""

    child: int
    until: float | None


@dataclass(frozen=True)
class Refuse(Action):
    """Answer a greeting with ``mismatch``, or with what we speak (``version``), and close."""

    conn: int
    how: str


@dataclass(frozen=True)
class Drop(Action):
    """Close a connection without a word."""

    conn: int


@dataclass(frozen=True)
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


@dataclass(frozen=True)
class Announce(Action):
    """The server serves: print the ready line."""


@dataclass(frozen=True)
class StopListening(Action):
    """Take no more connections."""


@dataclass(frozen=True)
class Log(Action):
    """Tell the log. ``level`` is ``info``, ``warning`` or ``error``.

    ``event`` and ``fields`` say the same to machines, where it is something that happened to a session: ``began``
    or ``ended``. ``stranger``: the address of the one it is about, who could make any number of such lines.
    """

    level: str
    text: str
    event: str = ""
    fields: tuple[tuple[str, Any], ...] = ()
    stranger: str = ""


@dataclass(frozen=True)
class Exit(Action):
    """End the server. With ``why`` it is a failure the user has to know of."""

    why: str = ""
