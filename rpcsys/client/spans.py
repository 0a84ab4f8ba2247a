"""Where `rpcsys.tracing` records what a client does. Until it is on, nothing is recorded, and no call pays for it.

A call of a session is recorded by the session's channel, which is of another class while tracing is on.
"""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING, Any, Callable, ContextManager, Dict, Optional, TypeVar

from rpcsys import part

if TYPE_CHECKING:
    from rpcsys.client.calls import Channel
    from rpcsys.stream import Stream

Function = TypeVar("Function", bound=Callable[..., Any])
Attributes = Dict[str, Any]
_NOWHERE: ContextManager[None] = contextlib.nullcontext()


class FutureSpan:
    """The span of what ends with a future. This one is recorded nowhere."""

    def inside(self, name: str) -> ContextManager[Any]:
        """A span within this one, which is the current one of the thread that enters it."""
        return _NOWHERE


class SpanRecorder:
    """Makes spans, and the channels of sessions. This one records nothing."""

    _none = FutureSpan()

    def span(self, name: str, attributes: Attributes) -> ContextManager[Any]:
        """A span, which is the current one while it is entered. An exception is its error."""
        return _NOWHERE

    def of_future(self, name: str, attributes: Attributes, future: Any) -> FutureSpan:
        """A span that has begun, and ends as a future does."""
        return self._none

    def bound(self, function: Function) -> Function:
        """A function for another thread, where the present span is the current one while it runs."""
        return function

    def channel(self, stream: Stream, peer: str, window: Dict[str, Any], about: Attributes) -> Channel:
        """The channel of a session that is being opened. ``about``: attributes of its calls."""
        from rpcsys.client.calls import Channel  # here, because queries open no session

        return Channel(stream, peer, window)


_recorder: Optional[SpanRecorder] = None


def recorder() -> SpanRecorder:
    """What records now. With ``RPCSYS_TRACING=1``, its first use turns tracing on, and raises what that raises."""
    if _recorder is None:
        use(part("rpcsys.tracing").from_environment() if os.environ.get("RPCSYS_TRACING") == "1" else SpanRecorder())
    assert _recorder is not None, "it is set"
    return _recorder


def use(other: SpanRecorder) -> None:
    """Have another one record what begins from now on."""
    global _recorder
    _recorder = other
