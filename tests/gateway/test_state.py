"""Which call goes where, when, and how it ends, as transcripts."""

from __future__ import annotations

import gc

import pytest

from rpcsys.gateway.actions import CancelCall
from rpcsys.gateway.calls import Batching
from rpcsys.gateway.replicas import WINDOW
from rpcsys.gateway.state import FORGET_S, ServedRow
from rpcsys.wire.inference import InferenceError
from tests.gateway.transcripts import BROKEN, VERSION, GatewayTranscript, place, said


@pytest.fixture
def transcript() -> GatewayTranscript:
    return GatewayTranscript()


def refused(transcript: GatewayTranscript, label: int = 99, **more: object) -> tuple[int, str]:
    with pytest.raises(InferenceError) as caught:
        transcript.submit(label, **more)  # type: ignore[arg-type]
    del transcript.calls[label], transcript.outcomes[label]
    return caught.value.status, str(caught.value)


# Finding models


def test_nothing_is_ready_before_the_first_list(transcript: GatewayTranscript) -> None:
    assert not transcript.state.ready
    transcript.list([])
    assert transcript.state.ready
    assert transcript.state.views() == []


def test_a_model_that_must_be_there_makes_it_ready() -> None:
    transcript = GatewayTranscript(only=("m",))
    transcript.list([ServedRow("other", VERSION, place(1))])
    assert not transcript.state.ready
    assert transcript.state.views() == []  # others are not served
    transcript.serve()
    assert not transcript.state.ready
    transcript.open_all()
    assert transcript.state.ready


def test_a_model_is_described_by_its_host(transcript: GatewayTranscript) -> None:
    transcript.serve()
    (view,) = transcript.state.views()
    assert (view.name, view.state) == ("m", "UNAVAILABLE")
    transcript.open_all()
    (view,) = transcript.state.views()
    assert (view.version, view.whole_version, view.platform, view.state) == (
        *("1", VERSION, "onnxruntime_onnx", "READY"),
    )
    assert [(tensor.name, tensor.dtype, tensor.extents) for tensor in view.inputs] == [("x", "uint8", [-1, -1])]
    assert view is transcript.state.callable("m")


@pytest.mark.parametrize("version", ["", "1", VERSION])
def test_the_served_version_exists(transcript: GatewayTranscript, version: str) -> None:
    transcript.replicas()
    assert transcript.state.view("m", version).name == "m"


def test_no_other_version_exists(transcript: GatewayTranscript) -> None:
    transcript.replicas()
    with pytest.raises(InferenceError, match="'m' version 2 is not found; version 1 is served") as caught:
        transcript.state.callable("m", "2")
    assert caught.value.status == 404


def test_nothing_is_unknown_before_the_first_list(transcript: GatewayTranscript) -> None:
    assert refused(transcript, name="x") == (503, "no server serves 'x' now; call again in a moment")


def test_an_unknown_model_is_not_found(transcript: GatewayTranscript) -> None:
    transcript.serve()
    assert refused(transcript, name="x") == (404, "Request for unknown model: 'x' is not found")


def test_a_model_that_was_never_connected_is_not_called(transcript: GatewayTranscript) -> None:
    transcript.serve()
    assert refused(transcript) == (503, "no server serves 'm' now; call again in a moment")


@pytest.mark.parametrize(
    ("hello", "reason"),
    [
        ({"inputs": None}, "its inputs and outputs are not described"),
        ({"inputs": [{"name": "x", "dtype": "Sequence(Tensor(FLOAT))", "shape": []}]}, "input 'x' is of type Sequence"),
        ({"outputs": [{"name": "y", "dtype": "float8_e4m3fn", "shape": [1]}]}, "output 'y' is of type float8_e4m3fn"),
    ],
)
def test_what_the_protocol_cannot_describe_is_unavailable(
    transcript: GatewayTranscript, hello: dict[str, object], reason: str
) -> None:
    transcript.replicas(**hello)  # type: ignore[arg-type]
    (view,) = transcript.state.views()
    assert view.state == "UNAVAILABLE"
    assert reason in view.reason
    status, text = refused(transcript)
    assert status == 400
    assert reason in text


