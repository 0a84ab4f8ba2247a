"""Requests become calls of the backend, over HTTP and gRPC alike; what waits for their outcomes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Hashable, Sequence
from typing import Any

from rpcsys.gateway import json_arrays
from rpcsys.gateway.backend import Backend
from rpcsys.gateway.calls import InferenceCall, ModelView, Outcome
from rpcsys.gateway.plans import REMEMBERED, REMEMBERED_BYTES, InferencePlan, PlanMemory
from rpcsys.gateway.shared_memory import SharedMemory
from rpcsys.wire.inference import NAMES, InferenceError, InferTensor
from rpcsys.wire.inference_messages import request_from_message
from rpcsys.wire.inference_requests import InferRequest, request_from_json, request_without_json
from rpcsys.wire.memory import Pool

#: Seconds that a model which is loaded has to take calls.
LOAD_S = 5.0
_LOOK_S = 0.02


class InferenceDesk:
    """Takes requests. ``max_json``: bytes of JSON, and of a message without its raw contents, that are parsed."""

    def __init__(self, backend: Backend, shared: SharedMemory, pool: Pool, max_json: int) -> None:
        self.backend = backend
        self.shared = shared
        self._pool = pool
        self._max_json = max_json
        self._plans = PlanMemory()
        self._of_messages: dict[tuple[bytes, tuple[int, ...]], InferencePlan] = {}

    def plan_of_json(self, view: ModelView, content: memoryview, binary: int) -> InferencePlan:
        """The plan of a request in JSON, with ``binary`` bytes behind it. Raises `InferenceError`."""
        size = len(content)
        if size > self._max_json:
            what = f"{size} bytes of JSON, and at most {self._max_json} are parsed"
            raise InferenceError(f"{what}: send arrays as binary data; the gateway's --max-json allows more", 413)
        key = bytes(content)

        def read() -> InferRequest:
            return request_from_json(json_arrays.loads(key), view.name, view.version, binary)

        return self._plans.get(view, (key, binary), size, read)

    def plan_of_binary(self, view: ModelView, size: int) -> InferencePlan:
        """The plan of a request that is the data of the model's only input. Raises `InferenceError`."""
        if len(view.inputs) != 1:
            raise InferenceError(f"a request without JSON has one input, and '{view.name}' takes {len(view.inputs)}")
        (only,) = view.inputs
        described = InferTensor(only.name, NAMES[only.dtype], tuple(only.extents), None)
        return self._plans.get(view, size, 0, lambda: request_without_json(view.name, view.version, described, size))

    def plan_of_message(self, head: bytes, sizes: tuple[int, ...]) -> InferencePlan:
        """The plan of a request in a message, ``head``, with raw contents of these sizes.

        Raises `InferenceError`, and `ProtocolError` for bytes that are no message.
        """
        key = head, sizes
        plan = self._of_messages.get(key)
        if plan is not None and self.backend.callable(plan.request.model, plan.request.version) is plan.view:
            return plan
        request = request_from_message(head, sizes, self._max_json)
        plan = InferencePlan(self.backend.callable(request.model, request.version), request)
        if len(head) <= REMEMBERED_BYTES and request.id is None:
            if len(self._of_messages) >= REMEMBERED:
                self._of_messages.clear()
            self._of_messages[key] = plan
        return plan

    def load(self, name: str, done: Callable[[InferenceError | None], None]) -> None:
        """Take an unloaded model in again. ``done`` is called when it takes calls, or with why it does not yet.

        Raises `InferenceError`.
        """
        self.backend.load(name)
        self._await_ready(name, time.monotonic() + LOAD_S, done)

    def _await_ready(self, name: str, until: float, done: Callable[[InferenceError | None], None]) -> None:
        try:
            view = self.backend.view(name)
        except InferenceError as error:
            done(error.with_traceback(None))
            return
        if view.ready:
            done(None)
        elif time.monotonic() >= until:
            done(InferenceError(f"model '{name}' is loaded, but takes no calls: {view.reason}", 503))
        else:
            asyncio.get_running_loop().call_later(_LOOK_S, self._await_ready, name, until, done)

    def submit(
        self,
        plan: InferencePlan,
        raw: Sequence[Any],
        done: Callable[[Outcome], None],
        client: Hashable,
        timeout_s: float | None = None,
    ) -> InferenceCall:
        """Make a call of a request's parts. ``done``: as of `InferenceCall`. Raises `InferenceError`."""
        form, buffers = plan.call(raw, self.shared, self._pool)
        request = plan.request
        deadline = None
        if request.timeout_us:
            timeout_s = min(request.timeout_us * 1e-6, timeout_s or request.timeout_us * 1e-6)
        if timeout_s is not None:
            deadline = time.monotonic() + timeout_s
        call = InferenceCall(form, buffers, done, client, request.priority, deadline)
        self.backend.submit(plan.view.name, call)
        return call
