"""A gateway's state with everything around it played: time, lists, replicas and clients."""

from __future__ import annotations

import json
import weakref
from collections.abc import Iterable
from typing import Any

from rpcsys.gateway.actions import (
    Action,
    CancelCall,
    CloseReplica,
    ConnectReplica,
    FinishCall,
    GiveBackDevice,
    LeaseDevice,
    ReplicaPlace,
    SendCall,
)
from rpcsys.gateway.batching import call_template
from rpcsys.gateway.calls import CallStage, InferenceCall, Outcome, ResultForm, failed, form_of
from rpcsys.gateway.replicas import WINDOW, ReplicaHello
from rpcsys.gateway.settings import GatewaySettings
from rpcsys.gateway.state import GatewayState, ServedRow
from rpcsys.wire.frames import HEADER_BYTES
from rpcsys.wire.inference import InferenceError

VERSION = "0001-aaaaaaaaaaaa"
BUSY = InferenceError("all workers run a call", 503)
BROKEN = InferenceError("ValueError: it cannot", 400)


def tensor(name: str, dtype: str = "uint8", shape: tuple[Any, ...] = ("n", "w")) -> dict[str, Any]:
    return {"name": name, "dtype": dtype, "shape": list(shape)}


#: Inputs and outputs of a model that gives back its one input, of any rows and width.
ECHO = {"inputs": [tensor("x")], "outputs": [tensor("y")]}


def place(number: int) -> ReplicaPlace:
    return ReplicaPlace(f"10.0.0.{number}", 9090)


class Body(bytearray):
    """A body that a test can see the end of."""


