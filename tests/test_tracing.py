"""Tracing, without a lab: names of calls, ends of spans, and programs that are traced by their environment."""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import Future
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from rpcsys import graph
from rpcsys.tracing import BegunSpan, OtelRecorder, function_name
from rpcsys.wire import frames
from tests.live.daemons import wait_until
from tests.spans import Recorded, recorded  # noqa: F401 (a fixture)
from tests.tracker.hook_receivers import HookReceiver

TARGETS = st.text() | st.integers(0, 9) | st.tuples(st.integers(0, 9), st.text()).map(list)


@given(TARGETS)
@example("x" * 5000)
def test_the_name_of_any_call(target: object) -> None:
    template, _ = frames.template(frames.CALL, {"f": target, "a": []})
    name = target[1] if isinstance(target, list) else target
    if isinstance(name, str) and len(name) < 100:
        assert function_name(template.head) == name
    assert len(function_name(template.head)) <= 200


@given(st.binary(max_size=200))
@example(b'{"f":[]}')
@example(b'{"f":{"@":"tuple"}}')
def test_no_head_has_no_name(head: bytes) -> None:
    assert function_name(b'{"f":' + head) is not None
    assert function_name(head)


def test_a_call_that_has_run_has_a_span_of_that(recorded: Recorded) -> None:  # noqa: F811
    recorder = OtelRecorder()
    span = BegunSpan(recorder, recorder.tracer.start_span("call f"))
    span.end(SimpleNamespace(deadline_ms=250))
    span.end(error=ValueError("too late: it has ended"))
    run, call = recorded.one("run"), recorded.one("call f")
    assert run.parent.span_id == call.context.span_id
    assert run.end_time - run.start_time == 250_000
    assert run.end_time == call.end_time
    assert call.status.is_ok


@pytest.mark.parametrize("outcome", ["result", "error", "cancelled"])
def test_a_span_ends_as_its_future(recorded: Recorded, outcome: str) -> None:  # noqa: F811
    future: Future[int] = Future()
    span = OtelRecorder().of_future("frame", {"rpcsys.frame": 7}, future)
    with span.inside("stage a"):
        pass
    if outcome == "cancelled":
        future.cancel()
    elif outcome == "error":
        future.set_exception(ValueError("no such shape"))
    else:
        future.set_result(1)
    frame = recorded.one("frame")
    assert recorded.one("stage a").parent.span_id == frame.context.span_id
    assert frame.attributes == {"rpcsys.frame": 7}
    expected = {"result": None, "error": "ValueError: no such shape", "cancelled": "Cancelled: it was cancelled"}
    assert frame.status.description == expected[outcome]


def test_a_frame_of_a_pipeline_that_fails_has_its_error(recorded: Recorded) -> None:  # noqa: F811
    def fails(x: object) -> object:
        raise ValueError("no such shape")

    with graph.Pipeline([("bad", fails, ["x"], ["y"])]) as pipeline:
        (outcome,) = pipeline.run([np.zeros(1)])
    assert "no such shape" in str(outcome)
    wait_until(lambda: recorded.counts["frame"] == 1, 30, "the frame's span")
    assert recorded.one("stage bad").status.description == "ValueError: no such shape"
    assert recorded.one("frame").status.description.startswith("FrameError: frame 0 failed in stage 'bad'")


def test_a_program_is_traced_by_its_environment() -> None:
    """It sets no provider: OpenTelemetry's variables say where its spans go."""
    code = (
        "import rpcsys\n"
        "try: rpcsys.connect('127.0.0.1', 1)\n"
        "except rpcsys.errors.ServerUnreachable: print('unreachable')\n"
    )
    with HookReceiver(200) as collector:
        variables = {"RPCSYS_TRACING": "1", "OTEL_EXPORTER_OTLP_ENDPOINT": collector.url}
        done = subprocess.run(
            [sys.executable, "-c", code], env={**os.environ, **variables}, capture_output=True, text=True, timeout=60
        )
        assert done.stdout == "unreachable\n", done.stderr
        (told,) = collector.told
    assert told.path == "/v1/traces"
    assert b"session.open" in told.body
    assert b"no device server at 127.0.0.1:1" in told.body
