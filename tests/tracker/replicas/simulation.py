"""Replicas and their engine on a clock of its own: late, lost and reordered answers, pauses, kills, clocks that differ.

Each replica runs a tracker that gives out numbers. What it says is checked at the moment when it says it.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

from rpcsys.tracker.batch import LiveState
from rpcsys.tracker.events import HistoryEntry
from rpcsys.tracker.replicas import journal, replica, role
from rpcsys.tracker.replicas.engine import Leader, Look, ReplicaStatus, Snapshot
from rpcsys.tracker.replicas.journal import Fold
from rpcsys.tracker.replicas.replica import EngineCall, ReplicaState

TTL_S = 1.0
ENGINE_S = 0.05  # between two ends of leases
LOOK_S = 0.02  # how often a replica's timers are looked at


class Broken(AssertionError):
    """An invariant does not hold."""


@dataclass
class SimulatedEngine:
    """The engine's transactions, each at one moment. Without ``guard`` it takes the writes of deposed leaders."""

    guard: bool = True
    now: float = 0.0
    revision: int = 0
    leader: tuple[Leader, int, float] | None = None  # with its term, and the end of its lease
    journal: dict[int, bytes] = field(default_factory=dict)
    snapshot: tuple[Snapshot, list[bytes]] | None = None
    written_by: dict[int, int] = field(default_factory=dict)  # entry -> term
    replicas: dict[str, ReplicaStatus] = field(default_factory=dict)
    config: dict[str, Any] | None = None

    @property
    def term(self) -> int:
        if self.leader is not None and self.now >= self.leader[2]:
            self.leader = None
        return 0 if self.leader is None else self.leader[1]

    def last(self) -> int:
        """The last entry before the journal's first gap."""
        number = 0 if self.snapshot is None else self.snapshot[0].through
        while number + 1 in self.journal:
            number += 1
        return number

    def carry_out(self, request: replica.Request, me: Leader, fold: Fold) -> Any:
        if isinstance(request, replica.ReadJournal):
            return self._look(request.after)
        if isinstance(request, replica.ReadSnapshot):
            same = self.snapshot is not None and self.snapshot[0] == request.snapshot
            return self.snapshot[1] if same and self.snapshot is not None else None
        if isinstance(request, replica.Campaign):
            return self._campaign(me, request.over)
        if self.guard and self.term != request.term:
            return 0.0 if isinstance(request, replica.RenewLease) else False
        if isinstance(request, replica.Append):
            data = request.data
            if self.journal.get(request.number, data) != data and self.guard:
                raise Broken(f"entry {request.number} is written twice, with other records")
            self.journal[request.number] = data
            self.written_by[request.number] = request.term
            return True
        if isinstance(request, replica.BeginTerm):
            for number in [number for number in self.journal if number > request.last]:
                if number <= self.last():
                    raise Broken(f"entry {number} is deleted, which no gap stands before")
                del self.journal[number]
            self.config = {"journal": request.journal}
            return True
        if isinstance(request, replica.WriteSnapshot):
            snapshot, pieces = fold.snapshot()
            self.snapshot = snapshot, pieces
            self.journal = {number: data for number, data in self.journal.items() if number > snapshot.through}
            return True
        if self.leader is None or self.leader[0] != me:
            return 0.0
        self.leader = (*self.leader[:2], self.now + TTL_S)
        return TTL_S

    def _look(self, after: int) -> Look:
        term = self.term
        snapshot = None if self.snapshot is None else self.snapshot[0]
        whole = [*itertools.takewhile(lambda number: number in self.journal, itertools.count(after + 1))]
        entries = [(number, self.journal[number]) for number in whole[:3]]
        more = len(whole) > 3
        return Look(None if self.leader is None else self.leader[0], term, entries, snapshot, self.config, more)

    def _campaign(self, me: Leader, over: int) -> int:
        if self.term != over:
            return 0
        self.revision += 1
        self.leader = me, self.revision, self.now + TTL_S
        return self.revision


@dataclass(frozen=True)
class Said:
    """What a tracker says: the ``number`` given to ``request``, or, where that is None, the highest one given."""

    term: int
    number: int
    request: int | None
    least: int  # the highest number that anybody had been told of when the request came


@dataclass
class Node:
    """A replica with its tracker. ``offset``, ``rate``: of its clock against the world's."""

    replica: ReplicaState[Said]
    me: Leader
    offset: float
    rate: float
    holds: bool
    fold: Fold = field(default_factory=Fold)  # what it has applied
    given: dict[int, int] | None = None  # by number, the request that has it; while it leads
    paused_until: float = 0.0
    dead: bool = False
    led: int = 0


