"""Runs a tracker that is one of several: carries out what `ReplicaState` decides, over the engine.

While it leads, a `TrackerService` serves who connects; while it does not, a `Standby`.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import time
from collections import deque
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from typing import Any

from prometheus_client.registry import Collector

from rpcsys import __version__
from rpcsys.daemon.http import Page, metrics_page
from rpcsys.link.address import address_text
from rpcsys.tracker import events
from rpcsys.tracker.config import TrackerConfig
from rpcsys.tracker.connection import PeerConnection
from rpcsys.tracker.events import HistoryEntry
from rpcsys.tracker.replicas import engine as engines
from rpcsys.tracker.replicas import replica as decisions
from rpcsys.tracker.replicas.engine import Engine, EngineFull, EngineLost, EngineRefused, Leader, Look
from rpcsys.tracker.replicas.journal import Fold
from rpcsys.tracker.replicas.leader_watch import LeaderWatch
from rpcsys.tracker.replicas.metrics import ReplicaCounts, ReplicaMetrics
from rpcsys.tracker.replicas.pages import REPLICAS, ReplicaPages
from rpcsys.tracker.replicas.replica import ReplicaState
from rpcsys.tracker.replicas.role import Follow, Lead, StepDown
from rpcsys.tracker.replicas.standby import Standby
from rpcsys.tracker.service import TrackerService
from rpcsys.tracker.store import HistoryStore
from rpcsys.tracker.tables import Position

log = logging.getLogger(__name__)
ANNOUNCE_S = 2.0  # how often a replica says that it is there
SIZE_S = 10.0  # how often the engine is asked for its size
HANDICAP_S = 5.0  # how long a replica with other flags than the last leader's leaves the place to the others
MAX_ENDS = 600  # of the journal that are remembered: ten minutes of a busy leader
BEHIND_S = 5.0  # a replica that lacks an entry for so long is behind
SNAPSHOT_AFTER_S = 10.0  # how long the journal before a snapshot stays, for those who are about to read it
RESOLVE_AGAIN_S = 10.0  # the pause before a replica's name is looked up again that had no address
FINISH_S = 1.0  # how long a leader that stops waits for what is under way

Held = tuple[PeerConnection, bytes]


@dataclass
class Term:
    """What a `TrackerService` that leads has (`rpcsys.tracker.leading.Leading`)."""

    term: int
    store: HistoryStore
    replica: ReplicaState[Held]
    carry_out: Callable[[list[decisions.Action]], None]

    def note(self, *records: HistoryEntry) -> None:
        """Add records of the present turn."""
        for record in records if self._lasts else ():
            self.replica.note(record)

    def hold(self, connection: PeerConnection, data: bytes) -> bool:
        """Hold back what is to be sent; for good, if the term is over."""
        ledger = self.replica.ledger
        return not self._lasts or ledger is None or ledger.hold((connection, data), time.monotonic())

    def turn_over(self) -> None:
        """Write the turn's records."""
        if self._lasts:
            self.carry_out(self.replica.turn_over(time.monotonic()))

    @property
    def _lasts(self) -> bool:
        return self.replica.ledger is not None and self.replica.role.term == self.term