def test_a_model_is_forgotten_when_no_list_has_named_it_for_long(transcript: GatewayTranscript) -> None:
    (number,) = transcript.replicas()
    transcript.list([])
    transcript.lose(number)
    transcript.wait(FORGET_S / 2)
    transcript.list([])
    assert refused(transcript)[0] == 503
    transcript.wait(FORGET_S)
    transcript.list([])
    assert refused(transcript)[0] == 404


# Sending


def test_a_call_is_sent_and_answered(transcript: GatewayTranscript) -> None:
    (number,) = transcript.replicas()
    transcript.submit(1, rows=2, width=3)
    assert transcript.on(number) == [[1]]
    transcript.wait(1)
    transcript.answer_all()
    assert transcript.body(1) == bytes([1] * 6)
    statistics = transcript.state.statistics("m")
    assert (statistics.inferences, statistics.executions, statistics.compute.ns) == (2, 1, 10**9)


def test_what_the_host_says_it_took_counts(transcript: GatewayTranscript) -> None:
    transcript.replicas()
    transcript.submit(1)
    transcript.wait(1)
    transcript.answer(next(iter(transcript.frames)), compute_us=250_000)
    statistics = transcript.state.statistics("m")
    assert (statistics.compute.ns, statistics.queue.ns, statistics.success.ns) == (25 * 10**7, 75 * 10**7, 10**9)


def test_the_replica_with_the_fewest_calls_for_each_worker_is_next(transcript: GatewayTranscript) -> None:
    small, large = transcript.replicas(2, workers=1)
    transcript.apply(transcript.state.announced(large, said(workers=3), transcript.now))
    for label in range(8):
        transcript.submit(label)
    assert (len(transcript.on(small)), len(transcript.on(large))) == (2, 6)


def test_replicas_that_are_equally_busy_take_turns(transcript: GatewayTranscript) -> None:
    numbers = transcript.replicas(3)
    used = []
    for label in range(6):
        transcript.submit(label)
        used.append(next(iter(transcript.frames))[0])
        transcript.answer_all()
    assert used == numbers * 2


def test_a_connection_has_no_more_calls_than_its_window(transcript: GatewayTranscript) -> None:
    (number,) = transcript.replicas(workers=2)
    for label in range(WINDOW + 3):
        transcript.submit(label)
    assert len(transcript.on(number)) == WINDOW
    assert transcript.state.waiting("m") == 3
    transcript.answer_all()
    assert all(transcript.body(label) == bytes([label]) for label in range(WINDOW + 3))


def test_a_connection_has_no_more_bytes_than_its_window(transcript: GatewayTranscript) -> None:
    transcript.replicas(size=100)
    transcript.submit(1, width=60)
    transcript.submit(2, width=60)
    assert transcript.sent == [[1]]
    transcript.answer_all()
    transcript.submit(3, width=500)
    assert transcript.sent == [[3]]  # alone it may be larger
    transcript.answer_all()
    assert transcript.body(2) == bytes([2] * 60)


def full(transcript: GatewayTranscript, calls: int = 2) -> None:
    """One replica that has as many calls as it takes, 2 by default."""
    transcript.replicas(calls=calls)
    for label in range(100, 100 + calls):
        transcript.submit(label, client="first")


def test_calls_that_wait_are_served_by_priority(transcript: GatewayTranscript) -> None:
    full(transcript, 1)
    for label, priority in enumerate([0, 2, 1, 2, 1]):
        transcript.submit(label, priority=priority)
    assert order(transcript, 5) == [2, 4, 1, 3, 0]


def test_clients_take_turns(transcript: GatewayTranscript) -> None:
    full(transcript, 1)
    for label, client in enumerate("aaaabbc"):
        transcript.submit(label, client=client)
    assert order(transcript, 7) == [0, 4, 6, 1, 5, 2, 3]


