"""The gateway's metrics."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from tests.gateway.running import MODELS, GatewayBench, in_json, infer_path


def metrics(bench: GatewayBench) -> dict[tuple[str, ...], float]:
    """Values by name, and by model and reason where there are such labels."""
    registry = CollectorRegistry()
    registry.register(bench.service.metrics)
    text = bench.run(lambda: generate_latest(registry)).decode()
    found = {}
    for family in text_string_to_metric_families(text):
        for name, labels, value, *_ in family.samples:
            found[(name, *(labels[label] for label in ("model", "reason") if label in labels))] = value
    return found


def test_calls_are_counted_under_the_names_of_the_field(bench: GatewayBench) -> None:
    path = infer_path("uint8")
    for _ in range(3):
        assert bench.ask("POST", path, in_json("UINT8", (1, 2), [1, 2])).status == 200
    bench.hosts.mute = True
    assert bench.ask("POST", path, in_json("UINT8", (1, 1), [1], parameters={"timeout": 1000})).status == 504
    found = metrics(bench)
    assert found["nv_inference_request_success", "uint8"] == found["nv_inference_count", "uint8"] == 3
    assert found["nv_inference_exec_count", "uint8"] == 3
    assert found["nv_inference_compute_infer_duration_us", "uint8"] == 3 * 1500
    assert found["nv_inference_request_duration_us", "uint8"] > 0
    failures = [found["nv_inference_request_failure", "uint8", why] for why in ("REJECTED", "OTHER")]
    assert sum(failures) == 1
    assert found["nv_inference_pending_request_count", "uint8"] == 0
    assert found["nv_inference_request_success", "float32"] == 0
    assert found["rpcsys_gateway_connections_accepted_total",] == 4
    assert found["rpcsys_gateway_received_bytes_total",] > 4 * 100
    assert found["rpcsys_gateway_sent_bytes_total",] > 4 * 100
    assert found["rpcsys_gateway_replicas",] == len(MODELS)
    assert found["rpcsys_gateway_body_bytes",] == found["rpcsys_gateway_leases",] == 0
