"""The protocol over gRPC: what each method answers, as messages in bytes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Hashable
from typing import Any

from rpcsys.errors import ProtocolError
from rpcsys.gateway.calls import InferenceCall, Outcome
from rpcsys.gateway.catalog import ModelCatalog
from rpcsys.gateway.inference import InferenceDesk
from rpcsys.gateway.memory import BodyMemory
from rpcsys.gateway.rest import NO_CUDA, NO_SETTINGS
from rpcsys.wire.inference import InferenceError
from rpcsys.wire.inference_messages import model_of, split_request, stream_error, stream_prefix
from rpcsys.wire.inference_tables import HEALTH, INFERENCE, METHODS
from rpcsys.wire.protobuf import decode, encode

INFER, STREAM = INFERENCE + "ModelInfer", INFERENCE + "ModelStreamInfer"
LOAD, WATCH = INFERENCE + "RepositoryModelLoad", HEALTH + "Watch"
_SERVING = {True: "SERVING", False: "NOT_SERVING"}
_Answer = Callable[[dict[str, Any]], dict[str, Any]]
#: Called with a message, or with why there is none.
Done = Callable[[bytes | InferenceError], None]


class GrpcMethods:
    """All methods by their paths. ``unary``: those that answer at once; the others are those with names above."""

    def __init__(self, desk: InferenceDesk, catalog: ModelCatalog, memory: BodyMemory) -> None:
        self._desk = desk
        self._catalog = catalog
        self._memory = memory
        self._stopping = False
        self._answers: dict[str, _Answer] = {
            INFERENCE + "ServerLive": lambda asked: {"live": True},
            INFERENCE + "ServerReady": lambda asked: {"ready": catalog.ready},
            INFERENCE + "ServerMetadata": lambda asked: catalog.server(),
            INFERENCE + "ModelReady": self._model_ready,
            INFERENCE + "ModelMetadata": lambda asked: catalog.model(asked["name"], asked["version"]),
            INFERENCE + "ModelConfig": lambda asked: {"config": catalog.config(asked["name"], asked["version"])},
            INFERENCE + "ModelStatistics": lambda asked: catalog.statistics(asked["name"], asked["version"]),
            INFERENCE + "RepositoryIndex": lambda asked: {"models": catalog.index(asked["ready"])},
            INFERENCE + "RepositoryModelUnload": self._unload,
            INFERENCE + "SystemSharedMemoryStatus": self._regions,
            INFERENCE + "SystemSharedMemoryRegister": self._register,
            INFERENCE + "SystemSharedMemoryUnregister": self._unregister,
            INFERENCE + "CudaSharedMemoryStatus": lambda asked: {},
            INFERENCE + "CudaSharedMemoryRegister": lambda asked: _refuse(NO_CUDA),
            INFERENCE + "CudaSharedMemoryUnregister": lambda asked: {},
            INFERENCE + "TraceSetting": lambda asked: _refuse(NO_SETTINGS),
            INFERENCE + "LogSettings": lambda asked: _refuse(NO_SETTINGS),
            HEALTH + "Check": self._check,
        }
        self.unary = frozenset(self._answers)

    def answer(self, path: str, message: bytes) -> bytes:
        """The answer of a method of `unary`. Raises `InferenceError`, and `ProtocolError` for bytes that are none."""
        tables = METHODS[path]
        return encode(tables.response, self._answers[path](decode(tables.request, message)))

    # -------------------------------------------------------------- calls

    def infer(self, message: bytes, timeout_s: float | None, client: Hashable, done: Done) -> InferenceCall:
        """Make a call of a ModelInferRequest; ``done`` is called with the answer, once, unless it is given up.

        Raises `InferenceError` and `ProtocolError` where no call is made.
        """
        try:
            return self._infer(message, timeout_s, client, done)
        except (InferenceError, ProtocolError) as error:
            self._desk.backend.state.refused(model_of(message), as_inference_error(error).status)
            raise

    def _infer(self, message: bytes, timeout_s: float | None, client: Hashable, done: Done) -> InferenceCall:
        head, raw = split_request(message)
        plan = self._desk.plan_of_message(head, tuple([len(view) for view in raw]))
        shared = self._desk.shared

        def finished(outcome: Outcome) -> None:
            try:
                answer: bytes | InferenceError = b"".join(plan.to_message(outcome, shared))
            except InferenceError as error:
                answer = error.with_traceback(None)
            done(answer)

        return self._desk.submit(plan, raw, finished, client, timeout_s)

    def give_up(self, call: InferenceCall) -> None:
        """The client wants no answer any more."""
        self._desk.backend.give_up(call)

    def take(self, size: int) -> None:
        """Count a message that has come. Raises `InferenceError` (503) while there is no memory for bodies."""
        if size and not self._memory.take(size):
            raise InferenceError("all memory for bodies is in use; call again in a moment", 503)

    def give_back(self, size: int) -> None:
        """A message that was counted is answered."""
        self._memory.give_back(size)

    # -------------------------------------------------------------- answers

    def _model_ready(self, asked: dict[str, Any]) -> dict[str, Any]:
        try:
            return {"ready": self._catalog.model_ready(asked["name"], asked["version"])}
        except InferenceError:
            return {"ready": False}

    def _check(self, asked: dict[str, Any]) -> dict[str, Any]:
        name = _model_of_service(asked)
        return {"status": _SERVING[self._catalog.model_ready(name) if name else self._catalog.ready]}

    async def watch(self, message: bytes) -> AsyncGenerator[bytes, None]:
        """The answers of a Watch: the status now, and whenever it has changed, until the gateway stops.

        A model that is unknown may come. Raises `ProtocolError`.
        """
        tables = METHODS[WATCH]
        name = _model_of_service(decode(tables.request, message))
        changed = asyncio.Event()
        watchers = self._desk.backend.watchers
        watchers.add(changed)
        said = ""
        try:
            while True:
                last = self._stopping  # it may be set while an answer is taken, which is then not the last one
                status = "NOT_SERVING" if last else self._catalog.health(name)
                if status != said:
                    said = status
                    yield encode(tables.response, {"status": status})
                if last:
                    return
                await changed.wait()
                changed.clear()
        finally:
            watchers.discard(changed)

    def stop(self) -> None:
        """The gateway takes no more calls: all watches are told, and end."""
        self._stopping = True
        for watcher in self._desk.backend.watchers:
            watcher.set()

    def load(self, message: bytes, done: Callable[[InferenceError | None], None]) -> None:
        """Take a model in again; ``done`` as of `InferenceDesk.load`. Raises `InferenceError` and `ProtocolError`."""
        asked = decode(METHODS[LOAD].request, message)
        self._desk.load(asked["model_name"] or asked["repository_name"], done)

    def _unload(self, asked: dict[str, Any]) -> dict[str, Any]:
        self._desk.backend.unload(asked["model_name"] or asked["repository_name"])
        return {}

    def _regions(self, asked: dict[str, Any]) -> dict[str, Any]:
        return {"regions": {region["name"]: region for region in self._desk.shared.status(asked["name"])}}

    def _register(self, asked: dict[str, Any]) -> dict[str, Any]:
        self._desk.shared.register(asked["name"], asked["key"], asked["offset"], asked["byte_size"])
        return {}

    def _unregister(self, asked: dict[str, Any]) -> dict[str, Any]:
        self._desk.shared.unregister(asked["name"])
        return {}


def _model_of_service(asked: dict[str, Any]) -> str:
    """The model that is asked for in gRPC's health protocol; "" for the server."""
    name: str = asked["service"]
    return "" if name == INFERENCE.strip("/") else name


def stream_answer(answer: bytes | InferenceError) -> bytes:
    """An answer, or an error, as a ModelStreamInferResponse."""
    if isinstance(answer, InferenceError):
        return stream_error(str(answer))
    return stream_prefix(len(answer)) + answer


def as_inference_error(error: ProtocolError | InferenceError) -> InferenceError:
    """What a client is told whose message cannot be read."""
    return error if isinstance(error, InferenceError) else InferenceError(str(error))


def _refuse(why: str) -> dict[str, Any]:
    raise InferenceError(why, 501)
