"""Measuring an auto-tuner's candidates on a device: each is one call, which brings its library along."""

from __future__ import annotations

from typing import Any, Dict, List, Sequence, Tuple

from rpcsys.client import answers
from rpcsys.client.calls import CallFuture
from rpcsys.client.session import Session
from rpcsys.errors import NotSupported

#: An array by its element type and its shape.
ArraySpec = Tuple[str, Sequence[int]]


def submit(
    session: Session, code: bytes, function: str, arguments: Sequence[ArraySpec], options: Dict[str, Any],
    *, device: str = "cpu:0", deadline_s: float,
) -> CallFuture:  # fmt: skip
    """Have the device load a library, call its ``function`` with arrays that stay there, and time it; does not wait.

    ``code`` is the library's file. ``options``: any of ``number``, ``repeat``, ``min_repeat_ms``, ``cooldown_ms``,
    ``copies`` of the arguments, and ``flush_caches``; they mean what TVM's EvaluatorConfig means. `results` makes
    the figures of the future's result. The measurement ends after ``deadline_s`` seconds, and with it the session.

    Raises `NotSupported` for an older server, `SessionError` where the session has ended.
    """
    if session.info.get("capabilities", {}).get("candidates") is not True:
        where = "{}:{}".format(*session.address)
        raise NotSupported(f"the server at {where} is of a version that measures no candidates; update rpcsys there")
    specs = [[dtype, list(shape)] for dtype, shape in arguments]
    return session._submit_builtin("session.measure", code, function, specs, options, device, deadline_s=deadline_s)


def results(answer: Any) -> List[float]:
    """The seconds of one call, for each repeat and copy, in a device's answer. Raises `ProtocolError`."""
    found: List[float] = answers.from_device(answers.times, answer, "a candidate")["results"]
    return found
