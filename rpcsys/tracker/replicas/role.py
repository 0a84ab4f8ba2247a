"""Who leads: a replica's role, from what it sees of the engine. Events go in, actions come out; nothing else happens.

Times are seconds of this process's clock, which never runs backwards.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from rpcsys.tracker.replicas.engine import Leader

#: Without contact to the engine for so long, a leader leads no more: the engine's own elections take up to two seconds.
CONTACT_S = 5.0
#: The shortest time between two campaigns against a leader whose process is known dead.
DEAD_EVERY_S = 10.0


class RoleStage(enum.Enum):
    """What a replica does. `_NEXT` has the changes."""

    FOLLOWING = "follows"
    CAMPAIGNING = "campaigns"  # asks the engine whether it may lead
    CATCHING_UP = "catches up"  # may lead, and reads the journal to its end
    LEADING = "leads"
    STOPPED = "stopped"


_NEXT: Mapping[RoleStage, tuple[RoleStage, ...]] = {
    RoleStage.FOLLOWING: (RoleStage.CAMPAIGNING, RoleStage.STOPPED),
    RoleStage.CAMPAIGNING: (RoleStage.FOLLOWING, RoleStage.CATCHING_UP, RoleStage.STOPPED),
    RoleStage.CATCHING_UP: (RoleStage.FOLLOWING, RoleStage.LEADING, RoleStage.STOPPED),
    RoleStage.LEADING: (RoleStage.FOLLOWING, RoleStage.STOPPED),
    RoleStage.STOPPED: (),
}


# Events.


@dataclass(frozen=True)
class Seen:
    """The engine was read: who leads there, and whether this replica has the whole journal that it saw."""

    at: float
    leader: Leader | None
    term: int
    whole: bool


@dataclass(frozen=True)
class EngineSilent:
    """A request to the engine has failed, or nothing has come from it for a while."""

    at: float


@dataclass(frozen=True)
class LeaderRefuses:
    """The leader's port refuses connections: its process is dead, though its lease may hold."""

    at: float
    term: int


@dataclass(frozen=True)
class Campaigned:
    """The campaign's result: the new term, or 0: another leads, or it is not known."""

    at: float
    term: int


@dataclass(frozen=True)
class Kept:
    """The engine has confirmed, by a request sent at ``at``, that this replica leads."""

    at: float
    term: int


@dataclass(frozen=True)
class Deposed:
    """The engine has refused what the leader of ``term`` wrote, or its lease is over."""

    at: float
    term: int


@dataclass(frozen=True)
class StopRequested:
    """This replica is to stop."""

    at: float


Event = Seen | EngineSilent | LeaderRefuses | Campaigned | Kept | Deposed | StopRequested


# Actions.


@dataclass(frozen=True)
class BeginCampaign:
    """Ask the engine to lead in place of the leader of term ``over``; 0: of nobody."""

    over: int


@dataclass(frozen=True)
class Lead:
    """Lead from now on. The journal is read to its end."""

    term: int


@dataclass(frozen=True)
class CatchUp:
    """Read the journal to its end, and delete what stands behind a gap of it."""

    term: int


@dataclass(frozen=True)
class Follow:
    """Another leads; None: nobody does."""

    leader: Leader | None
    term: int


@dataclass(frozen=True)
class StepDown:
    """Lead no more: close every connection, and say nothing of what is held. ``resign``: give the term back."""

    term: int
    reason: str
    resign: bool = False


Action = BeginCampaign | CatchUp | Lead | Follow | StepDown


