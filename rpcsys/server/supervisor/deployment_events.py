"""What can happen to deployed modules, and what the supervisor may do about it; beside :mod:`rpcsys.server.supervisor.events` and
:mod:`rpcsys.server.supervisor.actions`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Tuple

from rpcsys.server.models.store import Version
from rpcsys.server.supervisor.actions import Action
from rpcsys.server.supervisor.events import Event

# ------------------------------------------------------------------ events


@dataclass(frozen=True)
class Catalogue(Event):
    """What the disk says is to be served."""

    versions: Tuple[Version, ...]


@dataclass(frozen=True)
class Loaded(Event):
    """A host has its module in memory. ``kind`` and ``functions``: what it is."""

    child: int
    kind: str = ""
    functions: Tuple[str, ...] = ()


@dataclass(frozen=True)
class Unloadable(Event):
    """A host cannot load its module, and leaves."""

    child: int
    why: str


@dataclass(frozen=True)
class Load(Event):
    """How much a host has to do: calls that run, calls that wait, clients."""

    child: int
    running: int
    waiting: int
    clients: int


@dataclass(frozen=True)
class Stuck(Event):
    """A call that was given up does not let go of a host's worker."""

    child: int


@dataclass(frozen=True)
class Leaving(Event):
    """A host that is to leave begins no more calls."""

    child: int


@dataclass(frozen=True)
class Moved(Event):
    """A host that leaves gives a client's connection back, between two frames."""

    child: int
    conn: int
    peer: str
    greeted: bool


@dataclass(frozen=True)
class NotTaken(Event):
    """A host did not take a client that it was handed: it is dead, or hangs. The fields are those of :class:`Hand`."""

    child: int
    conn: int
    peer: str
    fresh: bool
    greeted: bool


@dataclass(frozen=True)
class Try(Event):
    """A deployer has made a version, and wants to know whether it can be loaded."""

    child: int
    version: Version


@dataclass(frozen=True)
class Changed(Event):
    """A deployer has changed what the disk says."""

    child: int


@dataclass(frozen=True)
class Asked(Event):
    """A deployer's client wants to know what is served, and how much it has to do."""

    child: int


# ------------------------------------------------------------------ actions


@dataclass(frozen=True)
class Reread(Action):
    """Look what the disk says: :class:`Catalogue` follows."""


@dataclass(frozen=True)
class BeHost(Action):
    """Give a waiting child a version to load and serve."""

    child: int
    version: Version


@dataclass(frozen=True)
class BeDeployer(Action):
    """Give a waiting child a client that deploys."""

    child: int
    conn: int
    peer: str


@dataclass(frozen=True)
class Hand(Action):
    """Hand a client's connection to a host. ``fresh``: its greeting is to be answered; ``greeted``: it has sent its HELLO."""

    child: int
    conn: int
    peer: str
    fresh: bool
    greeted: bool


@dataclass(frozen=True)
class TellChild(Action):
    """Tell a host or a deployer something: names with their values."""

    child: int
    fields: Tuple[Tuple[str, Any], ...]


@dataclass(frozen=True)
class TellDeployed(Action):
    """Tell a tracker of ours what is deployed: of each module its name, version, whether it is served, and its load."""

    modules: Tuple[Tuple[str, str, bool, int, int, int], ...]


@dataclass(frozen=True)
class TurnAway(Action):
    """Close a client's connection, having told it why: an error of the class ``kind``. ``fresh`` as in :class:`Hand`."""

    conn: int
    kind: str
    text: str
    fresh: bool
