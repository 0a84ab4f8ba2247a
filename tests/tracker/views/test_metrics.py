"""The metrics for Prometheus."""

import prometheus_client
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import CollectorRegistry

from rpcsys.tracker.transitions import HEALTHY, ServerState
from rpcsys.tracker.views import metrics
from rpcsys.tracker.views.metrics import MAX_KEYS, OTHER, FrameCounts, Histogram, Metrics
from rpcsys.wire.outcomes import OUTCOMES
from tests.tracker import entries
from tests.tracker.test_canaries import SLOW_S, Lab
from tests.tracker.transcripts import Scene


def sampled(scene, *noted):
    """All samples by name and labels, as a scrape of the scene's tracker gives them."""
    traffic = FrameCounts({1: None}, frames_in=3, frames_out=4)
    taken = Metrics(scene.state.records, lambda: scene.now, traffic, lambda: None, None)
    for record in noted:
        taken.note(record)
    registry = CollectorRegistry()
    registry.register(taken)
    text = prometheus_client.generate_latest(registry).decode()
    return {
        (sample.name, *sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_metrics_of_queues_and_servers(scene):
    board = scene.server(name="one", slots=2)
    scene.put(board, "rpi4:1")
    scene.put(board, "rpi4:2")
    idle = scene.server(key="gpu", name="two")
    scene.put(idle, "gpu:1")
    scene.server(key="gpu", name="three")
    for _ in range(3):
        scene.ask(scene.client(), "request", key="rpi4")
    scene.wait(7)
    found = sampled(scene)
    assert found["rpcsys_tracker_pending", ("key", "rpi4")] == 1
    assert found["rpcsys_tracker_oldest_wait_seconds", ("key", "rpi4")] == 7
    assert found["rpcsys_tracker_leases", ("key", "rpi4")] == 2
    assert found["rpcsys_tracker_free", ("key", "gpu")] == 1
    assert found["rpcsys_tracker_slots", ("key", "rpi4")] == 2
    servers = {key[1:]: value for key, value in found.items() if key[0] == "rpcsys_tracker_servers" and value}
    assert servers == {
        (("key", "rpi4"), ("state", "busy")): 1,
        (("key", "gpu"), ("state", "free")): 1,
        (("key", "gpu"), ("state", "preparing")): 1,
    }
    assert found["rpcsys_tracker_frames_total", ("direction", "out")] == 4


def test_metrics_of_leases_and_requests(scene):
    found = sampled(
        scene,
        entries.granted("a-1", 0, waited_s=0.05),
        entries.granted("a-2", 0, waited_s=30.0),
        entries.over("a-1", 0, held_s=2.0),
        entries.over("a-2", 0, held_s=4000.0, outcome="crashed", fault="it cannot clean up"),
        entries.waited("t", "timeout", 0),
        entries.waited("t", "granted", 0),
    )
    waits, rpi4 = "rpcsys_tracker_wait_seconds", ("key", "rpi4")
    assert found[waits + "_count", rpi4] == 2
    assert found[waits + "_sum", rpi4] == 30.05
    assert found[waits + "_bucket", rpi4, ("le", "0.1")] == 1
    assert found[waits + "_bucket", rpi4, ("le", "60.0")] == 2
    assert found["rpcsys_tracker_lease_seconds_bucket", rpi4, ("le", "3600.0")] == 1
    assert found["rpcsys_tracker_lease_seconds_bucket", rpi4, ("le", "+Inf")] == 2
    assert found["rpcsys_tracker_sessions_total", rpi4, ("outcome", "crashed")] == 1
    assert found["rpcsys_tracker_faults_total", rpi4] == 1
    assert {key: v for key, v in found.items() if "unserved" in key[0] and "created" not in key[0] and v} == {
        ("rpcsys_tracker_unserved_total", ("why", "timeout")): 1
    }


def test_metrics_of_many_keys_are_bounded(scene):
    many = [entries.over(f"x-{n}", 0, key=f"k{n}") for n in range(3 * MAX_KEYS)]
    found = sampled(scene, *many, entries.granted("x", 0, key='a"b\\c\n'))
    keys = {dict(key[1:]).get("key") for key in found if key[0].startswith("rpcsys_tracker_lease_seconds")}
    assert len(keys) == MAX_KEYS + 1
    assert found["rpcsys_tracker_lease_seconds_count", ("key", OTHER)] == 2 * MAX_KEYS
    assert found["rpcsys_tracker_wait_seconds_count", ("key", 'a"b\\c\n')] == 1


def test_every_metric_has_values_before_anything_happens(scene):
    """An alert on a metric that is absent never fires, and `increase` misses its first step."""
    for _ in range(2):
        found = sampled(scene)
        other = ("key", OTHER)
        for name in ("gone_servers", "faults_total", "wait_seconds_count", "lease_seconds_count"):
            assert found[f"rpcsys_tracker_{name}", other] == 0, name
        for outcome in OUTCOMES:
            assert found["rpcsys_tracker_sessions_total", other, ("outcome", outcome)] == 0
        for why in metrics.WHYS:
            assert found["rpcsys_tracker_unserved_total", ("why", why)] == 0
        assert found["rpcsys_tracker_servers", other, ("state", "unhealthy")] == 0
        for key in ("rpi4", "gpu"):  # the known keys, too
            scene.server(key, f"a-{key}")
    found = sampled(scene)
    for name in ("gone_servers", "faults_total", "wait_seconds_count", "lease_seconds_count"):
        assert found[f"rpcsys_tracker_{name}", ("key", "rpi4")] == 0, name
    assert found["rpcsys_tracker_servers", ("key", "gpu"), ("state", "free")] == 0
    assert found["rpcsys_tracker_servers", ("key", "gpu"), ("state", "preparing")] == 2


def test_all_states_of_a_server_are_counted():
    assert set(metrics.STATES) == {state.value for state in ServerState if state not in HEALTHY} | {
        "free", "busy", "partly busy", "preparing",
    }  # fmt: skip


def test_a_histogram_counts_each_value_once():
    histogram = Histogram((1.0, 2.0))
    for value in (0.5, 1.0, 1.5, 2.0, 99.0):
        histogram.observe(value)
    assert histogram.buckets() == [("1.0", 2.0), ("2.0", 4.0), ("+Inf", 5.0)]
    assert histogram.sum == 104.0


def test_buckets_rise():
    for bounds in (metrics.WAITS_S, metrics.LEASES_S, metrics.LAGS_S):
        assert list(bounds) == sorted(set(bounds))


def test_servers_that_are_gone(scene):
    scene.leave(scene.server())
    assert sampled(scene)["rpcsys_tracker_gone_servers", ("key", "rpi4")] == 1
    scene.wait(86400)  # the key has no queue any more
    assert sampled(scene)["rpcsys_tracker_gone_servers", ("key", "rpi4")] == 1


def test_servers_that_their_canaries_find_slow():
    scene = Scene()
    lab = Lab(scene)
    lab.add()
    lab.add("other", "rpi5", port=9091)
    of_key = ("key", "rpi4")
    assert sampled(scene)["rpcsys_tracker_slow_servers", of_key] == 0
    assert sampled(scene)["rpcsys_tracker_checked_servers", of_key] == 0
    lab.run(times=100)
    assert sampled(scene)["rpcsys_tracker_checked_servers", of_key] == 1
    lab.run(seconds=SLOW_S, times=30)
    assert sampled(scene)["rpcsys_tracker_slow_servers", of_key] == 1
    assert sampled(scene)["rpcsys_tracker_checked_servers", of_key] == 1
    assert sampled(scene)["rpcsys_tracker_slow_servers", ("key", "rpi5")] == 0
    scene.leave(lab.boards["board"])
    assert sampled(scene)["rpcsys_tracker_slow_servers", of_key] == 0