class ReplicaRole:
    """The role of the replica with the ID ``replica``. ``obstacle``: why it cannot lead, empty if it can."""

    def __init__(self, replica: str, now: float) -> None:
        self.stage = RoleStage.FOLLOWING
        self.term = 0  # the highest one known
        self.leader: Leader | None = None  # the one of that term, None if nobody leads
        self.obstacle = ""
        self.handicap_s = 0.0  # how long it leaves a free place to others
        self.since = now
        self.contact_at = now  # when the last request that the engine has answered was sent
        self._replica = replica
        self._dead_at = -DEAD_EVERY_S
        self._free_since: float | None = None  # when this replica first saw that nobody leads
        self._on: dict[type, Callable[[Any], list[Action]]] = {
            Seen: self._seen,
            EngineSilent: self._silent,
            LeaderRefuses: self._refused,
            Campaigned: self._campaigned,
            Kept: self._kept,
            Deposed: self._deposed,
            StopRequested: self._stop,
        }

    @property
    def leads(self) -> bool:
        """Whether this replica leads."""
        return self.stage is RoleStage.LEADING

    def handle(self, event: Event) -> list[Action]:
        """Apply an event; the actions that follow, in order."""
        return [] if self.stage is RoleStage.STOPPED else self._on[type(event)](event)

    def _move(self, stage: RoleStage, now: float) -> None:
        assert stage in _NEXT[self.stage], f"{self.stage} -> {stage}"
        self.stage, self.since = stage, now

    @property
    def owns_term(self) -> bool:
        """Whether the engine has given this replica the term: it leads, or is about to."""
        return self.stage in (RoleStage.CATCHING_UP, RoleStage.LEADING)

    def _seen(self, event: Seen) -> list[Action]:
        self.contact_at = max(self.contact_at, event.at)
        if event.at < self.since or 0 < event.term < self.term:
            return []  # read before this replica took its role, or before a later term began
        if self.owns_term:
            return self._seen_by_leader(event)
        # A campaign of its own whose answer was lost ends with its lease.
        leader = None if event.leader is None or event.leader.replica == self._replica else event.leader
        changed = (leader, max(event.term, self.term)) != (self.leader, self.term)
        self.leader, self.term = leader, max(event.term, self.term)
        actions: list[Action] = [Follow(self.leader, self.term)] if changed else []
        if event.leader is not None:
            self._free_since = None
        elif self.stage is RoleStage.FOLLOWING and event.whole and not self.obstacle:
            self._free_since = event.at if self._free_since is None else self._free_since
            if event.at - self._free_since >= self.handicap_s:
                actions += self._campaign(0, event.at)
        return actions

    def _seen_by_leader(self, event: Seen) -> list[Action]:
        if event.leader is None:
            return self._down("its lease is over", event.at)
        if event.term != self.term:
            return self._down("another tracker leads", event.at)
        if event.whole and self.stage is RoleStage.CATCHING_UP:
            self._move(RoleStage.LEADING, event.at)
            return [Lead(self.term)]
        return []

    def _campaign(self, over: int, now: float) -> list[Action]:
        self._move(RoleStage.CAMPAIGNING, now)
        return [BeginCampaign(over)]

    def _refused(self, event: LeaderRefuses) -> list[Action]:
        lately = event.at - self._dead_at < DEAD_EVERY_S
        follows = self.stage is RoleStage.FOLLOWING and self.leader is not None and event.term == self.term
        if not follows or lately or self.obstacle or self.handicap_s:
            return []
        self._dead_at = event.at
        return self._campaign(self.term, event.at)

    def _campaigned(self, event: Campaigned) -> list[Action]:
        if self.stage is not RoleStage.CAMPAIGNING:
            return []
        if event.term <= self.term:
            self._move(RoleStage.FOLLOWING, event.at)
            return []
        self.term, self.leader, self.contact_at = event.term, None, event.at
        self._move(RoleStage.CATCHING_UP, event.at)
        return [CatchUp(self.term)]

    def _kept(self, event: Kept) -> list[Action]:
        if event.term == self.term:
            self.contact_at = max(self.contact_at, event.at)
        return []

    def _silent(self, event: EngineSilent) -> list[Action]:
        if self.owns_term and event.at - self.contact_at > CONTACT_S:
            return self._down(f"the engine has not answered for {CONTACT_S:g} s", event.at)
        return []  # another leader may go on: this replica alone may be cut off

    def _deposed(self, event: Deposed) -> list[Action]:
        return self._down("another tracker leads", event.at) if self.owns_term and event.term == self.term else []

    def _down(self, reason: str, now: float) -> list[Action]:
        term, self.leader = self.term, None
        self._move(RoleStage.FOLLOWING, now)
        return [StepDown(term, reason), Follow(None, term)]

    def _stop(self, event: StopRequested) -> list[Action]:
        led = self.owns_term
        self._move(RoleStage.STOPPED, event.at)
        return [StepDown(self.term, "it stops", resign=True)] if led else []
