"""Limits of the memory for waiting requests and places."""

import pytest

from rpcsys.tracker import quotas
from rpcsys.tracker.quotas import REQUEST_BYTES
from rpcsys.tracker.records import TICKET_S

LONG = {f"label-{number}": "\N{SNOWMAN}" * 250 for number in range(16)}


@pytest.fixture
def narrow(monkeypatch):
    monkeypatch.setattr(quotas, "MAX_BYTES_OF_ADDRESS", 10 * REQUEST_BYTES)
    monkeypatch.setattr(quotas, "MAX_BYTES", 15 * REQUEST_BYTES)


def waiting(scene, address, count):
    """Send ``count`` requests of an address; how many wait, and the answers to the others."""
    refused = []
    for number in range(count):
        client = scene.client(address=address)
        answer = scene.request(client, key=f"key-{number}", wait_for_key=True)
        if answer.get("ok") is False:
            refused.append(answer)
    return count - len(refused), refused


def test_waiting_requests_are_bounded_by_address_and_in_all(narrow, scene):
    count, refused = waiting(scene, "10.0.0.5", 20)
    assert count == 9
    assert refused[0]["error"] == "BadRequest"
    assert "10.0.0.5" in refused[0]["message"]
    count, refused = waiting(scene, "10.0.0.6", 20)
    assert count == 5
    assert "try again" in refused[-1]["message"]


def test_the_bounds_hold_for_tvm_clients(narrow, scene):
    answers = [scene.say(scene.connect(), [4, f"key-{number}", "", 1]) for number in range(12)]
    assert answers[:9] == [[]] * 9
    assert [code for ((code, _),) in answers[9:]] == [-1] * 3


def test_a_request_that_need_not_wait_is_granted_beyond_the_bounds(narrow, scene):
    waiting(scene, "10.0.0.5", 20)
    scene.put(scene.server(), "rpi4:1")
    assert scene.request(scene.client(address="10.0.0.5"))["leases"]


def test_ended_requests_free_their_memory(narrow, scene):
    client = scene.client()
    for number in range(5):
        scene.ask(client, "request", number, key="x", wait_for_key=True, labels=LONG if number == 0 else {})
    assert scene.state.records.memory.bytes == sum(scene.state.records.memory.by_address.values()) > 5 * REQUEST_BYTES
    scene.ask(client, "cancel", 9, request=0)
    scene.leave(client)
    assert (scene.state.records.memory.bytes, dict(scene.state.records.memory.by_address)) == (0, {})


def test_places_without_a_connection_are_bounded(monkeypatch, scene):
    monkeypatch.setattr(quotas, "MAX_PLACES_BYTES", 20 * REQUEST_BYTES)
    for number in range(30):
        client = scene.client()
        scene.ask(client, "request", 1, key="x", wait_for_key=True, labels=LONG if number % 9 == 0 else {})
        scene.leave(client)
    assert 0 < scene.state.records.places.bytes <= 20 * REQUEST_BYTES
    assert len(scene.recorded("waited")) == 30 - len(scene.state.records.places)
    scene.wait(TICKET_S)
    assert (scene.state.records.places.bytes, scene.state.records.places) == (0, {})
