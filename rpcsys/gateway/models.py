"""One model of a gateway: its replicas, the calls for it, and which goes where."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

from rpcsys.gateway import actions as act
from rpcsys.gateway.actions import Action, ReplicaPlace
from rpcsys.gateway.batching import BatchTemplates, joined, sliced
from rpcsys.gateway.calls import Batching, CallStage, InferenceCall, ModelView, Outcome, failed
from rpcsys.gateway.deadlines import CallDeadlines
from rpcsys.gateway.describing import described
from rpcsys.gateway.places import ListedPlaces
from rpcsys.gateway.pools import PoolLeases
from rpcsys.gateway.replicas import CallLoad, Replica, ReplicaHello, ReplicaStage, least_busy
from rpcsys.gateway.settings import LeasedPool
from rpcsys.gateway.statistics import BACKEND, CANCELED, OTHER, REJECTED, ModelStatistics, Times
from rpcsys.gateway.turns import CallTurns
from rpcsys.wire.inference import InferenceError

#: Seconds that calls wait for a replica while there is none.
PATIENCE_S = 5.0
#: How often a call runs again whose replica was lost.
REPEATS = 2
_MOST_MS = 0xFFFFFFFF


class GatewayParts(NamedTuple):
    """What the models of a gateway share. ``queue``: calls that may wait for a model.

    ``make(model, place)`` makes a replica; ``gone`` forgets one. ``gathering``: models for whose calls the end of the
    turn is awaited, so that they are joined.
    """

    queue: int
    deadlines: CallDeadlines
    gathering: dict[GatewayModel, None]
    make: Callable[[GatewayModel, ReplicaPlace | None], Replica]
    gone: Callable[[Replica], None]


class GatewayModel:
    """A model, found in lists; or with ``pool``, on leased devices."""

    def __init__(
        self, name: str, shared: GatewayParts, batching: Batching | None = None, pool: LeasedPool | None = None
    ) -> None:
        self.name = name
        self.statistics = ModelStatistics()
        self.turns = CallTurns()
        self.unloaded = False
        self.none_since: float | None = None  # since when there is no replica
        self.places = ListedPlaces(name, lambda place: shared.make(self, place), self._leave)
        self.leases: PoolLeases | None = None
        self.view = ModelView(name, reason="no connection to its server is open yet")
        self._shared = shared
        self._batching = batching
        self._templates = BatchTemplates()
        self._replicas: dict[Replica, None] = {}  # live and leaving
        self._live: list[Replica] = []  # those that take the calls of `view`
        self._hellos = self._frames = 0
        if pool is not None:
            self.leases = PoolLeases(name, pool, lambda: shared.make(self, None), self._leave)
            self.view = described(name, self.leases.hello(), batching, target=1)

    # -------------------------------------------------------------- what clients see

    @property
    def replicas(self) -> int:
        """How many take calls now."""
        return len(self._live)

    @property
    def busy(self) -> bool:
        """Whether calls wait or are under way."""
        return len(self.turns) > 0 or any(replica.under_way for replica in self._replicas)

    def shown(self) -> ModelView:
        """The view, with the reason why no call would be answered now."""
        if self.unloaded:
            return self.view._replace(reason="unloaded")
        if self.view.reason or self._live or self.leases is not None:
            return self.view
        return self.view._replace(reason="no server serves it now")

    def callable(self) -> ModelView:
        """The view that calls are made for; the same object until another version is served.

        Raises `InferenceError`: it is unloaded, not connected yet, or cannot be called by this protocol.
        """
        if self.unloaded:
            raise InferenceError(f"Request for unknown model: '{self.name}' is not found; it is unloaded here", 404)
        if self.view.reason:
            if not self._hellos and self.leases is None:
                raise self._no_server()
            raise InferenceError(f"model '{self.name}' cannot be called over this protocol: {self.view.reason}", 400)
        return self.view

    def _no_server(self) -> InferenceError:
        return InferenceError(f"no server serves '{self.name}' now; call again in a moment", 503)

    # -------------------------------------------------------------- calls

    def submit(self, call: InferenceCall, now: float) -> list[Action]:
        """Take a call. Raises `InferenceError`."""
        self._admit(call, now)
        actions: list[Action] = []
        call.model = self
        call.began = now
        if call.deadline is not None:
            self._shared.deadlines.add(call)
        if not len(self.turns) and self.view.batching is None:
            replica = least_busy(self._live, call.form.template.body_bytes)
            if replica is not None:
                self._send(replica, (call,), now, actions)
                return actions
        call.stage = CallStage.WAITING
        self.turns.add(call)
        if self.view.batching is not None:
            self._shared.gathering[self] = None
        self._want(now, actions)
        self._await_replica(now)
        return actions

    def _admit(self, call: InferenceCall, now: float) -> None:
        self.callable()
        if len(self.turns) >= self._shared.queue:
            waiting = f"{len(self.turns)} calls wait for '{self.name}' already"
            raise InferenceError(f"{waiting}; call again in a moment", 503)
        if call.deadline is not None and call.deadline <= now:
            raise InferenceError(f"the deadline was exceeded: before '{self.name}' was called", 504)
        if self.leases is None and self.none_since is not None and now >= self.none_since + PATIENCE_S:
            raise self._no_server()

    def fire(self, now: float, actions: list[Action]) -> None:
        """Send what waits, as far as there is room."""
        turns = self.turns
        while len(turns):
            first = turns.first()
            replica = least_busy(self._live, first.form.template.body_bytes)
            if replica is None:
                break
            calls = self._gather(first, replica, now)
            if not calls:
                break
            for call in calls:
                turns.take(call)
            self._send(replica, calls, now, actions)
        if len(turns):
            self._want(now, actions)

    def _gather(self, first: InferenceCall, replica: Replica, now: float) -> Sequence[InferenceCall]:
        """The calls of the next frame; none while others may still join them."""
        batching, others = self.view.batching, first.form.others
        if batching is None or first.alone or others is None or first.form.rows >= batching.rows:
            return (first,)
        room = max(first.form.template.body_bytes, replica.window - replica.size)
        calls = self.turns.gather(others, batching.rows, room)
        due = first.began + batching.delay_us * 1e-6
        if now < due and sum(call.form.rows for call in calls) < batching.rows:
            self._shared.deadlines.wake_at(due)
            return ()
        return calls

    def _send(self, replica: Replica, calls: Sequence[InferenceCall], now: float, actions: list[Action]) -> None:
        first = calls[0]
        template, buffers, rows = first.form.template, first.buffers, [first.form.rows]
        if len(calls) > 1 and first.form.others is not None:
            rows = [call.form.rows for call in calls]
            template = self._templates.get(self.view.target, sum(rows), first.form.others)
            buffers = joined(calls)
        call_id = replica.next_id()
        load = CallLoad(replica, call_id, calls, rows, template.body_bytes, now)
        replica.under_way[call_id] = load
        replica.size += load.size
        self._frames = replica.used = self._frames + 1
        for call in calls:
            call.stage = CallStage.UNDER_WAY
            call.load = load
        actions.append(act.SendCall(replica.number, call_id, template, buffers, _deadline_ms(calls, now)))

    def result(self, replica: Replica, call_id: int, outcome: Outcome, now: float) -> list[Action]:
        """A frame is answered."""
        actions: list[Action] = []
        load = replica.under_way.pop(call_id, None)
        if load is None:
            return actions
        replica.size -= load.size
        compute = outcome.compute_us * 1e-6 or now - load.sent
        if outcome.error is None:
            self.statistics.ran(sum(load.rows), compute)
        if len(load.calls) > 1:
            self._answer_batch(load, outcome, compute, now, actions)
        elif load.calls[0] is not None:
            self._finish(load.calls[0], outcome, compute, now, actions)
        if replica.stage is ReplicaStage.LEAVING and not replica.under_way:
            actions.append(self._close(replica))
        if len(self.turns) and self.view.batching is not None:
            self._shared.gathering[self] = None
        elif len(self.turns):
            self.fire(now, actions)
        self._want(now, actions)
        return actions

    def _answer_batch(
        self, load: CallLoad, outcome: Outcome, compute: float, now: float, actions: list[Action]
    ) -> None:
        """Give each call its slice. What failed together is run again one by one, unless the host was only busy."""
        busy = outcome.error is not None and outcome.error.status == 503
        answers = [outcome] * len(load.calls) if busy else sliced(outcome, load.rows)
        if answers is None:
            for call in reversed(load.calls):
                if call is not None:
                    self._return(call)
            return
        for call, answer in zip(load.calls, answers, strict=True):
            if call is not None:
                self._finish(call, answer, compute, now, actions)

    def _return(self, call: InferenceCall) -> None:
        """A call that was under way waits ahead of all others, and runs alone."""
        call.stage = CallStage.WAITING
        call.load = None
        call.returned = call.alone = True
        self.turns.again(call)

    def _finish(self, call: InferenceCall, outcome: Outcome, compute: float, now: float, actions: list[Action]) -> None:
        """A call is answered by its host."""
        if outcome.error is None:
            total = now - call.began
            self.statistics.succeeded(call.form.rows, Times(total, max(0.0, total - compute), compute), now)
            self._tell(call, outcome, actions)
        else:
            self.fail(call, outcome.error, BACKEND, now, actions)

    def fail(self, call: InferenceCall, error: InferenceError, reason: str, now: float, actions: list[Action]) -> None:
        """End a call with ``error``; ``reason`` is for the statistics."""
        self.statistics.failed(reason, now - call.began)
        self._tell(call, failed(error), actions)

    def _tell(self, call: InferenceCall, outcome: Outcome, actions: list[Action]) -> None:
        done = call.done
        assert done is not None
        self._forget(call, actions)
        actions.append(act.FinishCall(done, outcome))

    def _forget(self, call: InferenceCall, actions: list[Action]) -> None:
        """The call has finished: nothing refers to it, and it refers to no body any more."""
        load = call.load
        if call.stage is CallStage.WAITING:
            self.turns.remove(call)
        elif load is not None:
            load.calls[load.calls.index(call)] = None
            if load.call_id in load.replica.under_way and not any(load.calls):
                actions.append(act.CancelCall(load.replica.number, load.call_id))
        if call.deadline is not None:
            self._shared.deadlines.discard(call)
        call.stage = CallStage.FINISHED
        call.done = call.load = call.model = None
        call.buffers = ()

    def give_up(self, call: InferenceCall, now: float) -> list[Action]:
        """The client of a call that has not finished wants no outcome any more."""
        actions: list[Action] = []
        self.statistics.failed(CANCELED, now - call.began)
        self._forget(call, actions)
        return actions

    def late(self, call: InferenceCall, now: float, actions: list[Action]) -> None:
        """A call is past its deadline."""
        where = "waited for" if call.stage is CallStage.WAITING else "was run by"
        error = InferenceError(f"the deadline was exceeded: the call {where} '{self.name}' until then", 504)
        self.fail(call, error, REJECTED if call.stage is CallStage.WAITING else OTHER, now, actions)

    def fail_waiting(self, error: InferenceError, now: float, actions: list[Action]) -> None:
        """End all calls that wait."""
        for call in list(self.turns):
            self.fail(call, error, REJECTED, now, actions)

    # -------------------------------------------------------------- replicas

    def opened(self, replica: Replica, hello: ReplicaHello, now: float) -> list[Action]:
        """A connection is open, or a device is leased and has the model."""
        replica.go(ReplicaStage.LIVE)
        replica.since = now
        self._replicas[replica] = None
        if self.leases is not None:
            self.leases.opened(replica)
        return self.announced(replica, hello, now)

    def announced(self, replica: Replica, hello: ReplicaHello, now: float) -> list[Action]:
        """What serves on a connection has said HELLO: the first host, or its successor."""
        replica.hello = hello
        self._hellos = replica.announced = self._hellos + 1
        self._look(now)
        actions: list[Action] = []
        self.fire(now, actions)
        return actions

    def lost(self, replica: Replica, why: str, now: float) -> list[Action]:
        """A connection is lost, or could not be opened; its calls go elsewhere. ``why``: for people."""
        actions: list[Action] = []
        asked = replica.stage is ReplicaStage.OPENING
        loads, replica.under_way = list(replica.under_way.values()), {}
        for load in reversed(loads):
            for call in reversed(load.calls):
                if call is not None:
                    self._repeat(call, now, actions)
        self._replicas.pop(replica, None)
        if self.leases is None:
            actions += self.places.lost(replica, now)
        else:
            self.leases.lost(replica, now)
        replica.go(ReplicaStage.GONE)
        self._shared.gone(replica)
        self._look(now)
        if self.leases is not None and asked and not self._live and not self.leases.asks:
            key = self.leases.pool.key
            self.fail_waiting(InferenceError(f"no device of '{key}' for '{self.name}': {why}", 503), now, actions)
        self.fire(now, actions)
        return actions

    def _repeat(self, call: InferenceCall, now: float, actions: list[Action]) -> None:
        """A call's replica is lost: it runs again, not too often."""
        call.tries += 1
        if call.tries <= REPEATS:
            self.statistics.repeats += 1
            self._return(call)
            return
        lost = f"the host of '{self.name}' was lost {call.tries} times while it ran this call"
        self.fail(call, InferenceError(lost, 503), OTHER, now, actions)

    def listed(self, rows: dict[ReplicaPlace, str], now: float) -> list[Action]:
        """It is served at these places, in these versions."""
        if self.leases is not None or self.unloaded:
            return []
        actions = self.places.listed(rows, now)
        self._look(now)
        return actions

    def unload(self, now: float) -> list[Action]:
        """Take no calls any more; those under way are answered."""
        self.unloaded = True
        actions = self.places.clear() + (self.leases.clear() if self.leases is not None else [])
        self.fail_waiting(InferenceError(f"'{self.name}' was unloaded", 503), now, actions)
        return actions

    def load(self) -> None:
        """Take calls again, once the next list has come."""
        self.unloaded = False

    def tick(self, now: float) -> list[Action]:
        """Time has passed."""
        actions = self.places.tick(now) if self.leases is None else self.leases.tick(self.busy, now)
        if actions:
            self._look(now)
        if self.none_since is not None and now >= self.none_since + PATIENCE_S:
            self.fail_waiting(self._no_server(), now, actions)
        self.fire(now, actions)
        self._wake()
        return actions

    def _wake(self) -> None:
        """Have the time told again when it matters to this model."""
        due = self.places.next_due() if self.leases is None else self.leases.next_due()
        if self.none_since is not None and len(self.turns):
            due = min(due, self.none_since + PATIENCE_S)
        self._shared.deadlines.wake_at(due)

    def _leave(self, replica: Replica) -> list[Action]:
        """Send a replica no more calls, and close it when those under way are answered."""
        if replica.stage is ReplicaStage.LIVE and replica.under_way:
            replica.go(ReplicaStage.LEAVING)
            actions = []
        else:
            actions = [self._close(replica)]
        self._live = [each for each in self._live if each is not replica]
        return actions

    def _close(self, replica: Replica) -> Action:
        replica.go(ReplicaStage.GONE)
        self._replicas.pop(replica, None)
        self._shared.gone(replica)
        return act.CloseReplica(replica.number) if replica.place is not None else act.GiveBackDevice(replica.number)

    def _look(self, now: float) -> None:
        """See which version is served, that of the latest HELLO, and by which replicas."""
        live = [replica for replica in self._replicas if replica.stage is ReplicaStage.LIVE]
        if live:
            latest = max(live, key=lambda replica: replica.announced).hello
            view = described(self.name, latest, self._batching, 0 if self.leases is None else 1)
            if view != self.view:
                self.view = view
            live = [each for each in live if (each.hello.inputs, each.hello.outputs) == (latest.inputs, latest.outputs)]
            for replica in live:
                replica.set_limits(batched=self.view.batching is not None)
        self._live = live
        if live or self.leases is not None:
            self.none_since = None
        elif self.none_since is None:
            self.none_since = now
        self._wake()

    def _want(self, now: float, actions: list[Action]) -> None:
        """Have devices leased for the calls that wait."""
        if self.leases is not None:
            actions += self.leases.want(len(self.turns), now)
            self._shared.deadlines.wake_at(self.leases.next_due())

    def _await_replica(self, now: float) -> None:
        if self.none_since is not None:
            self._shared.deadlines.wake_at(self.none_since + PATIENCE_S)


def _deadline_ms(calls: Sequence[InferenceCall], now: float) -> int:
    """The deadline of a CALL: the latest of its calls; 0 if one has none."""
    latest = 0
    for call in calls:
        if call.deadline is None:
            return 0
        latest = max(latest, math.ceil((call.deadline - now) * 1000), 1)
    return min(latest, _MOST_MS)
