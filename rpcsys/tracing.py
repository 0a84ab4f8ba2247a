"""OpenTelemetry: one trace from the request for a board to the calls on it. An extra: ``pip install 'rpcsys[otel]'``.

    rpcsys.tracing.enable()

With ``RPCSYS_TRACING=1`` in the environment, a program is traced as it is. docs/tracing.md describes the spans.

Only this module knows OpenTelemetry, and imports it when tracing begins. The board needs none of it: a RESULT says how
long the function took, and the client makes a span of that. A CALL says the trace context, for functions that have
spans of their own.
"""

from __future__ import annotations

import contextvars
import importlib.util
import json
import time
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from rpcsys import __version__
from rpcsys.client import spans
from rpcsys.client.calls import Channel
from rpcsys.client.spans import Attributes, Function, FutureSpan, SpanRecorder
from rpcsys.errors import Cancelled, ConfigError, one_line
from rpcsys.wire.frames import CALL, FrameTemplate

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.trace import Span

    from rpcsys.client.calls import PendingCall
    from rpcsys.stream import Stream
    from rpcsys.wire.frames import Frame

__all__ = ["disable", "enable"]

_FUNCTION = b'{"f":'  # how the head of a CALL begins
_MAX_NAME = 200  # characters of a function's name
_MAX_HEAD = 64 << 10  # bytes of a head up to which it says the trace context: a longer one may be at its limit


def enable() -> None:
    """Record what begins from now on, with the tracer provider that the program has set.

    Sessions and pipelines that are there already go on without spans. Raises `ConfigError`: opentelemetry is missing.
    """
    spans.use(_made())


def disable() -> None:
    """Record nothing that begins from now on. Sessions and pipelines that were recorded go on with that."""
    spans.use(SpanRecorder())


def from_environment() -> SpanRecorder:
    """What records a program that does not call `enable`: with its own provider, or by OpenTelemetry's variables.

    Raises `ConfigError`: opentelemetry is missing.
    """
    made = _made()
    from opentelemetry import trace

    if isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider):
        try:
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
            from opentelemetry.sdk.trace import TracerProvider
            from opentelemetry.sdk.trace.export import BatchSpanProcessor
        except ImportError:
            raise _missing() from None
        provider = TracerProvider()
        provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
        trace.set_tracer_provider(provider)
    return made


def _made() -> OtelRecorder:
    # Other packages have parts of the namespace, too.
    if importlib.util.find_spec("opentelemetry") is None or importlib.util.find_spec("opentelemetry.trace") is None:
        raise _missing()
    return OtelRecorder()


def _missing() -> ConfigError:
    return ConfigError("tracing needs OpenTelemetry; type: pip install 'rpcsys[otel]'")


class OtelRecorder(SpanRecorder):
    """Records spans with the tracer provider that is set when they begin."""

    def __init__(self) -> None:
        from opentelemetry import trace

        self._trace = trace
        self.tracer = trace.get_tracer("rpcsys", __version__)

    def span(self, name: str, attributes: Attributes) -> AbstractContextManager[Any]:
        return self.tracer.start_as_current_span(name, attributes=attributes)

    def of_future(self, name: str, attributes: Attributes, future: Any) -> FutureSpan:
        begun = BegunSpan(self, self.tracer.start_span(name, attributes=attributes))
        future.add_done_callback(begun.settle)
        return begun

    def bound(self, function: Function) -> Function:
        context = contextvars.copy_context()

        def run(*args: Any) -> Any:
            return context.copy().run(function, *args)  # a copy, since two threads cannot enter the same one

        return run  # type: ignore[return-value]

    def channel(self, stream: Stream, peer: str, window: dict[str, Any], about: Attributes) -> Channel:
        return TracedChannel(self, self._trace.get_current_span(), about, stream, peer, window)

    def within(self, span: Span) -> Context:
        """The context in which a span is the current one."""
        return self._trace.set_span_in_context(span)

    def begin_call(self, name: str, attributes: Attributes, opening: Span) -> BegunSpan:
        """The span of a call: within the current one, else within that of the ``opening`` of its session."""
        current = self._trace.get_current_span().get_span_context().is_valid
        context = None if current else self.within(opening)
        return BegunSpan(self, self.tracer.start_span(name, context, self._trace.SpanKind.CLIENT, attributes))

    def fail(self, span: Span, error: BaseException) -> None:
        """Note the error with which a span ends."""
        span.record_exception(error)
        text = f"{type(error).__name__}: {one_line(error)}"
        span.set_status(self._trace.Status(self._trace.StatusCode.ERROR, text))


