"""Runs a tracker that is one of several: carries out what `ReplicaState` decides, over the engine.

While it leads, a `TrackerService` serves who connects; while it does not, a `Standby`.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

from prometheus_client.registry import Collector

from rpcsys import __version__
from rpcsys.daemon.http import Page, metrics_page
from rpcsys.link.address import address_text
from rpcsys.tracker import events
from rpcsys.tracker.config import TrackerConfig
from rpcsys.tracker.records import Records
from rpcsys.tracker.replicas import engine as engines
from rpcsys.tracker.replicas import replica as decisions
from rpcsys.tracker.replicas.engine import Engine, EngineFull, EngineLost, EngineRefused, Leader, Look
from rpcsys.tracker.replicas.journal import Fold
from rpcsys.tracker.replicas.lacking import LackingHistory
from rpcsys.tracker.replicas.leader_watch import LeaderWatch
from rpcsys.tracker.replicas.listing import ReplicaListing
from rpcsys.tracker.replicas.metrics import ReplicaCounts, ReplicaMetrics
from rpcsys.tracker.replicas.notes import TroubleNotes
from rpcsys.tracker.replicas.pages import REPLICAS, ReplicaPages
from rpcsys.tracker.replicas.replica import ReplicaState
from rpcsys.tracker.replicas.role import Follow, Lead, StepDown
from rpcsys.tracker.replicas.standby import Standby
from rpcsys.tracker.replicas.term import Held, Term
from rpcsys.tracker.service import TrackerService
from rpcsys.tracker.store import HistoryStore
from rpcsys.tracker.tables import Position
from rpcsys.wire.tracker import encode

if TYPE_CHECKING:
    from rpcsys.tracker.webhooks import Webhooks

log = logging.getLogger(__name__)
CANCEL_AGAIN_S = 0.1  # until a task that goes on is cancelled again
ANNOUNCE_S = 2.0  # how often a replica says that it is there
SIZE_S = 10.0  # how often the engine is asked for its size
HANDICAP_S = 5.0  # how long a replica with other flags than the last leader's leaves the place to the others
SNAPSHOT_AFTER_S = 10.0  # how long the journal before a snapshot stays, for those who are about to read it
LACKS_MORE_S = 60.0  # by how much more is read than what is missing: clocks differ
NOTE_EVERY_S = 1.0  # how often those who have begun to wait meanwhile are told of the engine's trouble
FINISH_S = 1.0  # how long a leader that stops waits for what is under way

Answer = TypeVar("Answer")


class ReplicaService:
    """One of several trackers, made inside its event loop. ``me``: what it writes as the leader.

    Raises `ConfigError`: the state directory cannot be used.
    """

    def __init__(self, config: TrackerConfig, engine: Engine, me: Leader, webhooks: Webhooks | None = None) -> None:
        assert config.state_dir is not None, "a replica keeps what its journal says"
        self.loop = asyncio.get_running_loop()
        self.stopped = asyncio.Event()
        self.failed = False  # whether it has stopped by an error of its own
        self.tracker: TrackerService | None = None
        self._term: Term | None = None  # while it leads
        self.store = HistoryStore(config.state_dir, history_days=config.history_days)
        self.standby = Standby(config)
        self.counts = ReplicaCounts()
        self.listing = ReplicaListing(self._begin, self._tell_replicas)
        self._config, self._webhooks = config, webhooks
        self._engine = engine
        self._me = me
        self._told: tuple[tuple[str, ...], str] | None = None  # the state of the tracker
        position = self.store.position
        fold = Fold(position.through, position.at, position.epoch, position.arrivals, journal=position.journal)
        self.replica: ReplicaState[Held] = ReplicaState(me, fold, time.monotonic())
        self._lacking = LackingHistory(self.store, self._begin)
        self._watch = LeaderWatch(self._leader_refuses)
        self._timer: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._trouble: EngineLost | EngineRefused | None = None  # the engine's, which is logged once
        self._notes, self._noted_at = TroubleNotes(), 0.0
        self._alike = {"max_session": dict(config.limits)}  # what all replicas are to have
        metrics = metrics_page(ReplicaMetrics(self.counts, self._led_metrics))
        self.pages = ReplicaPages(
            self._led, lambda: self.replica.role.leader, self.summary, metrics,
            lambda: None if self._term is None else self._term.hold, self._engine_text,
        )  # fmt: skip
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
        await self._end_tasks()
        if self._timer is not None:
            self._timer.cancel()
        if led:
            try:
                await self._engine.resign(term)
            except (EngineLost, EngineRefused) as error:
                log.warning("the term ends with its lease: %s", error)
        self.standby.close()
        await self._engine.close()
        self.store.close()

    async def _end_tasks(self) -> None:
        """Cancel until all have ended: before Python 3.12, `asyncio.wait_for` may swallow a cancellation as it ends."""
        while self._tasks:
            for task in self._tasks:
                task.cancel()
            await asyncio.wait(self._tasks, timeout=CANCEL_AGAIN_S)

    def summary(self) -> dict[str, Any]:
        """Who leads, and which replicas there are, as plain JSON. Times are seconds since 1970."""
        role = self.replica.role
        leader = self._me if role.leads else role.leader
        return {
            "leader": None if leader is None else address_text(*leader.address),
            "term": role.term,
            "engine": self._engine_text(),
            "replicas": self.listing.rows(self.replica.fold.through),
        }

    def _engine_text(self) -> str:
        if self._trouble is not None:
            return str(self._trouble)
        return self.replica.role.obstacle or ("up" if self.counts.engine_up else "not asked yet")

    def _led_metrics(self) -> Collector | None:
        return None if self.tracker is None else self.tracker.observer.metrics

    def _led(self) -> Mapping[str, Page] | None:
        return None if self.tracker is None else self.tracker.pages

    # Decisions.

    def _begin(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = self.loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._over)
        return task

    def _over(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self._fail(error)

    def _fail(self, error: BaseException) -> None:
        """End this tracker: after an error of its own, what it knows may be wrong."""
        log.critical("an error of the tracker's own: it ends, and another leads", exc_info=error)
        self.failed = True
        self.stopped.set()

    def _tick(self) -> None:
        try:
            self._carry_out(self.replica.tick(time.monotonic()))
        except Exception as error:  # noqa: BLE001 - without its timer it would hang
            self._fail(error)

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
                position = action.fold.position._replace(lacks=self._lacks_from())
                self.store.replace(action.fold.live.values(), position)
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
            answer = await self._understood(self._answer(ask.request))
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

    async def _understood(self, answer: Awaitable[Answer]) -> Answer:
        """The engine's answer. An error of our own in reading one is as good as none."""
        try:
            return await answer
        except (EngineLost, EngineRefused):
            raise
        except Exception as error:
            log.exception("the engine's answer is not understood")
            raise EngineRefused(f"the engine's answer is not understood ({error!r}): see the log") from None

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
        if isinstance(request, decisions.BeginTerm):
            return await engine.begin(request.last, {**self._alike, "journal": request.journal}, request.term)
        if isinstance(request, decisions.ReadSnapshot):
            return await engine.read_snapshot(request.snapshot)
        fold = self.replica.fold
        snapshot, pieces = replace(fold, live=self.store.live_state).snapshot()
        await asyncio.sleep(SNAPSHOT_AFTER_S)  # the journal has leases that are over, too; a snapshot does not
        return await engine.write_snapshot(snapshot, pieces, request.term)

    def _ill(self, trouble: EngineLost | EngineRefused) -> None:
        self.counts.engine_up = False
        if type(trouble) is not type(self._trouble):  # its text may name one member after the other
            log.warning("engine_lost %s", trouble)
        self._trouble = trouble
        self.standby.why_none = str(trouble)
        now = time.monotonic()
        if now - self._noted_at >= NOTE_EVERY_S:
            self._noted_at = now
            ledger = self.replica.ledger
            self._say(lambda records: self._notes.begin(records, [] if ledger is None else ledger.held, str(trouble)))

    def _well(self, request: decisions.Request) -> None:
        full = isinstance(self._trouble, EngineFull) and self.replica.role.leads
        if full and not isinstance(request, decisions.Append):
            return  # a full engine answers what writes nothing
        if self._trouble is not None:
            self._trouble, self.standby.why_none = None, ""
            log.info("engine_back")
            self._say(self._notes.end)
        self.counts.engine_up = True

    def _say(self, notes: Callable[[Records], Iterable[tuple[int, dict[str, Any]]]]) -> None:
        """Send notes, past all that is held back."""
        if self.tracker is not None:
            connections = self.tracker.connections
            for number, event in notes(self.tracker.state.records):
                if number in connections:
                    connections[number].send_past(encode(event))

    # What follows.

    def _apply(self, action: decisions.Apply) -> None:
        fold = self.replica.fold
        position = fold.position._replace(through=action.through)
        if not self.store.position.through and not self.replica.role.leads:
            self.store.replace([], Position(lacks=self._lacks_from()))  # what it had before it became a replica
        self.store.note(*action.records, position=position._replace(lacks=self.store.position.lacks))
        if self.tracker is not None:
            for record in action.records:
                self.tracker.observer.note(record)

    def _begin_anew(self, action: decisions.BeginAnew) -> None:
        log.warning(
            "etcd does not have the journal that this tracker has up to entry %d: etcd is new, or was restored, or "
            "begun anew; what it has is read from its beginning", action.through,
        )  # fmt: skip
        self.store.note(position=Position(lacks=self._lacks_from()))

    def _lacks_from(self) -> float:
        """Since when leases may have ended that this replica's history lacks, as it does not go on where it was."""
        position = self.store.position
        return max(0.0, position.at - LACKS_MORE_S) if position.lacks is None else position.lacks

    def _lead(self, term: int) -> None:
        log.info("leads term=%d", term)
        self.counts.leading, self.counts.term = True, term
        self.counts.failovers += 1
        leading = Term(term, self.store, self.replica, self._carry_out)
        if not self.store.position.through:  # it begins the journal, so no other has more of the past
            self.store.note(position=self.replica.fold.position)
            leading.note(*self.store.live_state.values())  # of a tracker that becomes the first replica
        self.tracker, self._term = TrackerService(self._config, leading, self._webhooks), leading
        self.tracker.stopped = self.stopped
        self.tracker.pages[REPLICAS] = self.pages[REPLICAS]
        self._told = None
        self._tell_replicas()
        self.tracker.flush()
        self._watch.follow(None, term)
        self._lacking.stop()
        self.standby.give_over(self._me.address, term, self.tracker.adopt)

    def _step_down(self, action: StepDown) -> None:
        log.warning("deposed term=%d: %s", action.term, action.reason)
        self.counts.leading = False
        tracker, self.tracker, self._term = self.tracker, None, None
        if tracker is not None:
            tracker.close(deposed=not action.resign)

    def _follow(self, action: Follow) -> None:
        leader = None if action.leader is None else action.leader.address
        if leader is not None:
            log.info("follows leader=%s term=%d", address_text(*leader), action.term)
            self.counts.failovers += action.term != self.counts.term
        self.counts.term = action.term
        self._watch.follow(leader, action.term)
        self._lacking.stop()
        self.standby.follow(leader, action.term)

    # Replicas.

    def _compare(self, look: Look) -> None:
        """Leave the place to others if this replica has other flags than the leader had."""
        role = self.replica.role
        theirs = None if look.config is None else {name: look.config.get(name) for name in self._alike}
        differs = theirs is not None and theirs != self._alike and not role.owns_term
        if differs and not role.handicap_s:
            log.warning(
                "unlike the leader's --max-session, %s, are this tracker's, %s: give all replicas the same; until then "
                "this one leads only if no other does for %g s", theirs, self._alike, HANDICAP_S,
            )  # fmt: skip
        role.handicap_s = HANDICAP_S if differs else 0.0

    def _note_replicas(self, look: Look) -> None:
        self.listing.note(look.replicas.values(), self.replica.fold.through, time.monotonic())
        self.counts.behind_s = self.listing.behind_s
        leader = self.replica.role.leader
        if leader is not None and leader.replica in look.replicas:
            self._lacking.look(look.replicas[leader.replica], time.monotonic())
        self._tell_replicas()

    def _tell_replicas(self) -> None:
        if self.tracker is not None:
            told = self.listing.addresses, self.listing.line(self._me.address, self.replica.role.term)
            if told != self._told:
                self._told = told
                self.tracker.perform(events.ReplicasChanged(self.tracker.now(), *told))

    async def _announce(self) -> None:
        while True:
            role = self.replica.role
            since = time.time() - (time.monotonic() - role.since)
            whole = self.store.position.lacks is None and not self.store.failing
            me = engines.ReplicaStatus(
                self._me.address, self._me.http_port, __version__, role.stage.value, self.replica.fold.through, since,
                whole,
            )  # fmt: skip
            try:
                await self._understood(self._engine.announce(self._me.replica, me))
            except (EngineLost, EngineRefused):
                pass  # whatever else asks the engine says so
            await asyncio.sleep(ANNOUNCE_S)

    async def _measure(self) -> None:
        while True:
            try:
                size = await self._understood(self._engine.size())
                self.counts.engine_bytes, self.counts.engine_quota = size
            except (EngineLost, EngineRefused):
                pass
            await asyncio.sleep(SIZE_S)


def new_leader(host: str, port: int, http_port: int) -> Leader:
    """What a replica that is reached at ``host`` writes as the leader; its ID is new."""
    return Leader((host, port), http_port, __version__, os.urandom(8).hex())
