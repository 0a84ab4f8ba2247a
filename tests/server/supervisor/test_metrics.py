"""What a server can be measured by, as Prometheus reads it."""

from prometheus_client.parser import text_string_to_metric_families

from rpcsys.server.supervisor.metrics import TYPE, ServerMetrics


def test_what_prometheus_reads():
    metrics = ServerMetrics('rpi"4\\', lambda: {"slots": 2, "running": 1})
    metrics.ended("closed", 0.1, "")
    metrics.ended("closed", 2.0, "")
    metrics.ended("crashed", 1e6, "it could not be cleaned")
    assert TYPE.startswith("text/plain; version=0.0.4")
    found = {
        (sample.name, sample.labels.get("outcome", sample.labels.get("le", ""))): sample.value
        for family in text_string_to_metric_families(metrics.page()[1].decode())
        for sample in family.samples
        if sample.labels["key"] == 'rpi"4\\'
    }
    assert found["rpcsys_server_slots", ""] == 2
    assert found["rpcsys_server_sessions_total", "closed"] == 2
    assert found["rpcsys_server_sessions_total", "crashed"] == 1
    assert found["rpcsys_server_faults_total", ""] == 1
    assert found["rpcsys_server_session_seconds_bucket", "0.1"] == 1
    assert found["rpcsys_server_session_seconds_bucket", "5.0"] == 2
    assert found["rpcsys_server_session_seconds_bucket", "+Inf"] == 3
    assert found["rpcsys_server_session_seconds_count", ""] == 3
