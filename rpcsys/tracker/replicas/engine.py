"""What replicas need of the store that they share: transactions that each replica sees in the same order.

The *term* of a leader is the revision at which its key was written. Each write of a leader asserts that its key is
unchanged, so a leader that was deposed meanwhile can write nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from rpcsys.errors import RpcsysError

#: The most bytes of one value: a batch of the journal, or a piece of a snapshot. etcd takes 1.5 MiB in one request.
MAX_VALUE = 512 << 10
#: Entries of the journal that one `Engine.look` returns at most: the largest take half a second to read.
MAX_ENTRIES = 32
#: The most pieces of a snapshot: those of 100,000 boards are 10.
MAX_PIECES = 256


class EngineLost(RpcsysError):
    """The engine does not answer, or has no majority. Whether a write has been made is not known."""


class EngineFull(EngineLost):
    """The engine takes no more data: its quota or its disk is full. The write has not been made."""


class EngineRefused(RpcsysError):
    """The engine takes neither our name nor our certificate, or is none, or holds another program's data.

    It is not tried again by itself.
    """


@dataclass(frozen=True)
class Leader:
    """What the leader's key says. ``http_port``: of its pages, 0 without."""

    address: tuple[str, int]
    http_port: int
    version: str
    replica: str  # its ID
    format: int = 1  # of the journal; who knows only lower ones does not follow

    def to_json(self) -> dict[str, Any]:
        """Plain JSON."""
        return {**vars(self), "address": list(self.address)}


@dataclass(frozen=True)
class ReplicaStatus:
    """What a replica says of itself. ``through``: the last entry of the journal that it has.

    ``whole``: whether its history lacks no lease that ended before it came, or while it was away.
    """

    address: tuple[str, int]
    http_port: int
    version: str
    role: str
    through: int
    since: float  # seconds since 1970 at which it took the role
    whole: bool = True


@dataclass(frozen=True)
class Snapshot:
    """Where a snapshot is. It holds what the journal said up to entry ``through``, in ``pieces`` values."""

    through: int
    pieces: int
    epoch: int
    arrivals: int
    at: float  # seconds since 1970, by the clock of the leader that wrote it


@dataclass(frozen=True)
class Look:
    """The engine at one moment. ``entries``: of the journal, ascending, without a gap from the number asked for on.

    None of them may mean that they were trimmed: then the snapshot goes beyond the number asked for.
    """

    leader: Leader | None
    term: int  # 0 without a leader
    entries: Sequence[tuple[int, bytes]]
    snapshot: Snapshot | None
    config: dict[str, Any] | None
    more: bool  # whether further entries follow
    replicas: dict[str, ReplicaStatus] = field(default_factory=dict)  # by ID


class Engine(Protocol):
    """A connection to the engine. Each method raises `EngineLost`, `EngineRefused`."""

    async def look(self, after: int) -> Look:
        """Read the leader, the snapshot, and the journal's entries from ``after`` + 1 on, in one transaction."""

    async def campaign(self, leader: Leader, over: int) -> int:
        """Become the leader if the term is still ``over`` (0: nobody leads), under a lease; return the new term.

        0: another leads, or has led.
        """

    async def begin(self, last: int, config: dict[str, Any], term: int) -> bool:
        """Delete the journal's entries behind ``last``, which stand behind a gap, and write what all replicas have
        alike. False: another leads.
        """

    async def append(self, number: int, data: bytes, term: int) -> bool:
        """Write an entry of the journal. False: another leads. Asking again with the same number changes nothing."""

    async def renew(self, term: int) -> float:
        """Renew the lease of the leader's key; return for how many seconds. 0: it is over, or another leads."""

    async def resign(self, term: int) -> None:
        """Delete the leader's key if the term is still ``term``, and give the lease back."""

    async def write_snapshot(self, snapshot: Snapshot, pieces: Sequence[bytes], term: int) -> bool:
        """Write the pieces, then the snapshot itself; then delete the earlier one and the journal up to it.

        False: another leads.
        """

    async def read_snapshot(self, snapshot: Snapshot) -> list[bytes] | None:
        """The pieces of a snapshot; None if a newer one has replaced it meanwhile."""

    async def announce(self, replica_id: str, replica: ReplicaStatus) -> None:
        """Say what a replica is and does, for about ten seconds."""

    async def size(self) -> tuple[int, int]:
        """Bytes of the engine's data, and its quota; 0 where it does not say it. Takes some milliseconds."""

    async def close(self) -> None:
        """End all connections."""
