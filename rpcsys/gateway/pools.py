"""The leased devices of a pool: when one is leased, and when all are given back."""

from __future__ import annotations

import math
from collections.abc import Callable

from rpcsys.gateway.actions import Action, LeaseDevice
from rpcsys.gateway.replicas import LEASED_DEPTH, Replica, ReplicaHello
from rpcsys.gateway.settings import LeasedPool

#: Seconds until a further device is asked for, after there was none.
AGAIN_S = 5.0


class PoolLeases:
    """The leases of one pool. ``make`` makes a replica; ``leave`` gives one back when it is idle."""

    def __init__(
        self, name: str, pool: LeasedPool, make: Callable[[], Replica], leave: Callable[[Replica], list[Action]]
    ) -> None:
        self.pool = pool
        self._name = name
        self._make = make
        self._leave = leave
        self._asked: set[Replica] = set()  # for which a device is asked for
        self._held: set[Replica] = set()
        self._not_before = -math.inf
        self._used = 0.0  # when a call came or was answered

    @property
    def asks(self) -> bool:
        """Whether a device is asked for now."""
        return bool(self._asked)

    @property
    def held(self) -> int:
        """How many devices are leased."""
        return len(self._held)

    def hello(self) -> ReplicaHello:
        """What the pool's file says."""
        about = self.pool.about
        return ReplicaHello("", str(about.get("kind", "")), about.get("inputs"), about.get("outputs"))

    def want(self, waiting: int, now: float) -> list[Action]:
        """Calls have come or were answered, and so many wait: lease what they need."""
        self._used = now
        room = self.pool.most - len(self._asked) - len(self._held)
        needed = math.ceil(waiting / LEASED_DEPTH) - len(self._asked)
        if min(room, needed) <= 0 or (self._held and now < self._not_before):
            return []
        replica = self._make()
        self._asked.add(replica)
        return [LeaseDevice(replica.number, self._name, self.pool)]

    def opened(self, replica: Replica) -> None:
        """A device is leased, and has the model."""
        self._asked.discard(replica)
        self._held.add(replica)

    def lost(self, replica: Replica, now: float) -> None:
        """A lease is lost, or no device could be leased."""
        if replica in self._asked:
            self._not_before = now + AGAIN_S
        self._asked.discard(replica)
        self._held.discard(replica)

    def tick(self, busy: bool, now: float) -> list[Action]:
        """Give back all devices after a while without a call. ``busy``: whether calls wait or are under way."""
        if busy:
            self._used = now
        if busy or not self._held or now < self._used + self.pool.idle_s:
            return []
        return self.clear()

    def next_due(self) -> float:
        """When `tick` may have something to do."""
        return self._used + self.pool.idle_s if self._held else math.inf

    def clear(self) -> list[Action]:
        """Give back all devices, those that are asked for, too."""
        replicas = [*self._held, *self._asked]
        self._held.clear()
        self._asked.clear()
        return [action for replica in replicas for action in self._leave(replica)]
