"""Calls that are joined: what goes into one frame, and what each client gets of its answer."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rpcsys.gateway import batching
from rpcsys.gateway.actions import CancelCall
from rpcsys.gateway.calls import Batching, DeclaredTensor, Outcome, ResultForm, failed
from rpcsys.wire.inference import InferenceError
from rpcsys.wire.reader import FrameReader
from tests.gateway.transcripts import BROKEN, BUSY, GatewayTranscript, head, said, tensor


@pytest.fixture
def transcript() -> GatewayTranscript:
    return GatewayTranscript(batches={"m": Batching(4)})


def test_what_comes_in_one_turn_goes_as_one_call(transcript: GatewayTranscript) -> None:
    transcript.replicas()
    for label in (1, 2, 3):
        transcript.submit(label, width=2)
    assert transcript.sent == []
    transcript.end_turn()
    assert transcript.sent == [[1, 2, 3]]
    (frame,) = transcript.frames.values()
    assert head(frame) == {"f": [0, "main"], "a": [{"@": "tensor", "dtype": "uint8", "shape": [3, 2], "buffer": 0}]}
    transcript.answer_all()
    assert [transcript.body(label) for label in (1, 2, 3)] == [b"\1\1", b"\2\2", b"\3\3"]
    (outcome,) = transcript.outcomes[2]
    assert outcome.form is not None
    assert outcome.form.outputs == (("uint8", (1, 2)),)
    statistics = transcript.state.statistics("m")
    assert (statistics.inferences, statistics.executions, list(statistics.batches)) == (3, 1, [3])


def test_a_batch_gathers_while_the_worker_computes(transcript: GatewayTranscript) -> None:
    transcript.replicas()
    transcript.submit(1)
    transcript.end_turn()
    for label in range(2, 9):
        transcript.submit(label)
        transcript.end_turn()
    assert transcript.sent == [[1]]
    transcript.answer(next(iter(transcript.frames)))
    transcript.end_turn()
    assert transcript.sent == [[2, 3, 4, 5]]
    transcript.answer_all()
    assert all(transcript.body(label) == bytes([label]) for label in range(1, 9))


def test_each_worker_gets_a_batch(transcript: GatewayTranscript) -> None:
    transcript.replicas(2, workers=2)
    for label in range(20):
        transcript.submit(label)
    transcript.end_turn()
    assert transcript.sent == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11], [12, 13, 14, 15]]
    assert transcript.state.waiting("m") == 4


def test_shapes_never_mix(transcript: GatewayTranscript) -> None:
    transcript.replicas()
    for label, width in enumerate([1, 2, 1, 2, 2, 1]):
        transcript.submit(label, width=width)
    transcript.end_turn()
    assert transcript.sent == [[0, 2, 5]]
    transcript.answer(next(iter(transcript.frames)))
    transcript.end_turn()
    assert transcript.sent == [[1, 3, 4]]


def test_a_batch_has_no_more_rows_than_it_may(transcript: GatewayTranscript) -> None:
    """What does not fit is first in the next one."""
    transcript.replicas()
    for label, rows in enumerate([2, 3, 1, 7, 1]):
        transcript.submit(label, rows=rows)
    sent = []
    transcript.end_turn()
    while transcript.frames:
        sent += [[*dict.fromkeys(each)] for each in transcript.sent]
        transcript.answer(next(iter(transcript.frames)))
        transcript.end_turn()
    assert sent == [[0, 2, 4], [1], [3]]
    assert transcript.body(3) == bytes([3] * 7)


def test_a_batch_has_no_more_bytes_than_the_window(transcript: GatewayTranscript) -> None:
    """One call alone may be larger, and is not overtaken for that."""
    transcript.replicas(workers=2, size=100)
    for label, rows in enumerate([2, 1, 1, 1]):
        transcript.submit(label, rows=rows, width=60)
    transcript.end_turn()
    assert [[*dict.fromkeys(each)] for each in transcript.sent] == [[0]]
    transcript.answer(next(iter(transcript.frames)))
    transcript.end_turn()
    assert transcript.sent == [[1]]
    transcript.answer_all()
    assert all(transcript.body(label) == bytes([label] * 60) for label in (1, 2, 3))


def test_a_call_that_goes_alone_joins_none(transcript: GatewayTranscript) -> None:
    transcript.replicas(workers=3)
    for label, alone in enumerate([False, True, False]):
        transcript.submit(label, alone=alone)
    transcript.end_turn()
    assert transcript.sent == [[0, 2], [1]]


def test_priorities_and_turns_count_in_a_batch(transcript: GatewayTranscript) -> None:
    transcript.replicas()
    for label, (client, priority) in enumerate(["a0", "a0", "a0", "b0", "c2", "d1"]):
        transcript.submit(label, client=client, priority=int(priority))
    transcript.end_turn()
    assert transcript.sent == [[5, 4, 0, 3]]


def test_an_error_stays_with_its_request(transcript: GatewayTranscript) -> None:
    """What failed together is run again one by one."""
    transcript.replicas()
    for label in (1, 2, 3):
        transcript.submit(label)
    transcript.end_turn()
    transcript.answer(next(iter(transcript.frames)), BROKEN)
    transcript.end_turn()
    seen = []
    while transcript.frames:
        ((label,),) = transcript.sent
        seen.append(label)
        transcript.answer(next(iter(transcript.frames)), BROKEN if label == 2 else None)
        transcript.end_turn()
    assert seen == [1, 2, 3]
    assert transcript.error(2) == (400, "ValueError: it cannot")
    assert (transcript.body(1), transcript.body(3)) == (b"\1", b"\3")


def test_a_busy_host_is_not_asked_one_by_one(transcript: GatewayTranscript) -> None:
    transcript.replicas()
    transcript.submit(1)
    transcript.submit(2)
    transcript.end_turn()
    transcript.answer(next(iter(transcript.frames)), BUSY)
    transcript.end_turn()
    assert transcript.error(1) == transcript.error(2) == (503, "all workers run a call")
    assert not transcript.frames


def test_an_answer_of_other_rows_is_none(transcript: GatewayTranscript) -> None:
    """A model that sums over the batch must not be joined: each call runs alone."""
    (number,) = transcript.replicas()
    transcript.submit(1)
    transcript.submit(2)
    transcript.end_turn()
    ((_, call_id),) = transcript.frames
    transcript.frames.clear()
    summed = Outcome(ResultForm((("uint8", (1, 1)),)), [memoryview(b"\3")])
    transcript.apply(transcript.state.result(number, call_id, summed, transcript.now))
    transcript.answer_all()
    assert (transcript.body(1), transcript.body(2)) == (b"\1", b"\2")


def test_a_lost_batch_runs_one_by_one(transcript: GatewayTranscript) -> None:
    one, other = transcript.replicas(2)
    for label in (1, 2, 3):
        transcript.submit(label)
    transcript.end_turn()
    ((number, _),) = transcript.frames
    transcript.lose(number)
    transcript.end_turn()
    assert transcript.on(one + other - number) == [[1]]
    transcript.answer_all()
    assert [transcript.body(label) for label in (1, 2, 3)] == [b"\1", b"\2", b"\3"]


def test_a_batch_is_cancelled_when_nobody_waits_for_it(transcript: GatewayTranscript) -> None:
    transcript.replicas()
    for label in (1, 2, 3):
        transcript.submit(label)
    transcript.end_turn()
    transcript.give_up(1)
    transcript.give_up(2)
    assert not transcript.took(CancelCall)
    transcript.give_up(3)
    assert len(transcript.took(CancelCall)) == 1


def test_the_others_of_a_batch_get_their_own(transcript: GatewayTranscript) -> None:
    transcript.replicas()
    for label in (1, 2, 3):
        transcript.submit(label, rows=label % 2 + 1, width=2)
    transcript.end_turn()
    transcript.give_up(2)
    transcript.answer_all()
    assert (transcript.body(1), transcript.body(3)) == (bytes([1] * 4), bytes([3] * 4))
    assert not transcript.outcomes[2]


def test_a_batch_has_the_latest_deadline_of_its_calls(transcript: GatewayTranscript) -> None:
    transcript.replicas(workers=2)
    transcript.submit(1, deadline=transcript.now + 1)
    transcript.submit(2, deadline=transcript.now + 2)
    transcript.submit(3, width=2, deadline=transcript.now + 1)
    transcript.submit(4, width=2)
    transcript.end_turn()
    assert [frame.deadline_ms for frame in transcript.frames.values()] == [2000, 0]


def test_a_delay_lets_more_calls_join() -> None:
    transcript = GatewayTranscript(batches={"m": Batching(4, delay_us=500_000)})
    transcript.replicas()
    transcript.submit(1)
    transcript.end_turn()
    transcript.wait(0.3)
    transcript.submit(2)
    transcript.end_turn()
    assert transcript.sent == []
    transcript.wait(0.25)
    assert transcript.sent == [[1, 2]]
    transcript.answer_all()
    for label in (3, 4, 5, 6):
        transcript.submit(label)
    transcript.end_turn()
    assert transcript.sent == [[3, 4, 5, 6]]  # it is full


def test_a_model_without_a_free_first_extent_is_not_batched(transcript: GatewayTranscript) -> None:
    (number,) = transcript.replicas(outputs=[tensor("y", shape=(1, "w"))])
    assert transcript.state.callable("m").batching is None
    transcript.submit(1)
    assert transcript.sent == [[1]]
    transcript.apply(transcript.state.announced(number, said(), transcript.now))
    assert transcript.state.callable("m").batching == Batching(4)


@pytest.mark.parametrize(
    ("tensors", "joins"),
    [
        ([("float32", ("n", 3))], True),
        ([("float32", (None,))], True),
        ([("float32", ("n",)), ("int64", (1,))], False),
        ([("float32", ())], False),
        ([("strings", ("n",))], False),
    ],
)
def test_what_can_be_joined(tensors: list[tuple[str, tuple[str | int | None, ...]]], joins: bool) -> None:
    declared = [DeclaredTensor("x", dtype, shape) for dtype, shape in tensors]
    good = [DeclaredTensor("y", "int8", ("n",))]
    assert batching.joinable(declared, good) is joins
    assert batching.joinable(good, declared) is joins


@given(st.lists(st.integers(1, 9), min_size=1, max_size=9), st.integers(0, 5), st.integers(1, 3))
def test_slices_are_what_was_joined(rows: list[int], width: int, item: int) -> None:
    """Two outputs, of other widths; each slice has its own rows of both."""
    total = sum(rows)
    of_row = [number for number, count in enumerate(rows) for _ in range(count)]
    one = b"".join(bytes([number]) * width * item for number in of_row)
    two = bytes(of_row)
    dtype = {1: "int8", 2: "int16", 3: "int8"}[item]
    form = ResultForm(((dtype, (total, width)), ("uint8", (total,))))
    found = batching.sliced(Outcome(form, [memoryview(one), memoryview(two)], 7), rows)
    assert found is not None
    for number, (count, outcome) in enumerate(zip(rows, found, strict=True)):
        assert bytes(outcome.buffers[0]) == bytes([number]) * count * width * item
        assert bytes(outcome.buffers[1]) == bytes([number]) * count
        assert outcome.form is not None
        assert outcome.form.outputs == ((dtype, (count, width)), ("uint8", (count,)))
        assert outcome.compute_us == 7
    again = batching.sliced(Outcome(form, [memoryview(one), memoryview(two)]), rows)
    assert again is not None
    assert [each.form for each in again] == [each.form for each in found]  # remembered


def test_nothing_else_is_sliced() -> None:
    assert batching.sliced(failed(InferenceError("no")), [1, 1]) is None
    assert batching.sliced(Outcome(ResultForm((("strings", (2,)),)), [memoryview(b"")]), [1, 1]) is None
    assert batching.sliced(Outcome(ResultForm((("int8", ()),)), [memoryview(b"1")]), [1]) is None


def test_a_template_is_a_call_of_rpcsys() -> None:
    template = batching.call_template(3, [("float32", (2, 3)), ("bool", ())])
    assert template.body_bytes == 25
    pieces = template.pieces(7, [bytes(24), b"\1"], 40)
    (frame,) = FrameReader().feed(b"".join(map(bytes, pieces)))
    assert (frame.call_id, frame.deadline_ms, frame.get("f")) == (7, 40, [3, "main"])
    assert [(each.dtype, tuple(each.shape)) for each in frame.get("a")] == [("float32", (2, 3)), ("bool", ())]


def test_templates_are_remembered_and_bounded() -> None:
    templates = batching.BatchTemplates()
    others = (("float32", (3,)),)
    first = templates.get(0, 5, others)
    assert templates.get(0, 5, others) is first
    for rows in range(1, batching.REMEMBERED + 2):
        templates.get(0, rows, others)
    assert templates.get(0, 5, others) is not first
    assert templates.get(0, 5, others).first == first.first
