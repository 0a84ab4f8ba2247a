"""Requests as calls of the backend: plans that are remembered, deadlines, models that are loaded."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from rpcsys.gateway import inference
from rpcsys.gateway.calls import InferenceCall, ModelView
from rpcsys.gateway.inference import InferenceDesk
from rpcsys.gateway.shared_memory import SharedMemory
from rpcsys.wire.inference import InferenceError, InferTensor
from rpcsys.wire.inference_messages import request_to_message, split_request
from rpcsys.wire.memory import Pool
from tests.gateway.running import in_json
from tests.gateway.test_plans import VIEW

ONE = VIEW._replace(inputs=VIEW.inputs[:1])
TEXT = in_json("FP32", (1, 2), [1, 2]).replace(b'"x"', b'"a"')


class PlayedBackend:
    """Takes calls, and has one model."""

    def __init__(self) -> None:
        self.shown: ModelView = ONE
        self.calls: list[InferenceCall] = []

    def callable(self, name: str, version: str = "") -> ModelView:
        if name != "m":
            raise InferenceError("unknown", 404)
        return self.shown

    def view(self, name: str, version: str = "") -> ModelView:
        return self.callable(name)

    def submit(self, name: str, call: InferenceCall) -> None:
        self.calls.append(call)

    def load(self, name: str) -> None:
        self.callable(name)


@pytest.fixture
def backend() -> PlayedBackend:
    return PlayedBackend()


@pytest.fixture
def desk(backend: PlayedBackend) -> InferenceDesk:
    return InferenceDesk(backend, SharedMemory(False), Pool(), 1000)  # type: ignore[arg-type]


def test_equal_requests_have_one_plan(backend: PlayedBackend, desk: InferenceDesk) -> None:
    first = desk.plan_of_json(ONE, memoryview(TEXT), 0)
    assert desk.plan_of_json(ONE, memoryview(bytes(TEXT)), 0) is first
    with pytest.raises(InferenceError, match="1 came"):
        desk.plan_of_json(ONE, memoryview(TEXT), 1)  # other bytes behind it are another request
    assert desk.plan_of_binary(ONE, 16) is desk.plan_of_binary(ONE, 16) is not desk.plan_of_binary(ONE, 8)
    head, raw = split_request(b"".join(request_to_message("m", "", [InferTensor("a", "FP32", (1, 2), bytes(8))])))
    sizes = tuple(map(len, raw))
    message = desk.plan_of_message(head, sizes)
    assert desk.plan_of_message(head, sizes) is message
    backend.shown = ONE._replace(version="4")
    assert desk.plan_of_message(head, sizes).view is backend.shown


def test_limits(desk: InferenceDesk) -> None:
    with pytest.raises(InferenceError, match="--max-json") as caught:
        desk.plan_of_json(ONE, memoryview(bytes(1001)), 0)
    assert caught.value.status == 413
    with pytest.raises(InferenceError, match="takes 2"):
        desk.plan_of_binary(VIEW, 8)


def test_the_shorter_deadline_counts(backend: PlayedBackend, desk: InferenceDesk) -> None:
    def deadline(timeout_us: int, timeout_s: float | None) -> float | None:
        text = in_json("FP32", (1, 2), [1, 2], parameters={"timeout": timeout_us, "priority": 3})
        plan = desk.plan_of_json(ONE, memoryview(text.replace(b'"x"', b'"a"')), 0)
        call = desk.submit(plan, [], lambda outcome: None, "client", timeout_s)
        assert (call.priority, call.client) == (3, "client")
        return None if call.deadline is None else call.deadline - time.monotonic()

    def about(found: float | None, seconds: float) -> bool:
        return found is not None and seconds - 20 < found <= seconds

    assert deadline(0, None) is None
    assert about(deadline(100_000_000, None), 100)
    assert about(deadline(100_000_000, 200), 100)
    assert about(deadline(200_000_000, 100), 100)
    assert about(deadline(0, 100), 100)
    assert len(backend.calls) == 5


def test_a_loaded_model_is_awaited(
    backend: PlayedBackend, desk: InferenceDesk, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[Any] = []

    async def main() -> None:
        backend.shown = ONE._replace(reason="no server serves it now")
        desk.load("m", told.append)
        await asyncio.sleep(0.05)
        assert told == []
        backend.shown = ONE
        while not told:  # noqa: ASYNC110 - nobody tells of it
            await asyncio.sleep(0.01)
        assert told.pop() is None
        monkeypatch.setattr(inference, "LOAD_S", 0.05)
        backend.shown = ONE._replace(reason="no server serves it now")
        desk.load("m", told.append)
        while not told:  # noqa: ASYNC110 - nobody tells of it
            await asyncio.sleep(0.01)

    asyncio.run(asyncio.wait_for(main(), 30))
    assert told[0].status == 503
    with pytest.raises(InferenceError, match="unknown"):
        desk.load("none", told.append)
