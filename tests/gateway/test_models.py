"""What holds after any history of a gateway's models: one plain, one batched, one on leased devices."""

from __future__ import annotations

import gc
import json
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from rpcsys.gateway.calls import Batching, CallStage
from rpcsys.gateway.replicas import LEASED_DEPTH
from rpcsys.gateway.settings import LeasedPool
from rpcsys.gateway.state import ServedRow
from rpcsys.wire.frames import HEADER_BYTES
from rpcsys.wire.inference import InferenceError
from tests.gateway.transcripts import BROKEN, BUSY, ECHO, VERSION, GatewayTranscript, labels, place

WORKERS = 2
MOST_ROWS = 5
QUEUE = 12
PATIENT_S = 100.0

#: From where to where a call goes.
STAGES = {
    CallStage.NEW: (CallStage.WAITING, CallStage.UNDER_WAY),
    CallStage.WAITING: (CallStage.UNDER_WAY, CallStage.FINISHED),
    CallStage.UNDER_WAY: (CallStage.WAITING, CallStage.FINISHED),
    CallStage.FINISHED: (),
}


class Histories(RuleBasedStateMachine):
    """Events in any order. `teardown` then lets everything be answered."""

    def __init__(self) -> None:
        super().__init__()
        self.it = GatewayTranscript(
            queue=QUEUE,
            batches={"batched": Batching(MOST_ROWS, 1000)},
            pools={"leased": LeasedPool("key", "file.onnx", ECHO, most=2, idle_s=30)},
        )
        self.models: dict[int, str] = {}
        self.given_up: set[int] = set()
        self.stages: dict[int, CallStage] = {}
        gc.disable()

    def _pick(self, data: Any, items: Any) -> Any:
        return data.draw(st.sampled_from(sorted(items)))

    # Clients

    @rule(
        name=st.sampled_from(["plain", "batched", "leased"]),
        rows=st.integers(1, 4),
        width=st.integers(1, 2),
        client=st.integers(0, 2),
        priority=st.integers(0, 2),
        patience=st.none() | st.floats(-1, 10),
        alone=st.booleans(),
    )
    def call(
        self, name: str, rows: int, width: int, client: int, priority: int, patience: float | None, alone: bool
    ) -> None:
        label = len(self.models)
        self.models[label] = name
        deadline = None if patience is None else self.it.now + patience
        more = {"client": client, "priority": priority, "deadline": deadline, "alone": alone}
        self.stages[label] = CallStage.NEW
        try:
            self.it.submit(label, rows, width, name, **more)
        except InferenceError:
            assert not self.it.outcomes.pop(label)
            del self.it.calls[label]

    @precondition(lambda self: self.it.calls)
    @rule(data=st.data())
    def give_up(self, data: Any) -> None:
        label = self._pick(data, self.it.calls)
        if self.it.calls[label].stage is not CallStage.FINISHED:
            self.given_up.add(label)
        self.it.give_up(label)

    # Replicas

    @precondition(lambda self: self.it.frames)
    @rule(data=st.data(), error=st.sampled_from([None, None, None, BROKEN, BUSY]))
    def answer(self, data: Any, error: InferenceError | None) -> None:
        self.it.answer(self._pick(data, self.it.frames), error)

    @precondition(lambda self: self.it.opening)
    @rule()
    def open(self) -> None:
        self.it.open_all(WORKERS)

    @precondition(lambda self: self.it.opening or self.it.open)
    @rule(data=st.data())
    def lose(self, data: Any) -> None:
        self.it.lose(self._pick(data, [*self.it.opening, *self.it.open]))

    @rule(plain=st.sets(st.integers(1, 3)), batched=st.sets(st.integers(1, 2)))
    def list(self, plain: set[int], batched: set[int]) -> None:
        rows = [ServedRow("plain", VERSION, place(number)) for number in sorted(plain)]
        self.it.list(rows + [ServedRow("batched", VERSION, place(number)) for number in sorted(batched)])

    @rule(seconds=st.floats(0, 8))
    def wait(self, seconds: float) -> None:
        self.it.wait(seconds)

    @rule()
    def end_turn(self) -> None:
        self.it.end_turn()

    # What holds

    @invariant()
    def no_replica_has_more_than_it_takes(self) -> None:
        limits = {"plain": 64, "batched": WORKERS, "leased": LEASED_DEPTH}
        for number, name in self.it.open.items():
            assert len(self.it.on(number)) <= limits[name]

    @invariant()
    def frames_hold_calls_of_one_model_and_shape(self) -> None:
        for (number, _), frame in self.it.frames.items():
            about = json.loads(frame.template.first[HEADER_BYTES:])["a"]
            assert len(about) == 1
            rows, width = about[0]["shape"]
            assert sum(map(len, frame.buffers)) == rows * width == frame.template.body_bytes
            assert {self.models[label] for label in labels(frame)} == {self.it.open[number]}
            assert all(len(buffer) % width == 0 for buffer in frame.buffers)
            if len(frame.buffers) > 1:
                assert rows <= MOST_ROWS

    @invariant()
    def no_call_is_in_two_frames(self) -> None:
        found = [label for frame in self.it.frames.values() for label in labels(frame)]
        live = [label for label in found if self.it.calls[label].stage is CallStage.UNDER_WAY]
        assert len(live) == len(set(live))
        under_way = {label for label, call in self.it.calls.items() if call.stage is CallStage.UNDER_WAY}
        assert set(live) == under_way

    @invariant()
    def calls_go_from_stage_to_stage(self) -> None:
        for label, call in self.it.calls.items():
            before = self.stages[label]
            if call.stage is not before:
                reached = {before}
                for _ in CallStage:
                    reached |= {after for stage in reached for after in STAGES[stage]}
                assert call.stage in reached
                self.stages[label] = call.stage

    @invariant()
    def outcomes_are_the_clients_own(self) -> None:
        for label, outcomes in self.it.outcomes.items():
            call = self.it.calls[label]
            if call.stage is CallStage.FINISHED:
                assert len(outcomes) == (label not in self.given_up)
            for outcome in outcomes:
                if outcome.error is None:
                    assert set(bytes(outcome.buffers[0])) == {label % 256}
                    assert outcome.form is not None
                    assert outcome.form.outputs[0][1][0] == call.form.rows
                    assert len(outcome.buffers[0]) == call.form.template.body_bytes

    @invariant()
    def no_body_outlives_its_call(self) -> None:
        held = {label for frame in self.it.frames.values() for label in labels(frame)}
        for label, body in self.it.bodies.items():
            call = self.it.calls.get(label)
            if (call is None or call.stage is CallStage.FINISHED) and label not in held:
                assert body() is None

    def teardown(self) -> None:
        """With a replica of each model, or after its patience, every call ends."""
        try:
            self.list({1}, {1})
            for _ in range(5):
                self.it.open_all(WORKERS)
                self.it.answer_all()
                self.it.wait(3)
            self.it.wait(PATIENT_S)
            self.it.answer_all()
            assert all(call.stage is CallStage.FINISHED for call in self.it.calls.values())
            assert self.it.state.idle
            self.outcomes_are_the_clients_own()
            self.no_body_outlives_its_call()
        finally:
            gc.enable()


Histories.TestCase.settings = settings(
    max_examples=150, stateful_step_count=50, deadline=None, suppress_health_check=list(HealthCheck)
)
TestHistories = Histories.TestCase
