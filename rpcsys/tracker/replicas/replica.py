"""A replica's decisions: what to ask of the engine, what to apply, what to say. Nothing is sent or read here.

A replica that follows reads the journal; one that leads writes it, and renews its lease. Each `Request` is answered by
`answered` or `lost`. Times are seconds of a clock that never runs backwards.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Generic

from rpcsys.errors import ProtocolError
from rpcsys.link.backoff import Backoff
from rpcsys.tracker.events import HistoryEntry
from rpcsys.tracker.replicas import journal, role
from rpcsys.tracker.replicas.engine import Leader, Look, Snapshot
from rpcsys.tracker.replicas.journal import Fold
from rpcsys.tracker.replicas.ledger import Ledger, Output
from rpcsys.tracker.replicas.role import Follow, Lead, ReplicaRole, RoleStage, StepDown

TAIL_S = 0.2  # how often a follower reads the journal
LOOK_S = 1.0  # how often a leader looks who else there is
AGAIN_S = 0.1  # the pause before a request that has failed is made again
#: The part of its lease for which a leader trusts it: clocks of two machines differ in their speed.
TRUSTED = 0.9
#: A snapshot is written after so many entries, or bytes of them.
SNAPSHOT_ENTRIES, SNAPSHOT_BYTES = 2000, 16 << 20
#: The first and the longest pause before a snapshot that has failed is written again.
SNAPSHOT_PAUSES_S = (10.0, 300.0)


# Requests to the engine; they are `Engine`'s methods.


@dataclass(frozen=True)
class ReadJournal:
    """`Engine.look` for what follows entry ``after``."""

    after: int


@dataclass(frozen=True)
class ReadSnapshot:
    """`Engine.read_snapshot`."""

    snapshot: Snapshot


@dataclass(frozen=True)
class Campaign:
    """`Engine.campaign`."""

    over: int


@dataclass(frozen=True)
class BeginTerm:
    """`Engine.begin`: delete the entries behind ``last``, which stand behind a gap. ``journal``: the journal's ID."""

    last: int
    journal: str
    term: int


@dataclass(frozen=True)
class Append:
    """`Engine.append`."""

    number: int
    data: bytes
    term: int


@dataclass(frozen=True)
class RenewLease:
    """`Engine.renew`."""

    term: int


@dataclass(frozen=True)
class WriteSnapshot:
    """`Engine.write_snapshot` of what has been applied, up to entry ``through``, ``size`` bytes after the last one."""

    term: int
    through: int
    size: int


Request = ReadJournal | ReadSnapshot | Campaign | BeginTerm | Append | RenewLease | WriteSnapshot


# Actions, beside `Follow`, `Lead` and `StepDown` of the role.


@dataclass(frozen=True)
class EngineCall:
    """Make a request."""

    request: Request
    sent_at: float


@dataclass(frozen=True)
class Apply:
    """The journal has these records: write them to the history. ``through``: the number of their entry."""

    records: Sequence[HistoryEntry]
    through: int


@dataclass(frozen=True)
class Restart:
    """Replace all records that hold by those of a snapshot."""

    fold: Fold


@dataclass(frozen=True)
class Say(Generic[Output]):
    """Send what was held."""

    outputs: Sequence[Output]


@dataclass(frozen=True)
class BeginAnew:
    """The engine's journal is another one, or was restored, or is new. Read it from its beginning."""

    through: int  # what this replica has


@dataclass(frozen=True)
class JournalUnreadable:
    """The journal cannot be read on, and this replica does not lead: a sentence says why. It is said once."""

    reason: str


Action = EngineCall | Apply | Restart | Say[Any] | BeginAnew | JournalUnreadable | Follow | Lead | StepDown