class GatewayTranscript:
    """Applies events to a state and keeps the actions: ``frames`` under way, ``outcomes`` by label, and ``log``."""

    def __init__(self, **settings: Any) -> None:
        self.state = GatewayState(GatewaySettings(**settings))
        self.now = 1000.0
        self.log: list[Action] = []
        self.frames: dict[tuple[int, int], SendCall] = {}
        self.outcomes: dict[int, list[Outcome]] = {}
        self.calls: dict[int, InferenceCall] = {}
        self.bodies: dict[int, weakref.ref[Body]] = {}
        self.opening: dict[int, ConnectReplica | LeaseDevice] = {}
        self.open: dict[int, str] = {}  # the model of each open replica, by number
        self.cancelled: set[tuple[int, int]] = set()

    # Events

    def wait(self, seconds: float) -> None:
        """Let time pass, in steps that the state asks for."""
        until = self.now + seconds
        while self.state.next_due <= until:
            self.now = max(self.now, self.state.next_due)
            before = self.state.next_due
            self.apply(self.state.tick(self.now))
            assert self.state.next_due > before, "the state wants to be told the same time again"
        self.now = until

    def serve(self, name: str = "m", places: Iterable[int] = (1,), version: str = VERSION) -> None:
        """A list says that one model is served at these places."""
        self.list([ServedRow(name, version, place(number)) for number in places])

    def list(self, rows: list[ServedRow]) -> None:
        self.apply(self.state.served(rows, self.now))

    def open_all(self, workers: int = 1, **hello: Any) -> list[int]:
        """All connections that are being opened open; their numbers."""
        numbers = list(self.opening)
        for number in numbers:
            action = self.opening.pop(number)
            self.open[number] = action.model
            about = None if isinstance(action, LeaseDevice) else said(workers=workers, **hello)
            self.apply(self.state.opened(number, about, self.now))
        return numbers

    def replicas(self, count: int = 1, workers: int = 1, name: str = "m", **hello: Any) -> list[int]:
        """A model that is served at so many places; the numbers of its replicas."""
        self.serve(name, range(1, count + 1))
        return self.open_all(workers, **hello)

    def lose(self, number: int, why: str = "reset") -> None:
        """A replica is lost, or is not opened."""
        self.opening.pop(number, None)
        self.open.pop(number, None)
        for key in [key for key in self.frames if key[0] == number]:
            del self.frames[key]
        self.apply(self.state.lost(number, why, self.now))

    def submit(
        self, label: int, rows: int = 1, width: int = 1, name: str = "m", alone: bool = False, **more: Any
    ) -> InferenceCall:
        """A client calls; its body is ``label`` again and again. Raises as the state does."""
        inputs = [("uint8", (rows, width))]
        body = Body([label % 256] * rows * width)
        form = form_of(call_template(0, inputs), inputs, alone)
        client = more.pop("client", label)
        outcomes = self.outcomes[label] = []
        call = InferenceCall(form, (memoryview(body),), outcomes.append, client, **more)
        self.bodies[label] = weakref.ref(body)
        self.calls[label] = call
        self.apply(self.state.submit(name, call, self.now))
        return call

    def end_turn(self) -> None:
        self.apply(self.state.turn_ended(self.now))

    def answer(self, key: tuple[int, int], error: InferenceError | None = None, compute_us: int = 0) -> None:
        """A frame is answered: with what it held, or an error."""
        frame = self.frames.pop(key)
        outcome = failed(error) if error is not None else echo(frame, compute_us)
        del frame
        self.cancelled.discard(key)
        self.apply(self.state.result(*key, outcome, self.now))

    def answer_all(self, error: InferenceError | None = None) -> None:
        """Answer what is under way, and what that makes room for, until nothing is."""
        self.end_turn()
        while self.frames:
            self.answer(next(iter(self.frames)), error)
            self.end_turn()

    def give_up(self, label: int) -> None:
        self.apply(self.state.give_up(self.calls[label], self.now))

    # What has happened

    def apply(self, actions: list[Action]) -> None:
        for action in actions:
            match action:
                case SendCall():
                    assert action.replica in self.open
                    self.frames[action.replica, action.call_id] = action
                case FinishCall():
                    action.done(action.outcome)
                case ConnectReplica() | LeaseDevice():
                    self.opening[action.replica] = action
                case CloseReplica() | GiveBackDevice():
                    self.opening.pop(action.replica, None)
                    self.open.pop(action.replica, None)
                    assert not [key for key in self.frames if key[0] == action.replica]
                case CancelCall():
                    self.cancelled.add((action.replica, action.call_id))
            if not isinstance(action, SendCall | FinishCall):  # which hold bodies
                self.log.append(action)
        self.check()

    @property
    def sent(self) -> list[list[int]]:
        """The labels in each frame under way, in the order in which they were sent."""
        return [labels(frame) for frame in self.frames.values()]

    def on(self, replica: int) -> list[list[int]]:
        """The same of one replica."""
        return [labels(frame) for (number, _), frame in self.frames.items() if number == replica]

    def took(self, kind: type) -> list[Any]:
        """The actions of a kind so far, but for calls sent and finished."""
        return [action for action in self.log if isinstance(action, kind)]

    def error(self, label: int) -> tuple[int, str]:
        """Status and message of a call's error, its only outcome."""
        (outcome,) = self.outcomes[label]
        assert outcome.error is not None
        return outcome.error.status, str(outcome.error)

    def body(self, label: int) -> bytes:
        """What the call's client gets, its only outcome."""
        (outcome,) = self.outcomes[label]
        assert outcome.error is None, outcome.error
        return bytes(outcome.buffers[0])

    def check(self) -> None:
        """What holds after every event."""
        for number in self.open:
            assert len(self.on(number)) <= WINDOW
        for label, outcomes in self.outcomes.items():
            call = self.calls[label]
            assert len(outcomes) <= 1
            if call.stage is CallStage.FINISHED:
                assert call.done is call.load is call.model is None
                assert call.buffers == ()
            else:
                assert not outcomes


def said(**changed: Any) -> ReplicaHello:
    return ReplicaHello(**{"version": VERSION, "kind": "rpcsys.onnx", **ECHO, **changed})


def head(frame: SendCall) -> dict[str, Any]:
    value: dict[str, Any] = json.loads(frame.template.first[HEADER_BYTES:])
    return value


def labels(frame: SendCall) -> list[int]:
    """The labels of the calls in a frame, one for each call."""
    return [buffer[0] for buffer in frame.buffers]


def echo(frame: SendCall, compute_us: int = 0) -> Outcome:
    """The answer of the model that gives back its input."""
    about = head(frame)["a"][0]
    body = b"".join(map(bytes, frame.buffers))
    return Outcome(ResultForm(((about["dtype"], tuple(about["shape"])),)), [memoryview(body)], compute_us)