def granted(at: float, number: int, request: int) -> HistoryEntry:
    """The record of a number given to a request."""
    texts = dict.fromkeys(("key", "server", "user", "address"), "a")
    numbers = {"epoch": number, "arrival": request, "limit_s": None, "waited_s": 0.0, "priority": 1.0}
    return HistoryEntry(at, "granted", {"lease": f"{number}-{request}", **texts, **numbers, "how": "ours"})


def given(fold: Fold) -> dict[int, int]:
    """By number, the request that has it, as a journal says."""
    found: dict[int, int] = {}
    for record in fold.live.values():
        number, request = record.details["epoch"], record.details["arrival"]
        if found.setdefault(number, request) != request:
            raise Broken(f"the journal gives {number} to the requests {found[number]} and {request}")
    return found


class World:
    """Time, the engine, and ``count`` replicas. ``random`` decides all that is not decided by them."""

    def __init__(self, random: Random, count: int, *, guard: bool = True, holds: bool = True) -> None:
        self.random = random
        self.now = 0.0
        self.engine = SimulatedEngine(guard)
        self.faults = True
        self.cut_off_until = [0.0] * count  # from the engine
        self._numbers = itertools.count(1)
        self._requests = itertools.count(1)
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self.said: list[Said] = []
        self.highest = 0  # number that anybody was told of
        self._holds = holds
        self.nodes = [self._node(index, Fold()) for index in range(count)]
        for index in range(count):
            self.after(0.0, lambda index=index: self._timers(index))

    def _node(self, index: int, fold: Fold) -> Node:
        me = Leader((f"lab-{index}", 9190), 0, "1", f"{index}-{next(self._numbers)}")
        offset, rate = self.random.uniform(-3600, 3600), self.random.uniform(0.98, 1.02)
        copy = replace(fold, live=LiveState())
        return Node(ReplicaState(me, copy, self.now * rate + offset), me, offset, rate, self._holds, fold)

    # Time.

    def after(self, seconds: float, act: Callable[[], None]) -> None:
        heapq.heappush(self._events, (self.now + seconds, next(self._numbers), act))

    def at_node(self, index: int, node: Node, act: Callable[[], None]) -> None:
        """Run something of a node now, or once it is no longer paused. Nothing if it has died."""
        if node.dead:
            return
        if node.paused_until > self.now:
            self.after(node.paused_until - self.now, lambda: self.at_node(index, node, act))
            return
        act()

    def run(self, seconds: float) -> None:
        end = self.now + seconds
        while self._events and self._events[0][0] <= end:
            self.now, _, act = heapq.heappop(self._events)
            self.engine.now = self.now
            act()
        self.now = self.engine.now = end

    def clock(self, node: Node) -> float:
        return self.now * node.rate + node.offset

    # Replicas.

    def _timers(self, index: int) -> None:
        node = self.nodes[index]

        def tick() -> None:
            if self.clock(node) >= node.replica.deadline():
                self._carry_out(index, node, node.replica.tick(self.clock(node)))

        self.at_node(index, node, tick)
        self.after(LOOK_S, lambda: self._timers(index))

    def _carry_out(self, index: int, node: Node, actions: list[replica.Action]) -> None:
        for action in actions:
            if isinstance(action, EngineCall):
                self._ask(index, node, action)
            elif isinstance(action, replica.Apply):
                node.fold.fold(action.records, action.through)
                node.fold.journal = node.replica.fold.journal
            elif isinstance(action, replica.Restart):
                node.fold = action.fold
            elif isinstance(action, replica.Say):
                for output in action.outputs:
                    self._say(output)
            elif isinstance(action, role.Lead):
                node.given, node.led = given(node.fold), action.term
                missing = [said for said in self.said if said.request and node.given.get(said.number) != said.request]
                if missing and self.engine.term == action.term:  # otherwise it has been deposed, and hears so
                    raise Broken(f"the leader of term {action.term} does not know {missing[0]}")
            elif isinstance(action, role.StepDown):
                node.given = None
            elif isinstance(action, (replica.JournalUnreadable, replica.BeginAnew)):
                raise Broken(f"{action} in a journal that is whole")

    def _ask(self, index: int, node: Node, ask: EngineCall) -> None:
        slow = self.faults and self.random.random() < 0.1
        there = self.random.uniform(0.001, 1.5 if slow else 0.02)
        back = self.random.uniform(0.001, 1.5 if slow else 0.02)
        cut_off = self.cut_off_until[index] > self.now
        lost = cut_off or (self.faults and self.random.random() < 0.05)
        arrives = not cut_off and (not lost or self.random.random() < 0.5)

        def arrive() -> None:
            answer = self.engine.carry_out(ask.request, node.me, node.fold) if arrives else None

            def come_back() -> None:
                now = self.clock(node)
                come = node.replica.lost(ask, now) if lost else node.replica.answered(ask, answer, now)
                self._carry_out(index, node, come)

            self.after(self.random.uniform(0.5, 3.0) if lost else back, lambda: self.at_node(index, node, come_back))

        self.after(there, arrive)

    # Clients.

    def request(self, reads: bool) -> None:
        """Some client asks each node that leads, by its own word: for a number, or for the highest one."""
        least, request = self.highest, next(self._requests)
        for index, node in enumerate(self.nodes):
            ask = lambda index=index, node=node: self._decide(index, node, None if reads else request, least)  # noqa: E731
            if node.given is not None:
                self.after(
                    self.random.uniform(0, 0.01), lambda index=index, node=node, ask=ask: self.at_node(index, node, ask)
                )
                if not reads:
                    return

    def _decide(self, index: int, node: Node, request: int | None, least: int) -> None:
        if node.given is None:
            return
        now = self.clock(node)
        number = max(node.given, default=0)
        if request is not None:
            number += 1
            node.given[number] = request
            node.replica.note(granted(now, number, request))
        output = Said(node.led, number, request, least)
        ledger = node.replica.ledger
        assert ledger is not None
        if not (node.holds and ledger.hold(output, now)):
            self._say(output)
        self._carry_out(index, node, node.replica.turn_over(now))

    def _say(self, said: Said) -> None:
        later = [other for other in self.said if other.term > said.term]
        if later:
            raise Broken(f"{said} is said after {later[0]}")
        if said.request is None:
            if said.number < said.least:
                raise Broken(f"{said}: others were told of more")
        else:
            if given(self.promised()).get(said.number) != said.request:
                raise Broken(f"{said} is not in the journal")
            self.highest = max(self.highest, said.number)
        self.said.append(said)

    def promised(self) -> Fold:
        """What the journal says up to its first gap."""
        engine, fold = self.engine, Fold()
        if engine.snapshot is not None:
            fold = Fold.of(*engine.snapshot)
        for number in range(fold.through + 1, engine.last() + 1):
            fold.fold(journal.unpack(engine.journal[number]), number)
        return fold

    # Faults.

    def fault(self) -> None:
        """One fault at random."""
        index = self.random.randrange(len(self.nodes))
        node = self.nodes[index]
        kind = self.random.choice(("pause", "kill", "cut off", "stop", "refuses", "snapshot"))
        if kind == "pause":
            node.paused_until = self.now + self.random.choice((0.3, 1.0, 2.0, 8.0))
        elif kind == "cut off":
            self.cut_off_until[index] = self.now + self.random.choice((0.5, 2.0, 8.0))
        elif kind in ("kill", "stop"):
            term = node.led if node.given is not None else 0
            if kind == "stop":
                self.at_node(index, node, lambda: self._carry_out(index, node, node.replica.stop(self.clock(node))))
            node.dead = True
            keeps = self.random.random() < 0.7
            self.nodes[index] = self._node(index, node.fold if keeps else Fold())
            self.nodes[index].paused_until = self.now + self.random.uniform(0.1, 3)
            if term:
                self._refuse(term)
        elif kind == "snapshot" and node.given is not None and node.paused_until <= self.now:
            self._ask(index, node, EngineCall(replica.WriteSnapshot(node.led, node.fold.through, 0), self.clock(node)))

    def _refuse(self, term: int) -> None:
        for index, node in enumerate(self.nodes):

            def hears(index: int = index, node: Node = node) -> None:
                self._carry_out(index, node, node.replica.leader_refuses(term, self.clock(node)))

            self.after(
                self.random.uniform(0, 0.2),
                lambda index=index, node=node, hears=hears: self.at_node(index, node, hears),
            )

    def heal(self) -> None:
        """No further faults."""
        self.faults = False
        self.cut_off_until = [0.0] * len(self.nodes)
        for node in self.nodes:
            node.paused_until = min(node.paused_until, self.now)


def leaders(world: World) -> list[Node]:
    """The nodes that lead, by their own word."""
    return [node for node in world.nodes if node.given is not None and node.paused_until <= math.inf]