class ReplicaState(Generic[Output]):
    """One tracker of several. ``me``: its value of the leader's key; ``fold``: what it has of the journal."""

    def __init__(self, me: Leader, fold: Fold, now: float) -> None:
        self.role = ReplicaRole(me.replica, now)
        self.fold = fold
        self.ledger: Ledger[Output] | None = None  # while it leads
        self.bytes_since = 0  # the last snapshot; of entries that this process has seen
        self._snapshot_through = 0  # the last entry in it
        self._joined = not fold.through  # whether the engine has the last entry of ``fold``
        self._restored = False  # whether the engine had more of this journal earlier: others may have that, too
        self._replica = me.replica
        self._reading: Request | None = None  # one of looking, campaigning and the like at a time
        self._look_at = now
        self._renewing = self._snapshooting = False
        self._snapshots = Backoff(*SNAPSHOT_PAUSES_S)
        self._renew_at = math.inf
        self._valid_until = -math.inf  # as `Ledger.valid_until`, before there is one
        self._again: list[tuple[float, Append]] = []  # appends that failed

    def deadline(self) -> float:
        """When the next `tick` is due."""
        if self.role.stage is RoleStage.STOPPED:
            return math.inf
        due = [at for at, _ in self._again]
        if self._reading is None:
            due.append(self._look_at)
        if not self._renewing:
            due.append(self._renew_at)
        return min(due, default=math.inf)

    def tick(self, now: float) -> list[Action]:
        """Do what is due."""
        actions = self._decide(role.EngineSilent(now), now)
        if self.role.stage is RoleStage.STOPPED:
            return actions
        if self._reading is None and now >= self._look_at:
            begins = self.role.leads and self.ledger is None
            after = self.fold.through - (not self._joined)
            actions.append(self._begin(now) if begins else self._read(ReadJournal(after), now))
        if not self._renewing and now >= self._renew_at:
            self._renewing = True
            actions.append(EngineCall(RenewLease(self.role.term), now))
        due = [append for at, append in self._again if at <= now]
        self._again = [(at, append) for at, append in self._again if at > now]
        return [*actions, *(EngineCall(append, now) for append in due), *self._snapshot(now)]

    def stop(self, now: float) -> list[Action]:
        """Stop for good; a leader gives its term back."""
        return self._decide(role.StopRequested(now), now)

    def leader_refuses(self, term: int, now: float) -> list[Action]:
        """The leader's port refuses connections."""
        return self._decide(role.LeaderRefuses(now, term), now) if self._reading is None else []

    # As the leader.

    def note(self, record: HistoryEntry) -> None:
        """Add a record of the present turn."""
        assert self.ledger is not None, "only a leader makes records"
        self.ledger.note(record)

    def turn_over(self, now: float) -> list[Action]:
        """Write what the turn has decided."""
        actions: list[Action] = []
        while self.ledger is not None and (entry := self.ledger.entry()) is not None:
            actions.append(EngineCall(Append(entry.number, entry.data, self.role.term), now))
        return actions

    # Answers.

    def answered(self, ask: EngineCall, answer: Any, now: float) -> list[Action]:
        """The engine's answer to a request, as the method of `Engine` returns it."""
        request = ask.request
        if isinstance(request, Append):
            return self._appended(request, ask.sent_at, answer, now)
        if isinstance(request, RenewLease):
            return self._renewed(request, ask.sent_at, answer, now)
        if isinstance(request, WriteSnapshot):
            return self._snapshot_written(request, answer, now)
        self._reading = None
        if isinstance(request, ReadJournal):
            return self._looked(answer, ask.sent_at, now)
        if isinstance(request, ReadSnapshot):
            return self._restart(request.snapshot, answer, now)
        if isinstance(request, Campaign):
            return self._decide(role.Campaigned(now, answer), now)
        return self._begun(request, answer, now)

    def lost(self, ask: EngineCall, now: float) -> list[Action]:
        """The engine has not answered a request: it may have been carried out."""
        request = ask.request
        if isinstance(request, Append):
            if request.term == self.role.term and self.ledger is not None:
                self._again.append((now + AGAIN_S, request))
        elif isinstance(request, RenewLease):
            self._renewing = False
            if self.role.owns_term:
                self._renew_at = now + AGAIN_S
        elif isinstance(request, WriteSnapshot):
            self._snapshooting = False
            self._snapshots.failed(now)
        else:
            self._reading, self._look_at = None, now + AGAIN_S
            if isinstance(request, Campaign):
                return self._decide(role.Campaigned(now, 0), now)
        return self._decide(role.EngineSilent(now), now)

    def _read(self, request: Request, now: float) -> EngineCall:
        self._reading = request
        return EngineCall(request, now)

    def _begin(self, now: float) -> EngineCall:
        """Begin the term, with the journal that there is, or with a new one."""
        term, journal_id = self.role.term, "" if self._restored else self.fold.journal
        return self._read(BeginTerm(self.fold.through, journal_id or f"{self._replica}-{term}", term), now)

    def _decide(self, event: role.Event, now: float) -> list[Action]:
        """Give an event to the role; the actions, with what they mean for the engine."""
        actions: list[Action] = []
        for action in self.role.handle(event):
            if isinstance(action, role.BeginCampaign):
                actions.append(self._read(Campaign(action.over), now))
            elif isinstance(action, role.CatchUp):
                self._look_at = self._renew_at = now
            elif isinstance(action, Lead):
                actions.append(self._begin(now))
            elif isinstance(action, StepDown):
                self.ledger, self._again, self._renew_at, self._valid_until = None, [], math.inf, -math.inf
                actions.append(action)
            else:
                actions.append(action)
        return actions

    def _looked(self, look: Look, sent_at: float, now: float) -> list[Action]:
        actions: list[Action] = []
        self._look_at = now + (LOOK_S if self.role.leads else TAIL_S)
        if look.snapshot is not None and look.snapshot.through > self._snapshot_through:
            self._snapshot_through, self.bytes_since = look.snapshot.through, 0
        if self.ledger is None:
            actions, whole = self._follow(look, now)
            if not whole:
                return actions
        return [*actions, *self._decide(role.Seen(sent_at, look.leader, look.term, not look.more), now)]

    def _follow(self, look: Look, now: float) -> tuple[list[Action], bool]:
        """Apply the journal's next entries; and whether nothing is missing before them."""
        snapshot = look.snapshot
        anew = self._join(look, now)
        if anew:
            return anew, False
        if not look.entries and snapshot is not None and snapshot.through > self.fold.through:  # they are deleted
            return [self._read(ReadSnapshot(snapshot), now)], False
        actions: list[Action] = []
        try:
            for number, data in look.entries:
                if number > self.fold.through:
                    records = journal.unpack(data)
                    self.fold.count(records, number)
                    self.bytes_since += len(data)
                    actions.append(Apply(records, number))
        except ProtocolError as error:
            return [*actions, *self._unreadable(error)], True
        if look.entries:
            self.role.obstacle = ""
        if look.more:
            self._look_at = now
        return actions, True

    def _join(self, look: Look, now: float) -> list[Action]:
        """See that the engine's journal is the one that this replica has a part of; begin anew if it is not."""
        fold, journal_id, joined = self.fold, journal.id_in(look.config), self._joined
        self._joined = True
        within = look.snapshot is not None and look.snapshot.through >= fold.through
        has = joined or within or any(number == fold.through for number, _ in look.entries)
        if journal_id == fold.journal and has:
            return []
        self._restored = journal_id == fold.journal
        self.fold, self._look_at = Fold(journal=journal_id), now
        return [BeginAnew(fold.through)] if fold.through else []

    def _unreadable(self, error: ProtocolError) -> list[Action]:
        said, self.role.obstacle = self.role.obstacle, str(error)
        return [] if said == self.role.obstacle else [JournalUnreadable(self.role.obstacle)]

    def _restart(self, snapshot: Snapshot, cut: Sequence[bytes] | None, now: float) -> list[Action]:
        self._look_at = now
        if cut is None or self.ledger is not None or snapshot.through <= self.fold.through:
            return []
        try:
            fold = Fold.of(snapshot, cut, self.fold.journal)
        except ProtocolError as error:
            self._look_at = now + TAIL_S
            return self._unreadable(error)
        self.fold = fold
        return [Restart(fold)]

    def _begun(self, request: BeginTerm, done: bool, now: float) -> list[Action]:
        if not done:
            return self._decide(role.Deposed(now, request.term), now)
        if not self.role.leads or request.term != self.role.term:
            return []
        self.fold.journal, self._restored = request.journal, False
        self.ledger = Ledger(self.fold.through, self._valid_until)
        self._look_at = now + LOOK_S
        return [Lead(request.term)]

    def _appended(self, request: Append, sent_at: float, done: bool, now: float) -> list[Action]:
        if not done:
            return self._decide(role.Deposed(now, request.term), now)
        if self.ledger is None or request.term != self.role.term:
            return []
        actions = self._decide(role.Kept(sent_at, request.term), now)
        entries, outputs = self.ledger.written(request.number, now)
        for entry in entries:
            self.fold.count(entry.records, entry.number)
            actions.append(Apply(entry.records, entry.number))
        if outputs:
            actions.append(Say(outputs))
        self.bytes_since += len(request.data)
        return [*actions, *self.turn_over(now), *self._snapshot(now)]

    def _snapshot(self, now: float) -> list[Action]:
        through = self.fold.through
        due = through - self._snapshot_through >= SNAPSHOT_ENTRIES or self.bytes_since >= SNAPSHOT_BYTES
        if self.ledger is None or self._snapshooting or not due or not self._snapshots.allows(now):
            return []
        self._snapshooting = True
        return [EngineCall(WriteSnapshot(self.role.term, through, self.bytes_since), now)]

    def _snapshot_written(self, request: WriteSnapshot, done: bool, now: float) -> list[Action]:
        self._snapshooting = False
        if not done:
            return self._decide(role.Deposed(now, request.term), now)
        self._snapshots.worked()
        if request.through > self._snapshot_through:  # a look may have seen it
            self._snapshot_through = request.through
            self.bytes_since -= request.size
        return []

    def _renewed(self, request: RenewLease, sent_at: float, seconds: float, now: float) -> list[Action]:
        self._renewing = False
        if request.term != self.role.term or not self.role.owns_term:
            return []
        if not seconds:
            return self._decide(role.Deposed(now, request.term), now)
        self._renew_at = sent_at + seconds / 3
        actions = self._decide(role.Kept(sent_at, request.term), now)
        self._valid_until = max(self._valid_until, sent_at + seconds * TRUSTED)
        outputs = [] if self.ledger is None else self.ledger.renewed(self._valid_until, now)
        return [*actions, Say(outputs)] if outputs else actions
