"""The trace context that a client sends with a call, for functions here that make spans of their own."""

from __future__ import annotations

import re
import threading
from typing import Any, Callable

_is_traceparent = re.compile("00-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}", re.ASCII).fullmatch
_running = threading.local()


def traceparent() -> str:
    """The W3C traceparent of the call that this thread runs; "" where its client is not traced."""
    return getattr(_running, "traceparent", "")


def within(trace: Any, function: Callable[..., Any]) -> Callable[..., Any]:
    """A function that runs ``function`` with what its CALL says as ``trace``; anything but a traceparent is ignored."""
    if type(trace) is not str or not _is_traceparent(trace):
        return function

    def run(*args: Any) -> Any:
        _running.traceparent = trace
        try:
            return function(*args)
        finally:
            _running.traceparent = ""

    return run
