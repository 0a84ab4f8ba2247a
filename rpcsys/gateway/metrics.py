"""The gateway's metrics, for Prometheus: those of models under the names that the field's dashboards read.

docs/inference.md lists the names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from rpcsys.gateway.backend import Backend
from rpcsys.gateway.connection import ClientCrowd
from rpcsys.gateway.memory import BodyMemory
from rpcsys.gateway.statistics import REASONS, ModelStatistics

_Value = Callable[[ModelStatistics], float]
#: Name behind ``nv_inference_``, what it is, its value. They are counters, whose names there have no ``_total``.
_OF_MODELS: tuple[tuple[str, str, _Value], ...] = (
    ("request_success", "Requests that were answered.", lambda counted: counted.success.count),
    ("count", "Rows that were answered, 1 for a request without a batch.", lambda counted: counted.inferences),
    ("exec_count", "Runs of the model's function.", lambda counted: counted.executions),
    ("request_duration_us", "Microseconds of requests that were answered.", lambda counted: counted.success.ns / 1000),
    ("queue_duration_us", "Of these, in queues and on the way.", lambda counted: counted.queue.ns / 1000),
    ("compute_infer_duration_us", "Of these, in the function.", lambda counted: counted.compute.ns / 1000),
)


class GatewayMetrics(Collector):
    """Reads the counts of the gateway's parts at each request of Prometheus."""

    def __init__(self, backend: Backend, crowd: ClientCrowd, memory: BodyMemory) -> None:
        self._backend = backend
        self._crowd = crowd
        self._memory = memory

    def collect(self) -> Iterator[Metric]:
        """All metrics."""
        state = self._backend.state
        models = [(view.name, view.version, state.statistics(view.name)) for view in state.views()]
        for name, text, value in _OF_MODELS:
            metric = Metric(f"nv_inference_{name}", text, "unknown")
            for model, version, counted in models:
                metric.add_sample(metric.name, {"model": model, "version": version}, value(counted))
            yield metric
        failed = Metric("nv_inference_request_failure", "Requests that failed.", "unknown")
        for model, version, counted in models:
            for reason in REASONS:
                labels = {"model": model, "version": version, "reason": reason}
                failed.add_sample(failed.name, labels, counted.failures[reason])
        yield failed
        waiting = GaugeMetricFamily(
            "nv_inference_pending_request_count", "Requests that wait.", labels=("model", "version")
        )
        for model, version, _ in models:
            waiting.add_metric([model, version], state.waiting(model))
        yield waiting
        counts = [counted for _, _, counted in models]
        crowd = self._crowd
        yield _counter("connections_accepted", "Connections over HTTP.", crowd.accepted)
        yield _counter("received_bytes", "Bytes received over HTTP.", crowd.received)
        yield _counter("sent_bytes", "Bytes sent over HTTP.", crowd.sent)
        yield _counter("batches", "Runs of more than one row.", sum(map(_batches, counts)))
        yield _counter("repeats", "Calls sent again: a replica was lost.", sum(each.repeats for each in counts))
        yield _gauge("connections", "Connections over HTTP that are open.", len(crowd))
        yield _gauge("replicas", "Connections to model hosts, and leased devices, that take calls.", state.replicas)
        yield _gauge("leases", "Devices that are leased for pools.", state.leased)
        yield _gauge("body_bytes", "Bytes of bodies under way.", self._memory.taken)


def _batches(counted: ModelStatistics) -> int:
    return sum(times.count for rows, times in counted.batches.items() if rows > 1)


def _counter(name: str, text: str, value: float) -> Metric:
    return CounterMetricFamily(f"rpcsys_gateway_{name}", text, value=value)


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(f"rpcsys_gateway_{name}", text, value=value)
