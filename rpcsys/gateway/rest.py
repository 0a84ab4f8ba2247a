"""The protocol over HTTP: what each path leads to."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from typing import Any
from urllib.parse import unquote

from rpcsys.gateway import json_arrays
from rpcsys.gateway.calls import CallStage, Outcome
from rpcsys.gateway.catalog import ModelCatalog
from rpcsys.gateway.http_connection import HttpConnection
from rpcsys.gateway.http_heads import HttpRoute
from rpcsys.gateway.inference import InferenceDesk
from rpcsys.wire.inference import InferenceError

_GET, _POST = ("GET",), ("POST",)
_MODEL = re.compile(r"/v2/models/([^/]+)(?:/versions/([^/]+))?(?:/(ready|infer|config|stats))?")
_CONTROL = re.compile(r"/v2/repository/models/([^/]+)/(load|unload)")
_SHARED = re.compile(r"/v2/(system|cuda)sharedmemory(?:/region/([^/]+))?/(status|register|unregister)")
_NOT_SET = re.compile(r"/v2/(?:logging|(?:models/[^/]+(?:/versions/[^/]+)?/)?trace/setting)")
NO_SETTINGS = "logging and tracing are not set over this protocol: see `rpcsys gateway --help`"
NO_CUDA = "the gateway has no device: no CUDA shared memory can be registered"

_Json = Callable[[], Any]


class RestApi:
    """Routes of the protocol. ``route`` is `HttpSettings.route`."""

    def __init__(self, desk: InferenceDesk, catalog: ModelCatalog) -> None:
        self._desk = desk
        self._catalog = catalog
        self._fixed = {
            "/v2": HttpRoute(_GET, _tell(catalog.server)),
            "/v2/health/live": HttpRoute(_GET, _tell(lambda: {"live": True})),
            "/v2/health/ready": HttpRoute(_GET, self._ready),
            "/v2/models/stats": HttpRoute(_GET, _tell(catalog.statistics)),
            "/v2/repository/index": HttpRoute(_POST, self._index),
        }

    def route(self, path: str) -> HttpRoute:
        """What a path leads to. Raises `InferenceError`: 404, 501."""
        path = path.rstrip("/") or path
        fixed = self._fixed.get(path)
        if fixed is not None:
            return fixed
        if _NOT_SET.fullmatch(path):
            raise InferenceError(NO_SETTINGS, 501)
        for pattern, routes in ((_MODEL, self._of_model), (_CONTROL, self._of_control), (_SHARED, self._of_shared)):
            found = pattern.fullmatch(path)
            if found is not None:
                return routes(*(unquote(part or "") for part in found.groups()))
        raise InferenceError(f"there is nothing at {path[:200]}: the protocol's paths begin with /v2", 404)

    # -------------------------------------------------------------- models

    def _of_model(self, name: str, version: str, what: str) -> HttpRoute:
        catalog = self._catalog
        if what == "infer":
            refused = functools.partial(self._desk.backend.state.refused, name)
            return HttpRoute(_POST, functools.partial(self._infer, name, version), refused)
        if what == "ready":
            return HttpRoute(_GET, functools.partial(self._model_ready, name, version))
        tell = {"": catalog.model, "config": catalog.config, "stats": catalog.statistics}[what]
        return HttpRoute(_GET, _tell(functools.partial(tell, name, version)))

    def _infer(self, name: str, version: str, client: HttpConnection, body: memoryview) -> None:
        desk = self._desk
        assert client.head is not None
        size = client.head.json_bytes
        view = desk.backend.callable(name, version)
        if size == 0:
            binary = body
            plan = desk.plan_of_binary(view, len(body))
        elif size is None or size <= len(body):
            binary = body[len(body) if size is None else size :]
            plan = desk.plan_of_json(view, body[: len(body) - len(binary)], len(binary))
        else:
            raise InferenceError(f"Inference-Header-Content-Length is {size}, and the body has {len(body)} bytes")
        raw = [binary] if len(plan.cuts) == 1 else [binary[start:end] for start, end in plan.cuts]
        shared = desk.shared

        def done(outcome: Outcome) -> None:
            try:
                answer = plan.to_json(outcome, shared)
            except InferenceError as error:
                client.fail(error.with_traceback(None))
            else:
                client.answer(answer.content, 200, answer.binary, packs=True)

        call = desk.submit(plan, raw, done, client)
        if call.stage is not CallStage.FINISHED:
            client.give_up = functools.partial(desk.backend.give_up, call)

    def _ready(self, client: HttpConnection, body: memoryview) -> None:
        ready = self._catalog.ready
        client.answer_json({"ready": ready}, 200 if ready else 503)

    def _model_ready(self, name: str, version: str, client: HttpConnection, body: memoryview) -> None:
        ready = self._catalog.model_ready(name, version)
        client.answer_json({"name": name, "ready": ready}, 200 if ready else 503)

    # -------------------------------------------------------------- the repository

    def _index(self, client: HttpConnection, body: memoryview) -> None:
        ready = _object_of(body).get("ready", False)
        client.answer_json(self._catalog.index(ready is True))

    def _of_control(self, name: str, what: str) -> HttpRoute:
        if what == "unload":
            return HttpRoute(_POST, _do(functools.partial(self._desk.backend.unload, name)))

        def load(client: HttpConnection, body: memoryview) -> None:
            self._desk.load(name, lambda error: client.answer(b"") if error is None else client.fail(error))

        return HttpRoute(_POST, load)

    # -------------------------------------------------------------- shared memory

    def _of_shared(self, kind: str, region: str, what: str) -> HttpRoute:
        shared = self._desk.shared
        if kind == "cuda":
            if what == "register":
                raise InferenceError(NO_CUDA, 501)
            return HttpRoute(_GET, _tell(list)) if what == "status" else HttpRoute(_POST, _do(lambda: None))
        if what == "status":
            return HttpRoute(_GET, _tell(functools.partial(shared.status, region)))
        if what == "unregister":
            return HttpRoute(_POST, _do(functools.partial(shared.unregister, region)))

        def register(client: HttpConnection, body: memoryview) -> None:
            asked = _object_of(body)
            shared.register(region, asked.get("key"), asked.get("offset", 0), asked.get("byte_size"))
            client.answer(b"")

        return HttpRoute(_POST, register)


def _tell(make: _Json) -> Callable[[HttpConnection, memoryview], None]:
    return lambda client, body: client.answer_json(make())


def _do(act: Callable[[], None]) -> Callable[[HttpConnection, memoryview], None]:
    def handle(client: HttpConnection, body: memoryview) -> None:
        act()
        client.answer(b"")

    return handle


def _object_of(body: memoryview) -> dict[str, Any]:
    """The JSON object in a body; an empty body is an empty one. Raises `InferenceError`."""
    value = json_arrays.loads(body) if len(body) else {}
    if type(value) is not dict:
        raise InferenceError("the body must be a JSON object")
    return value
