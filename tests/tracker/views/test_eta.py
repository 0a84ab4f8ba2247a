"""The forecast of the order of service and of waits."""

import pytest

from rpcsys.tracker.entities import Queue
from rpcsys.tracker.views import eta


def waiting(scene, *users):
    """A waiting request of each user, in this order."""
    for user in users:
        scene.ask(scene.client(user), "request", key="rpi4", wait_for_key=True)
    return list(scene.state.records.waiting.values())


def in_order(scene):
    records = scene.state.records
    return [request.user for request in eta.in_order(records, scene.now, records.queues["rpi4"])]


def test_users_are_served_in_turn(scene):
    waiting(scene, "ann", "ann", "ann", "bob", "cy", "bob")
    assert in_order(scene) == ["ann", "bob", "cy", "ann", "bob", "ann"]


def test_ahead_counts_the_requests_that_are_served_first(scene):
    waiting(scene, "ann", "bob", "ann", "cy", "bob", "ann")
    records = scene.state.records
    order = list(eta.in_order(records, scene.now, records.queues["rpi4"]))
    assert [eta.ahead(records, scene.now, request) for request in order[:3]] == [0, 1, 2]


def test_devices_are_granted_in_the_forecast_order(scene):
    waiting(scene, "ann", "bob", "ann", "cy")
    foretold = in_order(scene)
    server = scene.server()
    for number in range(4):
        scene.put(server, f"rpi4:{number}")
    assert [entry["user"] for entry in scene.recorded("granted")] == foretold


def test_without_past_leases_there_is_no_estimate(scene):
    (request,) = waiting(scene, "ann")
    assert eta.Estimate(Queue("rpi4"), 1, scene.now).of(request, 0) is None


def test_the_estimate_uses_the_lengths_of_past_leases(scene):
    (request,) = waiting(scene, "ann")
    queue = Queue("rpi4")
    queue.lengths.extend([10.0, 20.0, 30.0, 40.0])
    estimate = eta.Estimate(queue, 2, scene.now)
    assert estimate.of(request, 0) == [0.0, 0.0]
    shortest, longest = estimate.of(request, 5)
    assert 2 * 10 <= shortest <= longest <= 2 * 40
    request.parked = "it rests"
    assert estimate.of(request, 5) is None
    request.parked = ""


@pytest.mark.parametrize("free", [1, 100])
def test_an_estimate_grows_with_those_ahead(scene, free):
    (request,) = waiting(scene, "ann")
    queue = Queue("rpi4")
    queue.lengths.extend([5.0, 10.0, 15.0])
    estimate = eta.Estimate(queue, free, scene.now)
    assert [estimate.of(request, n) for n in range(300)] == sorted(estimate.of(request, n) for n in range(300))