class ReplicaService:
    """One of several trackers, made inside its event loop. ``me``: what it writes as the leader.

    Raises `ConfigError`: the state directory cannot be used.
    """

    def __init__(self, config: TrackerConfig, engine: Engine, me: Leader) -> None:
        assert config.state_dir is not None, "a replica keeps what its journal says"
        self.loop = asyncio.get_running_loop()
        self.stopped = asyncio.Event()
        self.tracker: TrackerService | None = None
        self.store = HistoryStore(config.state_dir, history_days=config.history_days)
        self.standby = Standby(config)
        self.counts = ReplicaCounts()
        self.others: dict[str, engines.ReplicaStatus] = {}  # by address; this one, too
        self._ends: deque[tuple[float, int]] = deque(maxlen=MAX_ENDS)  # of the journal, and when they were seen
        self._config = config
        self._engine = engine
        self._me = me
        self._addresses: dict[str, tuple[str, ...]] = {}  # of hosts of replicas
        self._most = 0  # replicas that there were at a time
        self._told: tuple[tuple[str, ...], str] | None = None  # the state of the tracker
        position = self.store.position
        fold = Fold(position.through, position.at, position.epoch, position.arrivals)
        self.replica: ReplicaState[Held] = ReplicaState(me, fold, time.monotonic())
        self._watch = LeaderWatch(self._leader_refuses)
        self._timer: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._trouble: EngineLost | EngineRefused | None = None  # the engine's, which is logged once
        self._alike = {"max_session": dict(config.limits)}  # what all replicas are to have
        metrics = metrics_page(ReplicaMetrics(self.counts, self._led_metrics))
        self.pages = ReplicaPages(self._led, lambda: self.replica.role.leader, self.summary, metrics)
        self._begin(self._announce())
        self._begin(self._measure())
        self._tick()

    def accept(self, sock: socket.socket, address: Any) -> None:
        """Admit or close a connection that has just been accepted."""
        (self.tracker or self.standby).accept(sock, address)

    def guard(self) -> None:
        """Who sees the pages: everybody, as no replica serves a closed lab."""

    async def close(self) -> None:
        """Finish what is under way, give the term back, and end all connections."""
        ledger = self.replica.ledger
        until = time.monotonic() + FINISH_S
        while ledger is not None and not ledger.idle and time.monotonic() < until:  # noqa: ASYNC110 - once, at the end
            await asyncio.sleep(0.005)
        led, term = self.replica.role.owns_term, self.replica.role.term
        self._watch.close()
        self._carry_out(self.replica.stop(time.monotonic()))
        if self._timer is not None:
            self._timer.cancel()
        under_way = [*self._tasks]
        for task in under_way:
            task.cancel()
        await asyncio.gather(*under_way, return_exceptions=True)
        if led:
            try:
                await self._engine.resign(term)
            except (EngineLost, EngineRefused) as error:
                log.warning("the term ends with its lease: %s", error)
        self.standby.close()
        await self._engine.close()
        self.store.close()

    def summary(self) -> dict[str, Any]:
        """Who leads, and which replicas there are, as plain JSON. Times are seconds since 1970."""
        role = self.replica.role
        leader = self._me if role.leads else role.leader
        rows = [
            {**vars(other), "address": address, "behind": max(0, self._last() - other.through)}
            for address, other in self.others.items()
        ]
        return {
            "leader": None if leader is None else address_text(*leader.address),
            "term": role.term,
            "engine": self._engine_text(),
            "replicas": sorted(rows, key=lambda row: str(row["address"])),
        }

    def _engine_text(self) -> str:
        if self._trouble is not None:
            return str(self._trouble)
        return self.replica.role.obstacle or ("up" if self.counts.engine_up else "not asked yet")

    def _last(self) -> int:
        return max([self.replica.fold.through, *(other.through for other in self.others.values())])

    def _led_metrics(self) -> Collector | None:
        return None if self.tracker is None else self.tracker.observer.metrics

    def _led(self) -> Mapping[str, Page] | None:
        return None if self.tracker is None else self.tracker.pages

    # Decisions.

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        task = self.loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _tick(self) -> None:
        self._carry_out(self.replica.tick(time.monotonic()))

    def _leader_refuses(self, term: int) -> None:
        self._carry_out(self.replica.leader_refuses(term, time.monotonic()))

    def _carry_out(self, actions: list[decisions.Action]) -> None:
        for action in actions:
            if isinstance(action, decisions.EngineCall):
                self._begin(self._ask(action))
            elif isinstance(action, decisions.Apply):
                self._apply(action)
            elif isinstance(action, decisions.Say):
                for connection, data in action.outputs:
                    connection.send_held(data)
            elif isinstance(action, decisions.Restart):
                self.store.replace(action.fold.live.values(), _position(action.fold))
            elif isinstance(action, Lead):
                self._lead(action.term)
            elif isinstance(action, StepDown):
                self._step_down(action)
            elif isinstance(action, Follow):
                self._follow(action)
            elif isinstance(action, decisions.BeginAnew):
                self._begin_anew(action)
            else:
                log.error("journal_unreadable %s; this tracker does not lead", action.reason)
        if self._timer is not None:
            self._timer.cancel()
        wait = max(0.0, min(self.replica.deadline() - time.monotonic(), 0.5))
        self._timer = self.loop.call_later(wait, self._tick)

    async def _ask(self, ask: decisions.EngineCall) -> None:
        try:
            answer = await self._answer(ask.request)
        except (EngineLost, EngineRefused) as error:
            self._ill(error)
            if isinstance(error, EngineRefused):
                await asyncio.sleep(1.0)  # it does not pass by itself
            self._carry_out(self.replica.lost(ask, time.monotonic()))
            return
        self._well(ask.request)
        if isinstance(answer, Look):
            self._compare(answer)
            self._note_replicas(answer)
        if isinstance(ask.request, decisions.Append):
            self.counts.commits.observe(time.monotonic() - ask.sent_at)
        self._carry_out(self.replica.answered(ask, answer, time.monotonic()))

    async def _answer(self, request: decisions.Request) -> Any:
        engine = self._engine
        if isinstance(request, decisions.Append):
            return await engine.append(request.number, request.data, request.term)
        if isinstance(request, decisions.ReadJournal):
            return await engine.look(request.after)
        if isinstance(request, decisions.RenewLease):
            return await engine.renew(request.term)
        if isinstance(request, decisions.Campaign):
            return await engine.campaign(self._me, request.over)
        if isinstance(request, decisions.Cut):
            return await engine.cut(request.last, request.term)
        if isinstance(request, decisions.ReadSnapshot):
            return await engine.read_snapshot(request.snapshot)
        fold = self.replica.fold
        snapshot, pieces = Fold(fold.through, fold.at, fold.epoch, fold.arrivals, self.store.live_state).snapshot()
        await asyncio.sleep(SNAPSHOT_AFTER_S)  # the journal has leases that are over, too; a snapshot does not
        return await engine.write_snapshot(snapshot, pieces, request.term)

    def _ill(self, trouble: EngineLost | EngineRefused) -> None:
        self.counts.engine_up = False
        if type(trouble) is not type(self._trouble):  # its text may name one member after the other
            log.warning("engine_lost %s", trouble)
        self._trouble = trouble

    def _well(self, request: decisions.Request) -> None:
        full = isinstance(self._trouble, EngineFull) and self.replica.role.leads
        if full and not isinstance(request, decisions.Append):
            return  # a full engine answers what writes nothing
        if self._trouble is not None:
            self._trouble = None
            log.info("engine_back")
        self.counts.engine_up = True

    # What follows.

    def _apply(self, action: decisions.Apply) -> None:
        if not self.store.position.through and not self.replica.role.leads:
            self.store.replace([], Position())  # what this machine had before it became a replica
        fold = self.replica.fold
        self.store.note(*action.records, position=Position(action.through, fold.at, fold.epoch, fold.arrivals))
        if self.tracker is not None:
            for record in action.records:
                self.tracker.observer.note(record)

    def _begin_anew(self, action: decisions.BeginAnew) -> None:
        log.warning(
            "etcd does not have entry %d of the journal, up to which this tracker has it: etcd is new, or was "
            "restored; what it has is read from its beginning", action.through,
        )  # fmt: skip
        self.store.note(position=Position())

    def _lead(self, term: int) -> None:
        log.info("leads term=%d", term)
        self.counts.leading, self.counts.term = True, term
        self.counts.failovers += 1
        leading = Term(term, self.store, self.replica, self._carry_out)
        if not self.store.position.through:
            leading.note(*self.store.live_state.values())  # of a tracker that becomes the first replica
        self.tracker = TrackerService(self._config, leading)
        self.tracker.stopped = self.stopped
        self.tracker.pages[REPLICAS] = self.pages[REPLICAS]
        self._told = None
        self._tell_replicas()
        self.tracker.flush()
        self._begin(self._configure(term))
        self._watch.follow(None, term)
        self.standby.give_over(self._me.address, term, self.tracker.adopt)

    def _step_down(self, action: StepDown) -> None:
        log.warning("deposed term=%d: %s", action.term, action.reason)
        self.counts.leading = False
        tracker, self.tracker = self.tracker, None
        if tracker is not None:
            tracker.close(deposed=not action.resign)

    def _follow(self, action: Follow) -> None:
        leader = None if action.leader is None else action.leader.address
        if leader is not None:
            log.info("follows leader=%s term=%d", address_text(*leader), action.term)
            self.counts.failovers += action.term != self.counts.term
        self.counts.term = action.term
        self._watch.follow(leader, action.term)
        self.standby.follow(leader, action.term)

    # Replicas.

    def _compare(self, look: Look) -> None:
        """Leave the place to others if this replica has other flags than the leader had."""
        role = self.replica.role
        differs = look.config is not None and look.config != self._alike and not role.owns_term
        if differs and not role.handicap_s:
            log.warning(
                "unlike the leader's --max-session, %s, are this tracker's, %s: give all replicas the same; until then "
                "this one leads only if no other does for %g s", look.config, self._alike, HANDICAP_S,
            )  # fmt: skip
        role.handicap_s = HANDICAP_S if differs else 0.0

    def _note_replicas(self, look: Look) -> None:
        latest = sorted(look.replicas.values(), key=lambda other: other.since)  # one that was restarted has two
        self.others = {address_text(*other.address): other for other in latest}
        now, last = time.monotonic(), self._last()
        if not self._ends or last > self._ends[-1][1]:
            self._ends.append((now, last))
        self.counts.behind_s = {
            address: next((now - at for at, end in self._ends if end > other.through), 0.0)
            for address, other in self.others.items()
        }
        self._most = max(self._most, len(self.others))
        self._tell_replicas()
        for host in {other.address[0] for other in self.others.values()} - self._addresses.keys():
            self._addresses[host] = ()
            self._begin(self._resolve(host))

    async def _resolve(self, host: str) -> None:
        """Find the addresses of a replica, from which it relays."""
        try:
            found = await self.loop.getaddrinfo(host, None, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError) as error:
            log.warning("the replica %s has no address here (%s): it cannot relay", host, error)
            await asyncio.sleep(RESOLVE_AGAIN_S)
            del self._addresses[host]
        else:
            self._addresses[host] = tuple(str(entry[4][0]) for entry in found)
            self._tell_replicas()

    def _tell_replicas(self) -> None:
        if self.tracker is not None:
            addresses = tuple(dict.fromkeys(address for each in self._addresses.values() for address in each))
            told = addresses, self._line()
            if told != self._told:
                self._told = told
                self.tracker.perform(events.ReplicasChanged(self.tracker.now(), *told))

    def _line(self) -> str:
        """The replicas in a line for people."""
        count = len(self.others)
        behind = sum(seconds > BEHIND_S for seconds in self.counts.behind_s.values())
        missing = max(0, self._most - count)
        trackers = f"{count} tracker{'s' if count != 1 else ''}"
        line = f"{trackers}, {address_text(*self._me.address)} leads (term {self.replica.role.term})"
        return line + (f", {behind} behind" if behind else "") + (f", {missing} missing" if missing else "")

    async def _configure(self, term: int) -> None:
        """Write what all replicas are to have, until it is written or the term is over."""
        while self.replica.role.leads and self.replica.role.term == term:
            try:
                await self._engine.configure(self._alike, term)
                return
            except (EngineLost, EngineRefused):
                await asyncio.sleep(1.0)

    async def _announce(self) -> None:
        while True:
            role = self.replica.role
            since = time.time() - (time.monotonic() - role.since)
            me = engines.ReplicaStatus(
                self._me.address, self._me.http_port, __version__, role.stage.value, self.replica.fold.through, since
            )
            try:
                await self._engine.announce(self._me.replica, me)
            except (EngineLost, EngineRefused):
                pass  # whatever else asks the engine says so
            await asyncio.sleep(ANNOUNCE_S)

    async def _measure(self) -> None:
        while True:
            try:
                self.counts.engine_bytes, self.counts.engine_quota = await self._engine.size()
            except (EngineLost, EngineRefused):
                pass
            await asyncio.sleep(SIZE_S)


def _position(fold: Fold) -> Position:
    return Position(fold.through, fold.at, fold.epoch, fold.arrivals)


def new_leader(host: str, port: int, http_port: int) -> Leader:
    """What a replica that is reached at ``host`` writes as the leader; its ID is new."""
    return Leader((host, port), http_port, __version__, os.urandom(8).hex())
