"""The decisions of a gateway: which call goes where, when, and how it ends. Events in, actions out; no socket or clock.

`rpcsys.gateway.backend` carries the actions out, and is what the clients' side calls. ``now``: seconds of the monotonic
clock, in all methods.

- A **replica** is a connection to a model host, or a leased session. A call goes to the one with the fewest calls under
  way for each worker (`replicas`); what no replica has room for waits, and is served by priority, then clients in turn,
  then age (`turns`).
- The calls of a lost replica run again on another one, twice at most. While there is none they wait.
- Each call finishes once: with one `FinishCall`, or given up by its client, without. Nothing refers to it then.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from rpcsys.gateway.actions import Action, ReplicaPlace
from rpcsys.gateway.calls import CallStage, InferenceCall, ModelView, Outcome
from rpcsys.gateway.deadlines import CallDeadlines
from rpcsys.gateway.models import GatewayModel, GatewayParts
from rpcsys.gateway.replicas import Replica, ReplicaHello
from rpcsys.gateway.settings import GatewaySettings
from rpcsys.gateway.statistics import OTHER, REJECTED, ModelStatistics
from rpcsys.wire.inference import InferenceError

#: Seconds that a model stays known which no list names any more: its server may come back.
FORGET_S = 300.0
#: The model takes no more calls now, or would answer too late; any other status: the request itself is at fault.
_REJECTIONS = (503, 504)
_DEFAULTS = GatewaySettings()


class ServedRow(NamedTuple):
    """A row of a list of deployed modules: one module on one server."""

    name: str
    version: str
    place: ReplicaPlace


class GatewayState:
    """The models, their replicas, and the calls for them."""

    def __init__(self, settings: GatewaySettings = _DEFAULTS) -> None:
        self._settings = settings
        self._deadlines = CallDeadlines()
        self._gathering: dict[GatewayModel, None] = {}
        self._replicas: dict[int, Replica] = {}
        self._last_number = 0
        self._listed = False
        self._unlisted: dict[GatewayModel, float] = {}  # since when no list names it
        self._shared = GatewayParts(settings.queue, self._deadlines, self._gathering, self._make, self._gone)
        self._models: dict[str, GatewayModel] = {}
        for name, pool in settings.pools.items():
            self._models[name] = GatewayModel(name, self._shared, settings.batches.get(name), pool)

    @property
    def next_due(self) -> float:
        """When `tick` is to be called at the latest; infinite for never."""
        return self._deadlines.next_due

    @property
    def gathers(self) -> bool:
        """Whether calls wait for the end of the turn, so that they are joined."""
        return bool(self._gathering)

    # -------------------------------------------------------------- for the clients' side

    @property
    def ready(self) -> bool:
        """Whether a list of modules has come, and each model that must be there takes calls."""
        models = [self._models.get(name) for name in self._settings.only]
        return self._listed and all(model is not None and model.shown().ready for model in models)

    @property
    def replicas(self) -> int:
        """How many replicas take calls, of all models."""
        return sum(model.replicas for model in self._models.values())

    @property
    def leases(self) -> int:
        """How many of them are leased sessions."""
        return sum(model.replicas for model in self._models.values() if model.leases is not None)

    @property
    def leased(self) -> int:
        """How many devices are leased, for all pools."""
        return sum(model.leases.held for model in self._models.values() if model.leases is not None)

    @property
    def idle(self) -> bool:
        """Whether no call waits and none is under way."""
        return not any(model.busy for model in self._models.values())

    def view(self, name: str, version: str = "") -> ModelView:
        """The model ``name``, in the ``version`` that is served ("" for any). Raises `InferenceError`, 404."""
        view = self._model(name).shown()
        _check_version(view, version)
        return view

    def callable(self, name: str, version: str = "") -> ModelView:
        """The same, to make a call for it: one object until another version is served.

        Raises `InferenceError`, too, where no call can be made: not connected yet, not described, unloaded.
        """
        view = self._model(name).callable()
        _check_version(view, version)
        return view

    def views(self) -> list[ModelView]:
        """All models, by name; those that are unloaded, or cannot be served, with the reason."""
        return [model.shown() for _, model in sorted(self._models.items())]

    def statistics(self, name: str) -> ModelStatistics:
        """The counts of a model. Raises `InferenceError`, 404."""
        return self._model(name).statistics

    def waiting(self, name: str) -> int:
        """How many calls wait for a model here. Raises `InferenceError`, 404."""
        return len(self._model(name).turns)

    def submit(self, name: str, call: InferenceCall, now: float) -> list[Action]:
        """Take a call. Raises `InferenceError` where it is not taken: unknown, not offered, late, too many wait."""
        return self._model(name).submit(call, now)

    def refused(self, name: str, status: int) -> None:
        """A request for the model ``name`` was answered with an error and became no call. ``status``: HTTP's.

        One for an unknown model, or another version (404), has no model that would count it.
        """
        model = self._models.get(name)
        if model is not None and status != 404:
            model.statistics.failed(REJECTED if status in _REJECTIONS else OTHER)

    def give_up(self, call: InferenceCall, now: float) -> list[Action]:
        """The client wants no outcome any more: none comes. Does nothing for a call that is not under way."""
        model: GatewayModel | None = call.model
        return [] if model is None or call.stage is CallStage.FINISHED else model.give_up(call, now)

    def load(self, name: str) -> None:
        """Take an unloaded model in again, with the next list. Raises `InferenceError`."""
        self._controlled(name).load()

    def unload(self, name: str, now: float) -> list[Action]:
        """Take a model out of this gateway; calls that wait end. Raises `InferenceError`."""
        return self._controlled(name).unload(now)

    def _model(self, name: str) -> GatewayModel:
        model = self._models.get(name)
        if model is None and not self._listed:
            raise InferenceError(f"no server serves '{name}' now; call again in a moment", 503)
        if model is None:
            raise InferenceError(f"Request for unknown model: '{name}' is not found", 404)
        return model

    def _controlled(self, name: str) -> GatewayModel:
        if not self._settings.control:
            off = "models are loaded and unloaded by `rpcsys deploy`, or here where it is started with --model-control"
            raise InferenceError(off, 501)
        return self._model(name)

    # -------------------------------------------------------------- for the backend

    def served(self, rows: Iterable[ServedRow], now: float) -> list[Action]:
        """All that is served now, as a list says it."""
        self._listed = True
        places: dict[str, dict[ReplicaPlace, str]] = {}
        for row in rows:
            if not self._settings.only or row.name in self._settings.only:
                places.setdefault(row.name, {})[row.place] = row.version
        for name in places:
            if name not in self._models:
                self._models[name] = GatewayModel(name, self._shared, self._settings.batches.get(name))
        actions: list[Action] = []
        for model in list(self._models.values()):
            actions += model.listed(places.get(model.name, {}), now)
            self._note_listed(model, model.name in places or model.leases is not None, now)
        return actions

    def _note_listed(self, model: GatewayModel, named: bool, now: float) -> None:
        """Forget a model that no list has named for long and that no replica serves."""
        if named or model.replicas or model.busy:
            self._unlisted.pop(model, None)
        elif now >= self._unlisted.setdefault(model, now) + FORGET_S:
            del self._unlisted[model], self._models[model.name]

    def opened(self, number: int, hello: ReplicaHello | None, now: float) -> list[Action]:
        """A replica is open. ``hello``: None for a leased session, whose model's file says it."""
        replica = self._replicas.get(number)
        if replica is None:
            return []
        model: GatewayModel = replica.model
        if hello is None and model.leases is not None:
            hello = model.leases.hello()
        return model.opened(replica, hello or ReplicaHello(), now)

    def announced(self, number: int, hello: ReplicaHello, now: float) -> list[Action]:
        """The successor of a host has said HELLO."""
        replica = self._replicas.get(number)
        return [] if replica is None else replica.model.announced(replica, hello, now)

    def lost(self, number: int, why: str, now: float) -> list[Action]:
        """A replica is lost, or could not be opened. ``why``: for people."""
        replica = self._replicas.get(number)
        return [] if replica is None else replica.model.lost(replica, why, now)

    def result(self, number: int, call_id: int, outcome: Outcome, now: float) -> list[Action]:
        """A CALL is answered."""
        replica = self._replicas.get(number)
        return [] if replica is None else replica.model.result(replica, call_id, outcome, now)

    def turn_ended(self, now: float) -> list[Action]:
        """All events of a turn of the loop have been told: what gathered in it goes as one."""
        if not self._gathering:
            return []
        actions: list[Action] = []
        models = list(self._gathering)
        self._gathering.clear()
        for model in models:
            model.fire(now, actions)
        return actions

    def tick(self, now: float) -> list[Action]:
        """Time has passed: deadlines, patience, delays, attempts to connect, idle leases."""
        actions: list[Action] = []
        for call in self._deadlines.overdue(now):
            call.model.late(call, now, actions)
        self._deadlines.restart()
        for model in self._models.values():
            actions += model.tick(now)
        return actions

    def _make(self, model: GatewayModel, place: ReplicaPlace | None) -> Replica:
        self._last_number += 1
        replica = self._replicas[self._last_number] = Replica(self._last_number, model, place)
        return replica

    def _gone(self, replica: Replica) -> None:
        self._replicas.pop(replica.number, None)


def _check_version(view: ModelView, version: str) -> None:
    if version and version not in (view.version, view.whole_version):
        served = f"version {view.version} is served" if view.version else "no version is served now"
        raise InferenceError(f"Request for unknown model: '{view.name}' version {version} is not found; {served}", 404)
