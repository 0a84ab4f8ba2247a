"""Behind the clients' side of a gateway: its state, and what carries the state's actions out.

The clients' side makes calls with `Backend.submit` and `Backend.give_up`; all else it asks of `Backend.state`.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import math
import time
from collections.abc import Callable, Sequence
from typing import Any

from rpcsys.daemon.sockets import Sockets
from rpcsys.gateway import actions as act
from rpcsys.gateway.actions import Action, ReplicaPlace
from rpcsys.gateway.calls import InferenceCall, ModelView, Outcome
from rpcsys.gateway.discovery import Discovery, ModuleSource, ServerSource, TrackerSource, with_key
from rpcsys.gateway.leasing import lease
from rpcsys.gateway.replicas import ReplicaHello
from rpcsys.gateway.settings import GatewaySettings
from rpcsys.gateway.state import GatewayState, ServedRow
from rpcsys.gateway.upstream import CONNECTING, LEASING, ReplicaConnections, open_host
from rpcsys.link.tcp import KEEPALIVE_S
from rpcsys.stream import Stream
from rpcsys.wire.inference import InferenceError

log = logging.getLogger(__name__)


class Backend:
    """The state of a gateway with its connections, leases and lists. To be made in the event loop.

    ``tracker`` or ``servers``: where modules are found. A pool needs a tracker. ``watchers``: are set whenever models
    may take calls, or may not any more.
    """

    def __init__(
        self,
        sockets: Sockets,
        settings: GatewaySettings,
        tracker: tuple[str, int] | None = None,
        servers: Sequence[ReplicaPlace] = (),
    ) -> None:
        self.state = GatewayState(settings)
        self.connections = ReplicaConnections(sockets, self)
        self._tracker = tracker
        self._servers = frozenset(servers)
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._armed = math.inf  # when the timer calls `tick`
        self.watchers: set[asyncio.Event] = set()
        self._ending = False  # whether `turn_ended` is called soon
        self._names: dict[int, str] = {}  # the models of the replicas
        self._reported: dict[str, str] = {}  # why one of a model's was lost, as it is logged
        self._handlers: dict[type, Callable[[Any], None]] = {
            act.ConnectReplica: self._connect,
            act.CloseReplica: self._close_replica,
            act.SendCall: self._send,
            act.CancelCall: self._cancel,
            act.FinishCall: _finish,
            act.LeaseDevice: self._lease,
            act.GiveBackDevice: self._close_replica,
        }
        sources: list[ModuleSource] = [ServerSource(place) for place in servers]
        if tracker is not None:
            sources.append(TrackerSource(tracker))
        self._discovery = Discovery(sources, self._served)
        self._keeper = self._loop.call_later(KEEPALIVE_S, self._keep_alive)

    # -------------------------------------------------------------- for the clients' side

    def view(self, name: str, version: str = "") -> ModelView:
        """As `GatewayState.view`; an unknown name is looked for at once. Raises `InferenceError`."""
        return self._look_for(self.state.view, name, version)

    def callable(self, name: str, version: str = "") -> ModelView:
        """As `GatewayState.callable`; an unknown name is looked for at once. Raises `InferenceError`."""
        return self._look_for(self.state.callable, name, version)

    def _look_for(self, view: Callable[[str, str], ModelView], name: str, version: str) -> ModelView:
        try:
            return view(name, version)
        except InferenceError:
            self._discovery.hurry()
            raise

    def submit(self, name: str, call: InferenceCall) -> None:
        """Take a call. Its `done` is called later, or before this returns. Raises as `GatewayState.submit`."""
        self._carry_out(self.state.submit(name, call, time.monotonic()))

    def give_up(self, call: InferenceCall) -> None:
        """The client wants no outcome any more. Does nothing for a call that has finished."""
        self._carry_out(self.state.give_up(call, time.monotonic()))

    def load(self, name: str) -> None:
        """As `GatewayState.load`."""
        self.state.load(name)
        self._change(())
        self._discovery.hurry()

    def unload(self, name: str) -> None:
        """As `GatewayState.unload`."""
        self._change(self.state.unload(name, time.monotonic()))

    def turn_ended(self) -> None:
        """Send what has gathered. The loop calls it soon; to be called after all callbacks of `Sockets`, too."""
        self._ending = False
        actions = self.state.turn_ended(time.monotonic())
        if actions:
            self._carry_out(actions)
        self.connections.flush()

    def close(self) -> None:
        """Close all connections, and give all leases back."""
        self._discovery.close()
        self._keeper.cancel()
        if self._timer is not None:
            self._timer.cancel()
        self.connections.close_all()

    # -------------------------------------------------------------- events of connections and lists

    def opened(self, number: int, hello: ReplicaHello | None) -> None:
        """As `ConnectionEvents`."""
        name = self._names[number]
        if self._reported.pop(name, None):
            log.info("%s is connected again", name)
        self._change(self.state.opened(number, hello, time.monotonic()))

    def announced(self, number: int, hello: ReplicaHello) -> None:
        """As `ConnectionEvents`."""
        self._change(self.state.announced(number, hello, time.monotonic()))

    def lost(self, number: int, why: str) -> None:
        """As `ConnectionEvents`."""
        name = self._names.pop(number)
        if self._reported.get(name) != why:
            self._reported[name] = why
            log.warning("a connection of %s is lost, or is not opened: %s", name, why)
        self._change(self.state.lost(number, why, time.monotonic()))
        self._discovery.hurry()

    def result(self, number: int, call_id: int, outcome: Outcome) -> None:
        """As `ConnectionEvents`."""
        self._carry_out(self.state.result(number, call_id, outcome, time.monotonic()))

    def _served(self, rows: list[ServedRow]) -> None:
        self._change(self.state.served(rows, time.monotonic()))

    def _tick(self) -> None:
        self._timer = None
        self._armed = math.inf
        self._change(self.state.tick(time.monotonic()))
        self.turn_ended()

    def _keep_alive(self) -> None:
        self._keeper = self._loop.call_later(KEEPALIVE_S, self._keep_alive)
        self.connections.keep_alive()

    # -------------------------------------------------------------- actions

    def _change(self, actions: Sequence[Action]) -> None:
        """Carry out what follows from an event that may have changed which models take calls."""
        self._carry_out(actions)
        for watcher in self.watchers:
            watcher.set()

    def _carry_out(self, actions: Sequence[Action]) -> None:
        handlers = self._handlers
        for action in actions:
            handlers[type(action)](action)
        due = self.state.next_due
        if due < self._armed:
            self._arm(due)
        if not self._ending and (self.state.gathers or self.connections.pushed):
            self._ending = True
            self._loop.call_soon(self.turn_ended)

    def _arm(self, due: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._armed = due
        self._timer = self._loop.call_later(max(0.0, due - time.monotonic()), self._tick)

    def _connect(self, action: act.ConnectReplica) -> None:
        self._names[action.replica] = action.model
        open_stream = functools.partial(self._open_host, action.model, action.place)
        self.connections.open(action.replica, open_stream, CONNECTING)

    def _open_host(self, model: str, place: ReplicaPlace) -> tuple[Stream, ReplicaHello | None]:
        """In a thread of its own: as `open_host`, with what the tracker of a lab has its clients say there."""
        if self._tracker is not None and place not in self._servers:
            place = with_key(self._tracker, model, place)
        return open_host(model, place)

    def _lease(self, action: act.LeaseDevice) -> None:
        assert self._tracker is not None, "a pool needs a tracker"
        self._names[action.replica] = action.model
        log.info("leasing a device of %s for %s", action.pool.key, action.model)
        self.connections.open(action.replica, functools.partial(lease, self._tracker, action.pool), LEASING)

    def _close_replica(self, action: act.CloseReplica | act.GiveBackDevice) -> None:
        self._names.pop(action.replica, None)
        self.connections.close(action.replica)

    def _send(self, action: act.SendCall) -> None:
        connection = self.connections.get(action.replica)
        if connection is not None:
            connection.call(action)

    def _cancel(self, action: act.CancelCall) -> None:
        connection = self.connections.get(action.replica)
        if connection is not None:
            connection.cancel(action)


def _finish(action: act.FinishCall) -> None:
    try:
        action.done(action.outcome)
    except Exception:
        log.exception("the outcome of a call was not taken")
