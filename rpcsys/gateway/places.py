"""The servers of a deployed module, as lists of modules name them: which connections are opened, and when again."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from rpcsys.gateway.actions import Action, ConnectReplica, ReplicaPlace
from rpcsys.gateway.replicas import Replica, ReplicaStage

#: Seconds between attempts to connect, from the second on; each pause is twice as long as the one before.
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.05, 2.0
#: A connection that lasted so long was a good one: after its loss the next attempt is made at once.
GOOD_S = 1.0
#: Seconds that a connection is kept to the last place of a model, which is not listed any more. A tracker that was
#: started again lists nothing until its servers are back.
UNLISTED_S = 30.0


class ListedPlace:
    """One server of the module. ``version``: as the list says."""

    __slots__ = ("fails", "older", "place", "refreshed", "replica", "retry_at", "unlisted", "version")

    def __init__(self, place: ReplicaPlace) -> None:
        self.place = place
        self.version = ""
        self.older = ""  # the version of which the last list knew, and the replica there did not
        self.refreshed = ""  # the version for which it was connected anew
        self.replica: Replica | None = None
        self.fails = 0
        self.retry_at = 0.0  # when to connect, without a replica
        self.unlisted: float | None = None  # since when it is not listed


class ListedPlaces:
    """The places of one model, with a replica at each.

    ``make`` makes a replica for a place; ``leave`` has one get no more calls, and closes it when it is idle.
    """

    def __init__(
        self, name: str, make: Callable[[ReplicaPlace], Replica], leave: Callable[[Replica], list[Action]]
    ) -> None:
        self._name = name
        self._make = make
        self._leave = leave
        self._places: dict[ReplicaPlace, ListedPlace] = {}

    def __len__(self) -> int:
        return len(self._places)

    def listed(self, rows: Mapping[ReplicaPlace, str], now: float) -> list[Action]:
        """The model is served at these places, in these versions."""
        actions: list[Action] = []
        for place, version in rows.items():
            record = self._places.get(place)
            if record is None:
                record = self._places[place] = ListedPlace(place)
            record.unlisted = None
            record.version = version
            actions += self._refresh(record)
        for record in list(self._places.values()):
            if record.place not in rows:
                record.unlisted = now if record.unlisted is None else record.unlisted
                if rows:
                    actions += self._drop(record)
        return actions + self.tick(now)

    def _refresh(self, record: ListedPlace) -> list[Action]:
        """Connect anew to a host that has been replaced, if two lists say so and it has said nothing itself."""
        replica = record.replica
        if replica is None or replica.stage is not ReplicaStage.LIVE or replica.hello.version == record.version:
            record.older = ""
            return []
        if record.older != record.version:
            record.older = record.version
            return []
        if record.refreshed == record.version:
            return []
        record.refreshed = record.version
        record.replica = None
        record.retry_at = 0.0
        return self._leave(replica)

    def _drop(self, record: ListedPlace) -> list[Action]:
        del self._places[record.place]
        return [] if record.replica is None else self._leave(record.replica)

    def lost(self, replica: Replica, now: float) -> list[Action]:
        """A connection is lost, or could not be opened."""
        record = self._places.get(replica.place) if replica.place is not None else None
        if record is None or record.replica is not replica:
            return []
        record.replica = None
        good = replica.stage is not ReplicaStage.OPENING and now - replica.since >= GOOD_S
        pause = 0.0 if good else min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2.0 ** min(record.fails, 10))
        record.fails = 0 if good else record.fails + 1
        record.retry_at = now + pause
        if record.unlisted is not None:
            del self._places[record.place]
        return self.tick(now)

    def tick(self, now: float) -> list[Action]:
        """Connect where it is time to, and leave what is not listed any more."""
        actions: list[Action] = []
        for record in list(self._places.values()):
            if record.unlisted is not None and now >= record.unlisted + UNLISTED_S:
                actions += self._drop(record)
            elif record.replica is None and now >= record.retry_at:
                record.replica = self._make(record.place)
                actions.append(ConnectReplica(record.replica.number, self._name, record.place))
        return actions

    def next_due(self) -> float:
        """When `tick` has something to do."""
        due = math.inf
        for record in self._places.values():
            if record.replica is None:
                due = min(due, record.retry_at)
            if record.unlisted is not None:
                due = min(due, record.unlisted + UNLISTED_S)
        return due

    def clear(self) -> list[Action]:
        """Leave all places."""
        return [action for record in list(self._places.values()) for action in self._drop(record)]
