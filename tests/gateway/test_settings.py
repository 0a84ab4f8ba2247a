"""What a gateway does that is told nothing."""

from __future__ import annotations

import pytest

from rpcsys.gateway.settings import QUEUE
from rpcsys.wire.inference import InferenceError
from tests.gateway.transcripts import GatewayTranscript


def test_a_thousand_calls_wait_unless_said_otherwise() -> None:
    transcript = GatewayTranscript()
    transcript.replicas(calls=1)
    for label in range(QUEUE + 1):
        transcript.submit(label)
    assert transcript.state.waiting("m") == 1000
    with pytest.raises(InferenceError, match="1000 calls wait for 'm' already; call again in a moment"):
        transcript.state.submit("m", transcript.calls[0], transcript.now)


def test_all_models_are_served_each_call_alone_and_none_is_unloaded() -> None:
    transcript = GatewayTranscript()
    transcript.replicas()
    assert transcript.state.ready
    assert transcript.state.callable("m").batching is None
    with pytest.raises(InferenceError, match="--model-control"):
        transcript.state.unload("m", transcript.now)
