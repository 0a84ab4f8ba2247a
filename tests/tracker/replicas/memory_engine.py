"""An engine in this process, with faults that a test sets."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from rpcsys.tracker.replicas import replica
from rpcsys.tracker.replicas.engine import Engine, EngineFull, Leader, Look, ReplicaStatus, Snapshot
from rpcsys.tracker.replicas.journal import Fold
from tests.tracker.replicas.simulation import SimulatedEngine


class MemoryEngine(Engine):
    """A `SimulatedEngine` by the clock. ``fails``: what each request raises; ``full``: whether writes are refused."""

    def __init__(self, stored: SimulatedEngine | None = None, me: Leader | None = None) -> None:
        self.stored = stored or SimulatedEngine()
        self.fails: Exception | None = None
        self.full = False
        self.looks = 0
        self.resigned: list[int] = []
        self.snapshots: list[tuple[Snapshot, list[bytes]]] = []
        self.closed = False
        self._me = me

    def _do(self, request: replica.Request) -> Any:
        if self.fails is not None:
            raise self.fails
        self.stored.now = time.monotonic()
        assert self._me is not None or isinstance(request, (replica.ReadJournal, replica.ReadSnapshot))
        return self.stored.carry_out(request, self._me or Leader(("", 0), 0, "", ""), Fold())

    async def look(self, after: int) -> Look:
        seen: Look = self._do(replica.ReadJournal(after))
        self.looks += 1
        return replace(seen, replicas=dict(self.stored.replicas))

    async def campaign(self, leader: Leader, over: int) -> int:
        self._me = leader
        return int(self._do(replica.Campaign(over)))

    async def begin(self, last: int, config: dict[str, Any], term: int) -> bool:
        done = bool(self._do(replica.BeginTerm(last, config["journal"], term)))
        if done:
            self.stored.config = config
        return done

    async def append(self, number: int, data: bytes, term: int) -> bool:
        if self.full:
            raise EngineFull("etcd takes no more data")
        return bool(self._do(replica.Append(number, data, term)))

    async def renew(self, term: int) -> float:
        return float(self._do(replica.RenewLease(term)))

    async def resign(self, term: int) -> None:
        self.resigned.append(term)
        if self.stored.term == term:
            self.stored.leader = None

    async def write_snapshot(self, snapshot: Snapshot, pieces: Sequence[bytes], term: int) -> bool:
        self.snapshots.append((snapshot, list(pieces)))
        return self.stored.term == term

    async def read_snapshot(self, snapshot: Snapshot) -> list[bytes] | None:
        found = self._do(replica.ReadSnapshot(snapshot))
        return None if found is None else list(found)

    async def announce(self, replica_id: str, status: ReplicaStatus) -> None:
        if self.fails is not None:
            raise self.fails
        self.stored.replicas[replica_id] = status

    async def size(self) -> tuple[int, int]:
        if self.fails is not None:
            raise self.fails
        return 1000, 2000

    async def close(self) -> None:
        self.closed = True
