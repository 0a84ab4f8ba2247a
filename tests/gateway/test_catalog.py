"""What clients are told of models."""

from __future__ import annotations

from typing import Any

import pytest

from rpcsys.gateway.calls import Batching
from rpcsys.gateway.catalog import ModelCatalog
from rpcsys.gateway.shared_memory import SharedMemory
from rpcsys.gateway.state import GatewayState
from rpcsys.wire.inference import InferenceError
from tests.gateway.transcripts import GatewayTranscript, tensor


class PlayedBackend:
    """The state of a transcript, as a backend shows it."""

    def __init__(self, state: GatewayState) -> None:
        self.state = state
        self.view = state.view


def catalog(shared: bool = False, settings: Any = None, **told: Any) -> ModelCatalog:
    transcript = GatewayTranscript(**(settings or {}))
    transcript.replicas(**told)
    return ModelCatalog(PlayedBackend(transcript.state), SharedMemory(shared))  # type: ignore[arg-type]


def test_extensions_are_those_that_are_on() -> None:
    assert "system_shared_memory" not in catalog().server()["extensions"]
    assert "system_shared_memory" in catalog(shared=True).server()["extensions"]


def test_a_model_and_its_configuration() -> None:
    kinds = {"rpcsys.onnx": ("onnxruntime_onnx", "onnxruntime"), "rpcsys.graph": ("rpcsys_graph", "rpcsys")}
    for kind, (platform, backend) in kinds.items():
        found = catalog(kind=kind, inputs=[tensor("x", "float16", ("n", 4))], outputs=[tensor("y", "strings", (3,))])
        assert found.model("m", "1") == {
            "name": "m",
            "versions": ["1"],
            "platform": platform,
            "inputs": [{"name": "x", "datatype": "FP16", "shape": [-1, 4]}],
            "outputs": [{"name": "y", "datatype": "BYTES", "shape": [3]}],
        }
        assert found.config("m") == {
            "name": "m",
            "platform": platform,
            "backend": backend,
            "version_policy": {"latest": {"num_versions": 1}},
            "max_batch_size": 0,
            "input": [{"name": "x", "data_type": "TYPE_FP16", "dims": [-1, 4]}],
            "output": [{"name": "y", "data_type": "TYPE_STRING", "dims": [3]}],
        }


def test_a_configuration_with_batching_has_no_first_extent() -> None:
    config = catalog(settings={"batches": {"m": Batching(32, 500)}}).config("m")
    assert (config["max_batch_size"], config["input"][0]["dims"]) == (32, [-1])
    assert config["dynamic_batching"] == {"preferred_batch_size": [32], "max_queue_delay_microseconds": 500}


def test_states_and_reasons() -> None:
    found = catalog(inputs=[tensor("x", "float8_e4m3fn")])
    (row,) = found.index()
    assert (row["state"], "float8" in row["reason"]) == ("UNAVAILABLE", True)
    assert found.index(ready=True) == []
    assert not found.model_ready("m")
    with pytest.raises(InferenceError, match="cannot be described") as caught:
        found.model("m")
    assert caught.value.status == 400


def test_before_a_host_has_said_hello() -> None:
    transcript = GatewayTranscript()
    transcript.serve()
    found = ModelCatalog(PlayedBackend(transcript.state), SharedMemory(False))  # type: ignore[arg-type]
    with pytest.raises(InferenceError, match="not described yet") as caught:
        found.config("m")
    assert caught.value.status == 503
    assert found.index()[0]["state"] == "UNAVAILABLE"
    assert found.statistics("m")["model_stats"][0]["last_inference"] == 0


def test_what_is_unknown() -> None:
    found = catalog()
    for asked in (found.model, found.config, found.statistics, found.model_ready):
        with pytest.raises(InferenceError, match="not found") as caught:
            asked("none", "")
        assert caught.value.status == 404