def order(transcript: GatewayTranscript, count: int) -> list[int]:
    """The labels of the next calls, in the order in which they are sent."""
    found = []
    for _ in range(count):
        transcript.answer(next(iter(transcript.frames)))
        found.append(transcript.sent[-1][0])
    return found


def test_too_many_calls_do_not_wait() -> None:
    transcript = GatewayTranscript(queue=3)
    full(transcript)
    for label in range(3):
        transcript.submit(label)
    assert refused(transcript) == (503, "3 calls wait for 'm' already; call again in a moment")
    transcript.answer(next(iter(transcript.frames)))
    transcript.submit(4)


def test_requests_that_become_no_call_count_as_failures_of_a_known_model(transcript: GatewayTranscript) -> None:
    transcript.replicas()
    for status in (400, 413, 500, 503, 504, 404):
        transcript.state.refused("m", status)
    transcript.state.refused("x", 400)
    assert transcript.state.statistics("m").failures == {"OTHER": 3, "REJECTED": 2}


def test_what_the_function_raised_is_the_answer(transcript: GatewayTranscript) -> None:
    transcript.replicas()
    transcript.submit(1)
    transcript.answer_all(BROKEN)
    assert transcript.error(1) == (400, "ValueError: it cannot")
    assert transcript.state.statistics("m").failures == {"BACKEND": 1}


# Deadlines, and calls that are given up


def test_a_deadline_is_passed_on(transcript: GatewayTranscript) -> None:
    transcript.replicas()
    transcript.submit(1, deadline=transcript.now + 1.5)
    transcript.submit(2)
    assert [frame.deadline_ms for frame in transcript.frames.values()] == [1500, 0]


def test_a_call_that_waits_too_long_ends_at_its_deadline(transcript: GatewayTranscript) -> None:
    full(transcript)
    transcript.submit(1, deadline=transcript.now + 1)
    transcript.submit(2, deadline=transcript.now + 3)
    transcript.wait(0.99)
    assert not transcript.outcomes[1]
    transcript.wait(0.03)
    status, text = transcript.error(1)
    assert status == 504
    assert text == "the deadline was exceeded: the call waited for 'm' until then"
    transcript.answer_all()
    assert transcript.body(2) == b"\2"


def test_a_call_under_way_ends_at_its_deadline(transcript: GatewayTranscript) -> None:
    (number,) = transcript.replicas()
    transcript.submit(1, deadline=transcript.now + 1)
    transcript.wait(1.02)
    assert transcript.error(1)[0] == 504
    assert transcript.took(CancelCall) == [CancelCall(number, 1)]
    transcript.answer_all(InferenceError("cancelled", 500))  # the host's own answer comes late


def test_a_call_whose_deadline_is_over_is_not_taken(transcript: GatewayTranscript) -> None:
    transcript.replicas()
    assert refused(transcript, deadline=transcript.now)[0] == 504


def test_a_call_that_is_given_up_while_it_waits_is_never_sent(transcript: GatewayTranscript) -> None:
    full(transcript)
    transcript.submit(1)
    transcript.give_up(1)
    transcript.give_up(1)
    transcript.answer_all()
    assert not transcript.outcomes[1]
    assert transcript.state.statistics("m").failures == {"CANCELED": 1}


def test_a_call_that_is_given_up_under_way_is_cancelled(transcript: GatewayTranscript) -> None:
    """Its place is free when the host has answered."""
    full(transcript, 1)
    transcript.submit(1)
    transcript.give_up(100)
    assert transcript.sent == [[100]]
    assert len(transcript.took(CancelCall)) == 1
    transcript.answer(next(iter(transcript.frames)), InferenceError("Cancelled", 500))
    assert transcript.sent == [[1]]
    assert not transcript.outcomes[100]


def test_a_body_is_free_when_its_call_has_finished() -> None:
    transcript = GatewayTranscript(batches={"m": Batching(4)})
    transcript.replicas(calls=2)
    gc.disable()
    try:
        for label in range(8):
            transcript.submit(label)
        transcript.end_turn()
        transcript.give_up(1)
        transcript.give_up(7)
        transcript.answer_all()
        assert all(body() is None for body in transcript.bodies.values())
    finally:
        gc.enable()


