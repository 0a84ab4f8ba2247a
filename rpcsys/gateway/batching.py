"""Dynamic batching: the calls of several clients as one CALL, and of its RESULT a slice for each. Nothing is copied."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from rpcsys.gateway.calls import DeclaredTensor, InferenceCall, Others, Outcome, ResultForm
from rpcsys.wire import frames
from rpcsys.wire.dtypes import count, item_bytes
from rpcsys.wire.frames import FrameTemplate
from rpcsys.wire.values import dump

#: Templates, and forms of slices, that are remembered: a batch of another number of rows has another one.
REMEMBERED = 256


def call_template(target: int, inputs: Sequence[tuple[str, Sequence[int]]]) -> FrameTemplate:
    """The head of a CALL of a model with arrays of these dtypes and shapes, one buffer each.

    ``target``: that of the model's view. Raises `LimitExceeded`, as `FrameTemplate`.
    """
    heads = [
        {"@": "tensor", "dtype": dtype, "shape": list(shape), "buffer": index}
        for index, (dtype, shape) in enumerate(inputs)
    ]
    size = sum(item_bytes(dtype) * count(shape) for dtype, shape in inputs)
    return FrameTemplate(frames.CALL, dump({"f": [target, "main"], "a": heads}).encode("ascii"), size)


def joinable(inputs: Iterable[DeclaredTensor], outputs: Iterable[DeclaredTensor]) -> bool:
    """Whether calls can be joined: all inputs and outputs are numbers, with a free first extent."""
    return all(
        tensor.dtype != "strings" and tensor.shape and type(tensor.shape[0]) is not int
        for tensor in (*inputs, *outputs)
    )


class BatchTemplates:
    """The templates of a model's batches, of a bounded number."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, int, Others], FrameTemplate] = {}

    def get(self, target: int, rows: int, others: Others) -> FrameTemplate:
        """The template of a batch of ``rows`` with ``others``. Raises `LimitExceeded`."""
        key = target, rows, others
        template = self._known.get(key)
        if template is None:
            if len(self._known) >= REMEMBERED:
                self._known.clear()
            template = call_template(target, [(dtype, (rows, *extents)) for dtype, extents in others])
            self._known[key] = template
        return template


def joined(calls: Sequence[InferenceCall]) -> list[Any]:
    """The bodies of calls of one batch, end to end: those of the first input, then those of the next."""
    return [call.buffers[index] for index in range(len(calls[0].buffers)) for call in calls]


def sliced(outcome: Outcome, rows: Sequence[int]) -> list[Outcome] | None:
    """The answers to calls of so many ``rows``, from that to their batch; None if it is not as many rows in all."""
    form = outcome.form
    total = sum(rows)
    if form is None or any(dtype == "strings" or shape[:1] != (total,) for dtype, shape in form.outputs):
        return None
    answers = []
    start = 0
    strides = [len(buffer) // total for buffer in outcome.buffers]
    for number in rows:
        end = start + number
        parts = [buffer[start * step : end * step] for buffer, step in zip(outcome.buffers, strides, strict=True)]
        answers.append(Outcome(_slice_of(form, number), parts, outcome.compute_us))
        start = end
    return answers


def _slice_of(form: ResultForm, rows: int) -> ResultForm:
    found = form.slices.get(rows)
    if found is None:
        if len(form.slices) >= REMEMBERED:
            form.slices.clear()
        found = ResultForm(tuple((dtype, (rows, *shape[1:])) for dtype, shape in form.outputs))
        form.slices[rows] = found
    return found
