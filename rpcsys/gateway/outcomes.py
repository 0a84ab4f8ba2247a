"""What a RESULT or an ERROR of rpcsys/1 is for the clients of a gateway."""

from __future__ import annotations

from typing import Any

from rpcsys.client import answers
from rpcsys.errors import Busy, DeadlineExceeded, RemoteError, RpcsysError, one_line
from rpcsys.gateway.calls import Outcome, ResultForm, failed
from rpcsys.wire import frames
from rpcsys.wire.frames import Frame
from rpcsys.wire.inference import InferenceError

#: Characters of a device's sentence that are passed on.
_MOST = 2000


def outcome_of(frame: Frame) -> Outcome:
    """The outcome that a RESULT or an ERROR says. The deadline of a RESULT's header is what its function took."""
    if frame.kind == frames.ERROR:
        return failed(inference_error(answers.error_of(frame)))
    parsed = frame.parsed
    form = parsed.memo
    if form is None:
        form = parsed.memo = _form_of(parsed.head.get("r"))
    if type(form) is not ResultForm:
        return failed(InferenceError(form, 500))
    return Outcome(form, frame.buffers, frame.deadline_ms)


def _form_of(result: Any) -> ResultForm | str:
    """The form of a function's result; a sentence for one that is no array, and no tuple or list of arrays."""
    items = [result]
    if type(result) is dict and result.get("@") == "tuple":
        items = result["items"]
    elif type(result) is list:
        items = result
    outputs = []
    for index, item in enumerate(items):
        form = item.get("@") if type(item) is dict else None
        if form not in ("tensor", "strings"):
            return f"output {index} of the model is no array: such a model cannot be called over this protocol"
        outputs.append(("strings" if form == "strings" else str(item["dtype"]), tuple(item["shape"])))
    return ResultForm(tuple(outputs))


def inference_error(error: RpcsysError) -> InferenceError:
    """A device's error as clients of the protocol see it."""
    text = one_line(error, _MOST)
    if isinstance(error, Busy):
        return InferenceError(text, 503)
    if isinstance(error, DeadlineExceeded):
        return InferenceError(f"the deadline was exceeded: {text}", 504)
    if isinstance(error, RemoteError):
        return InferenceError(text, 400 if error.fault == "user" else 500)
    return InferenceError(text, 500)