# Replicas that are lost


def test_the_calls_of_a_lost_replica_run_elsewhere(transcript: GatewayTranscript) -> None:
    one, other = transcript.replicas(2)
    for label in range(4):
        transcript.submit(label)
    transcript.lose(one)
    assert sorted(transcript.on(other)) == [[0], [1], [2], [3]]
    transcript.answer_all()
    assert all(transcript.body(label) == bytes([label]) for label in range(4))
    assert transcript.state.statistics("m").repeats == 2


def test_the_calls_of_a_lost_replica_are_ahead_of_those_that_wait(transcript: GatewayTranscript) -> None:
    one, other = transcript.replicas(2, calls=2)
    for label in range(6):
        transcript.submit(label, priority=1)
    lost = [label for (label,) in transcript.on(one)]
    transcript.lose(one)
    transcript.answer(next(key for key in transcript.frames))
    transcript.answer(next(key for key in transcript.frames))
    assert [label for (label,) in transcript.on(other)] == lost


def test_a_call_runs_three_times_at_most(transcript: GatewayTranscript) -> None:
    numbers = transcript.replicas(4)
    transcript.submit(1)
    for _ in range(3):
        (key,) = transcript.frames
        transcript.lose(key[0])
    assert transcript.error(1) == (503, "the host of 'm' was lost 3 times while it ran this call")
    assert len(numbers) == 4
    assert transcript.frames == {}


def test_calls_wait_for_a_replica(transcript: GatewayTranscript) -> None:
    (number,) = transcript.replicas()
    transcript.submit(1)
    transcript.lose(number)
    transcript.submit(2)
    transcript.wait(4)
    transcript.open_all()
    transcript.answer_all()
    assert (transcript.body(1), transcript.body(2)) == (b"\1", b"\2")


def test_calls_do_not_wait_for_ever(transcript: GatewayTranscript) -> None:
    (number,) = transcript.replicas()
    transcript.submit(1)
    transcript.lose(number)
    transcript.wait(1)
    transcript.submit(2)
    transcript.wait(3.9)
    assert not transcript.outcomes[1]
    transcript.wait(0.2)
    gone = (503, "no server serves 'm' now; call again in a moment")
    assert transcript.error(1) == transcript.error(2) == gone
    assert refused(transcript, 3) == gone
    assert transcript.state.view("m").reason == "no server serves it now"
    transcript.open_all()
    transcript.submit(4)
    transcript.answer_all()
    assert transcript.body(4) == b"\4"


def test_an_answer_of_a_lost_replica_counts_no_more(transcript: GatewayTranscript) -> None:
    one, _ = transcript.replicas(2)
    transcript.submit(1)
    (key,) = transcript.frames
    frame = transcript.frames[key]
    transcript.lose(one)
    transcript.frames[key] = frame
    transcript.answer(key)
    assert not transcript.outcomes[1]
    transcript.answer_all()
    assert transcript.body(1) == b"\1"


# Loading and unloading


def test_models_are_not_unloaded_unless_that_is_allowed(transcript: GatewayTranscript) -> None:
    transcript.replicas()
    with pytest.raises(InferenceError, match="--model-control") as caught:
        transcript.state.unload("m", transcript.now)
    assert caught.value.status == 501


def test_an_unloaded_model_is_loaded_again() -> None:
    transcript = GatewayTranscript(control=True)
    full(transcript, 1)
    transcript.submit(1)
    transcript.apply(transcript.state.unload("m", transcript.now))
    assert transcript.error(1)[0] == 503
    assert refused(transcript)[0] == 404
    (view,) = transcript.state.views()
    assert (view.state, view.reason) == ("UNAVAILABLE", "unloaded")
    transcript.answer_all()
    assert transcript.body(100) == b"\x64"
    assert not transcript.open
    transcript.serve()
    assert not transcript.opening
    transcript.state.load("m")
    transcript.serve()
    transcript.open_all()
    transcript.submit(2)
    transcript.answer_all()
    assert transcript.body(2) == b"\2"
