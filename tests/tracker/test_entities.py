"""Values that are derived from the fields of leases, peers and requests."""

import pytest

from rpcsys.tracker.entities import LeaseRecord, Peer, Queue, SlotOffer, WaitingRequest
from rpcsys.tracker.labels import facts_of_key, wants_of_key
from rpcsys.tracker.transitions import LeaseEvent, LeaseState
from rpcsys.wire import control


def lease(limit_s):
    return LeaseRecord("run-1", 1, "rpi4", 1, "board", 2, "ann", "10.0.0.5", 100.0, limit_s)


def test_a_limit_counts_from_the_opening_of_the_session():
    limited = lease(60.0)
    assert (limited.opened, limited.until) == (False, 160.0)
    limited.move(LeaseEvent.OPENED)
    limited.started_at = 130.0
    assert (limited.opened, limited.state, limited.until) == (True, LeaseState.RUNNING, 190.0)
    assert lease(None).until is None


@pytest.mark.parametrize(
    ("address", "host", "seen"),
    [
        ("10.0.0.5", "127.0.0.1", "10.0.0.1"),
        ("10.0.0.5", "10.0.0.7", "10.0.0.7"),
        ("127.0.0.1", "localhost", "localhost"),
        ("10.0.0.5", "10.0.0.5", "10.0.0.5"),
    ],
)
def test_a_server_on_the_trackers_machine_has_the_trackers_address(address, host, seen):
    assert Peer(1, address, "10.0.0.1").sees(host) == seen


def test_the_address_of_a_server_for_its_clients():
    peer = Peer(1, "10.0.0.5", "10.0.0.1")
    assert peer.reached_at(None, 9090) == ("10.0.0.5", 9090)
    assert peer.reached_at("board.lab", None) == ("board.lab", None)
    peer.gate = ("10.0.0.9", 7000)
    assert peer.reached_at(None, 9090) == ("10.0.0.9", 7000)


def test_a_client_without_a_user_counts_by_its_address():
    assert Peer(1, "10.0.0.5", "").who == "10.0.0.5"
    assert Peer(1, "10.0.0.5", "", user="ann").who == "ann"


def test_a_tvm_proxy_is_recognised_by_its_name_or_its_keys():
    peer = Peer(1, "10.0.0.5", "")
    peer.serves["a"] = None
    assert not peer.is_tvm_proxy
    peer.report = ("server:proxy[a,b]", "10.0.0.5", 1)
    assert peer.is_tvm_proxy
    peer.report = None
    peer.serves["b"] = None
    assert peer.is_tvm_proxy


def test_answers_equal_those_of_the_wire():
    peer = Peer(7, "10.0.0.5", "")
    assert peer.done(3, leases=[]).message == control.Answer(3, True, fields={"leases": []}).to_json()
    assert peer.refuse(3, "no").message == control.Answer(3, False, "BadRequest", "no").to_json()
    assert peer.refuse(3, "no", "TooLong").conn == 7


def test_slots_of_a_tvm_server_are_its_offers_and_leases():
    peer = Peer(1, "10.0.0.5", "")
    peer.offers["rpi4:1"] = SlotOffer(1, "rpi4", "rpi4:1", "10.0.0.5", 9090, facts_of_key("rpi4"))
    peer.serving["run-1"] = lease(None)
    assert peer.slots == 2


def test_effective_priority_rises_with_the_steps():
    request = WaitingRequest(1, 1, None, wants_of_key("rpi4"), 2.0, "ann", 0.0)
    request.steps = 3
    assert (request.key, request.standing) == ("rpi4", 5.0)


def test_the_oldest_lease_lengths_are_dropped():
    queue = Queue("rpi4")
    queue.lengths.extend(range(100))
    assert (len(queue.lengths), queue.lengths[0]) == (64, 36)