class BegunSpan(FutureSpan):
    """A span that has begun, and ends in any thread. It is never the current one."""

    def __init__(self, recorder: OtelRecorder, span: Span) -> None:
        self._recorder = recorder
        self._span = span
        self._over = False

    def inside(self, name: str) -> AbstractContextManager[Any]:
        return self._recorder.tracer.start_as_current_span(name, self._recorder.within(self._span))

    def end(self, frame: Frame | None = None, error: BaseException | None = None) -> None:
        """End it, with the RESULT of a call or with an error. The first end counts."""
        if self._over:
            return
        self._over = True
        now = time.time_ns()
        took_us = 0 if frame is None else frame.deadline_ms  # what that field says in a RESULT
        if error is not None:
            self._recorder.fail(self._span, error)
        elif took_us:
            context = self._recorder.within(self._span)
            self._recorder.tracer.start_span("run", context, start_time=now - 1000 * took_us).end(now)
        self._span.end(now)

    @property
    def traceparent(self) -> str:
        """Its context as W3C's Trace Context has it; "" where nothing is recorded."""
        context = self._span.get_span_context()
        if not context.is_valid:
            return ""
        return f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"

    def settle(self, future: Any) -> None:
        """End it as a future has ended."""
        self.end(error=Cancelled("it was cancelled") if future.cancelled() else future.exception())


class TracedChannel(Channel):
    """A channel whose calls have spans: Python makes them all, one by one. ``opening``: the span of the session's."""

    traced = True

    def __init__(self, recorder: OtelRecorder, opening: Span, about: Attributes, *channel: Any) -> None:
        super().__init__(*channel)
        self._recorder, self._opening, self._about = recorder, opening, about

    def exchange(self, templates: Any) -> None:
        """Nothing makes calls past this channel."""

    def start_rows(self, calls: Sequence[PendingCall], encode: Any) -> bool:
        return False

    def start(
        self, call: PendingCall, template: FrameTemplate, buffers: Any = (), deadline_s: float | None = None
    ) -> None:
        name = function_name(template.head)
        about = {**self._about, "rpc.method": name, "rpcsys.bytes_sent": template.body_bytes}
        call.span = span = self._recorder.begin_call(f"call {name}", about, self._opening)
        try:
            super().start(call, _carrying(template, span.traceparent), buffers, deadline_s)
        except BaseException as error:
            _end(call, error)
            raise

    def finish(self, call: PendingCall) -> Frame:
        try:
            return super().finish(call)
        except BaseException as error:
            _end(call, error)
            raise

    def cancel(self, call: PendingCall) -> bool:
        cancelled = super().cancel(call)
        if cancelled:
            _end(call, Cancelled("the call was cancelled"))
        return cancelled

    def drop(self, calls: Iterable[PendingCall]) -> None:
        dropped = [*calls]
        super().drop(dropped)
        for call in dropped:
            _end(call, Cancelled("nobody waits for its result any more"))


def _carrying(template: FrameTemplate, traceparent: str) -> FrameTemplate:
    """The template of a CALL that says its trace context, too. Servers before this version ignore it."""
    if not traceparent or len(template.head) > _MAX_HEAD:
        return template
    head = template.head.rstrip(b" ")[:-1] + b',"trace":"%s"}' % traceparent.encode()
    return FrameTemplate(CALL, head, template.body_bytes)


def _end(call: PendingCall, error: BaseException) -> None:
    if call.span is not None:
        call.span.end(error=error)


def function_name(head: bytes) -> str:
    """The function that the head of a CALL names: as it is registered, or as its module calls it."""
    text = head[len(_FUNCTION) :][: 8 * _MAX_NAME].decode("ascii", "replace") if head.startswith(_FUNCTION) else ""
    try:
        target, _ = json.JSONDecoder().raw_decode(text)
    except ValueError:
        target = None
    name = target[-1] if isinstance(target, list) and target else target
    return name[:_MAX_NAME] if isinstance(name, str) else "function"
