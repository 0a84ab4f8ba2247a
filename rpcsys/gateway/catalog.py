"""What clients are told of the server and its models, as the protocol's JSON has it; over gRPC the same is encoded."""

from __future__ import annotations

import time
from typing import Any

from rpcsys import __version__
from rpcsys.gateway.backend import Backend
from rpcsys.gateway.calls import DeclaredTensor, ModelView
from rpcsys.gateway.shared_memory import SharedMemory
from rpcsys.wire.inference import NAMES, InferenceError

_EXTENSIONS = (
    *("binary_tensor_data", "model_repository", "model_configuration", "statistics", "schedule_policy"),
    *("classification", "parameters"),
)


class ModelCatalog:
    """The server, and the models that it serves. All raise `InferenceError` (404) for an unknown model or version."""

    def __init__(self, backend: Backend, shared: SharedMemory) -> None:
        self._backend = backend
        self._shared = shared

    def server(self) -> dict[str, Any]:
        """Name, version and extensions of the protocol."""
        extensions = [*_EXTENSIONS, *(["system_shared_memory"] if self._shared.allowed else [])]
        return {"name": "rpcsys", "version": __version__, "extensions": extensions}

    @property
    def ready(self) -> bool:
        """Whether the server takes calls for all models that must be there."""
        return self._backend.state.ready

    def model_ready(self, name: str, version: str = "") -> bool:
        """Whether a model takes calls."""
        return self._backend.view(name, version).ready

    def health(self, name: str) -> str:
        """The status of a model in the words of gRPC's health protocol, or of the server (""); raises nothing."""
        try:
            ready = self._backend.state.view(name).ready if name else self.ready
        except InferenceError as error:
            return "SERVICE_UNKNOWN" if error.status == 404 else "NOT_SERVING"
        return "SERVING" if ready else "NOT_SERVING"

    def model(self, name: str, version: str = "") -> dict[str, Any]:
        """A model's metadata."""
        view = self._described(name, version)
        return {
            "name": view.name,
            "versions": [view.version],
            "platform": view.platform,
            "inputs": [_declared(tensor) for tensor in view.inputs],
            "outputs": [_declared(tensor) for tensor in view.outputs],
        }

    def config(self, name: str, version: str = "") -> dict[str, Any]:
        """A model's configuration, in Triton's words."""
        view = self._described(name, version)
        batching = view.batching
        cut = 0 if batching is None else 1
        told = {
            "name": view.name,
            "platform": view.platform,
            "backend": view.platform.rpartition("_")[0] if view.platform == "onnxruntime_onnx" else "rpcsys",
            "version_policy": {"latest": {"num_versions": 1}},
            "max_batch_size": 0 if batching is None else batching.rows,
            "input": [_configured(tensor, cut) for tensor in view.inputs],
            "output": [_configured(tensor, cut) for tensor in view.outputs],
        }
        if batching is not None:
            told["dynamic_batching"] = {
                "preferred_batch_size": [batching.rows],
                "max_queue_delay_microseconds": batching.delay_us,
            }
        return told

    def statistics(self, name: str = "", version: str = "") -> dict[str, Any]:
        """The counts of a model, or of all ("")."""
        views = [self._backend.view(name, version)] if name else self._backend.state.views()
        since_1970 = time.time() - time.monotonic()
        rows = []
        for view in views:
            counted = self._backend.state.statistics(view.name)
            last = int((since_1970 + counted.last) * 1000) if counted.last else 0
            rows.append(counted.to_json(view.name, view.version, last))
        return {"model_stats": rows}

    def index(self, ready: bool = False) -> list[dict[str, str]]:
        """All models with their states, or those alone that are ``ready``."""
        return [
            {"name": view.name, "version": view.version, "state": view.state, "reason": view.reason}
            for view in self._backend.state.views()
            if view.ready or not ready
        ]

    def _described(self, name: str, version: str) -> ModelView:
        view = self._backend.view(name, version)
        if not view.version:
            raise InferenceError(f"model '{name}' is not described yet: {view.reason}", 503)
        if any(tensor.dtype not in NAMES for tensor in (*view.inputs, *view.outputs)):
            raise InferenceError(f"model '{name}' cannot be described: {view.reason}", 400)
        return view


def _declared(tensor: DeclaredTensor) -> dict[str, Any]:
    return {"name": tensor.name, "datatype": NAMES[tensor.dtype], "shape": tensor.extents}


def _configured(tensor: DeclaredTensor, cut: int) -> dict[str, Any]:
    """``cut``: extents that batching adds in front, and that are left out."""
    datatype = NAMES[tensor.dtype]
    data_type = "TYPE_STRING" if datatype == "BYTES" else f"TYPE_{datatype}"
    return {"name": tensor.name, "data_type": data_type, "dims": tensor.extents[cut:]}
