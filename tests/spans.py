"""The spans that this process has recorded, with OpenTelemetry's own SDK."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest


class Recorded:
    """What was recorded since the last `clear`."""

    def __init__(self, exporter: Any) -> None:
        self._exporter = exporter

    def spans(self, name: str) -> list[Any]:
        return [span for span in self._exporter.get_finished_spans() if span.name == name]

    def one(self, name: str) -> Any:
        (span,) = self.spans(name)
        return span

    @property
    def counts(self) -> Counter[str]:
        return Counter(span.name for span in self._exporter.get_finished_spans())

    def parent(self, span: Any) -> str:
        """The name of a span's parent, "" for none."""
        if span.parent is None:
            return ""
        (found,) = [
            other for other in self._exporter.get_finished_spans() if other.context.span_id == span.parent.span_id
        ]
        return found.name

    @property
    def traces(self) -> set[int]:
        return {span.context.trace_id for span in self._exporter.get_finished_spans()}

    def clear(self) -> None:
        self._exporter.clear()


@functools.lru_cache(1)
def exporter() -> Any:
    """The exporter of this process's provider: a process can set one once."""
    trace = pytest.importorskip("opentelemetry.trace")
    sdk = pytest.importorskip("opentelemetry.sdk.trace")
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    made = InMemorySpanExporter()
    provider = sdk.TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(made))
    trace.set_tracer_provider(provider)
    return made


@pytest.fixture
def recorded() -> Iterator[Recorded]:
    """What is recorded while tracing is on."""
    import rpcsys

    made = Recorded(exporter())
    made.clear()
    rpcsys.tracing.enable()
    try:
        yield made
    finally:
        rpcsys.tracing.disable()
