"""A tracker that has just started again: which offers it reserves, and the places of TVM's requests."""

from __future__ import annotations

import pytest

from rpcsys.tracker import events
from rpcsys.tracker.labels import facts_of, facts_of_key, wants_of, wants_of_key
from rpcsys.tracker.matching import MAX_BESIDE
from rpcsys.tracker.requests import RECORD_S, TOLD_AT_ONCE, TVM_TICKET_S
from rpcsys.tracker.restore import SETTLE_S
from rpcsys.tracker.settling import Settling
from rpcsys.wire.tracker import parse_to_tracker
from tests.tracker.restarts import again
from tests.tracker.transcripts import Scene

REQUEST = [4, "rpi4", "", 1]


@pytest.fixture
def before():
    scene = Scene()
    scene.wait(60)
    return scene


def tvm_client(scene: Scene, request=REQUEST, address="10.0.0.5") -> int:
    conn = scene.connect(address)
    scene.apply(events.Received(scene.now, conn, parse_to_tracker(request)))
    return conn


# What is reserved.


def test_a_facts_set_is_reserved_until_the_last_ticket_that_it_fits_is_back():
    settling = Settling()
    for ticket in "ab":
        settling.wait_for(ticket, wants_of_key("rpi4"))
    assert settling.reserves(facts_of_key("rpi4"))
    assert not settling.reserves(facts_of_key("gpu"))
    assert settling.is_back("a") is None
    assert settling.reserves(facts_of_key("rpi4"))
    assert settling.is_back("b") == wants_of_key("rpi4")
    assert not settling.reserves(facts_of_key("rpi4"))
    assert settling.over
    assert settling.is_back("b") is None


def test_sets_of_labels_beside_each_other_are_bounded():
    settling = Settling()
    for number in range(2 * MAX_BESIDE):
        settling.wait_for(f"{number}", wants_of("rpi4", {"cores": f">={number}"}))
    assert settling.reserves(facts_of("rpi4", "b", {"cores": "0"}, ()))
    for number in range(MAX_BESIDE):
        settling.is_back(f"{number}")
    assert settling.over


def test_an_offer_that_fits_no_absent_ticket_is_granted_at_once(before):
    before.server()
    before.request(before.client("gone"), labels={"rev": "2"}, wait_for_key=True)
    scene = again(before)
    first = scene.server(name="one", labels={"rev": "1"})
    second = scene.server(name="two", port=9091, labels={"rev": "2"})
    scene.put(second, "rpi4:2")
    scene.put(first, "rpi4:1")
    new, tvm = scene.client("new"), scene.connect()
    assert scene.request(new)["leases"][0]["matchkey"] == "rpi4:1"
    scene.say(tvm, REQUEST)
    assert scene.queue() == (1, 1), "the other device is free, and reserved"
    scene.wait(SETTLE_S)
    assert scene.granted(tvm) == ["rpi4:2"]
    assert scene.replayed() == scene.state


def test_a_server_that_does_not_come_back_holds_up_nobody(before):
    before.server(name="lost")
    scene = again(before)
    scene.put(scene.server(name="other", port=1), "rpi4:1")
    assert scene.request(scene.client("new"))["leases"]


def test_the_return_of_the_last_ticket_serves_all_who_wait(before):
    before.server()
    tickets = [before.request(before.client(user))["ticket"] for user in ("ann", "bob")]
    other = before.request(before.client("eve"), labels={"rev": "2"}, wait_for_key=True)["ticket"]
    scene = again(before)
    for name, rev in (("one", "1"), ("two", "2"), ("three", "1")):
        server = scene.server(name=name, port=len(name), labels={"rev": rev})
        scene.put(server, f"rpi4:{name}")
    new, bob, ann = scene.client("new"), scene.client("bob"), scene.client("ann")
    scene.request(new)
    scene.request(bob, ticket=tickets[1])
    assert scene.granted(new) == scene.granted(bob) == []
    assert scene.request(ann, ticket=tickets[0])["leases"][0]["matchkey"] == "rpi4:one"
    assert (scene.granted(bob), scene.granted(new)) == (["rpi4:three"], []), "what fits the other ticket is reserved"
    assert scene.request(scene.client("eve"), ticket=other, labels={"rev": "2"})["leases"][0]["matchkey"] == "rpi4:two"


def test_an_absent_ticket_holds_up_one_restart_alone(before):
    """Its client may never have heard of it; once that is back, it counts again."""
    before.server()
    ticket = before.request(before.client("ann"))["ticket"]
    scene = again(before)
    scene.wait(SETTLE_S)
    scene = again(scene)
    scene.put(scene.server(), "rpi4:1")
    assert scene.request(scene.client("new"))["leases"], "nothing is reserved"
    ann, new = scene.client("ann"), scene.client("new")
    assert scene.request(new)["position"] == 1
    assert scene.request(ann, ticket=ticket)["position"] == 1, "it has kept its place"
    scene = again(scene)
    scene.put(scene.server(), "rpi4:2")
    other = scene.client("other")
    assert scene.request(other)["position"] == 1, "nothing is free: it is reserved for ann and new"
    scene.wait(SETTLE_S)
    assert scene.granted(other) == ["rpi4:2"]
    assert [entry["ticket"] for entry in scene.recorded("absent")][:1] == [ticket]
    assert scene.replayed() == scene.state


def test_a_ticket_that_comes_with_other_wishes_is_still_absent(before):
    before.server()
    ticket = before.request(before.client("ann"))["ticket"]
    scene = again(before)
    scene.put(scene.server(), "rpi4:1")
    ann = scene.client("ann")
    scene.request(ann, ticket=ticket, labels={"rev": "1"})
    scene.request(ann, 2)
    assert scene.granted(ann) == []


def test_reserved_offers_of_a_drained_server_are_withdrawn(before):
    before.server()
    before.request(before.client("gone"))
    scene = again(before)
    server, client, operator = scene.server(), scene.client("ann"), scene.client("operator")
    scene.put(server, "rpi4:1")
    assert scene.queue() == (1, 0)
    scene.ask(operator, "drain", server="board")
    assert scene.queue() == (0, 0)
    scene.request(client)
    scene.wait(SETTLE_S)
    assert scene.granted(client) == []
    scene.ask(operator, "enable", 3, server="board")
    assert scene.granted(client) == ["rpi4:1"]
    assert scene.replayed() == scene.state


def test_a_request_for_several_devices_claims_nothing_that_is_reserved(before):
    before.server(slots=2)
    ann = before.client("ann")
    before.request(ann)
    ticket = before.request(before.client("bob"), count=2)["ticket"]
    scene = again(before)
    server, bob, gone = scene.server(slots=2), scene.client("bob"), scene.client("new")
    for number in (1, 2):
        scene.put(server, f"rpi4:{number}")
    scene.request(bob, ticket=ticket, count=2)
    scene.request(gone)
    assert scene.granted(bob) == scene.granted(gone) == []
    scene.wait(SETTLE_S)
    assert sorted(scene.granted(bob)) == ["rpi4:1", "rpi4:2"]


# TVM's requests.


def test_a_request_of_tvms_that_is_granted_soon_leaves_no_trace(before):
    before.put(before.server(), "rpi4:1")
    tvm_client(before)
    tvm_client(before)
    before.wait(RECORD_S - 0.1)
    before.put(before.server(name="other", port=1), "rpi4:2")
    before.wait(RECORD_S)
    assert before.recorded("waiting") == before.recorded("waited") == []


def test_many_requests_of_tvms_are_recorded_in_steps(before):
    for _ in range(TOLD_AT_ONCE + 1):
        tvm_client(before)
    before.now += RECORD_S
    before.apply(events.TimePassed(before.now))
    assert len(before.recorded("waiting")) == TOLD_AT_ONCE
    before.wait(0)
    assert len(before.recorded("waiting")) == TOLD_AT_ONCE + 1


@pytest.mark.parametrize("granted", [True, False])
def test_the_wait_of_a_request_of_tvms_is_in_the_history(before, granted):
    server, client = before.server(), tvm_client(before)
    before.wait(2)
    (waiting,) = before.recorded("waiting")
    assert (waiting["tvm"], waiting["address"], waiting["priority"]) == (True, "10.0.0.5", 1)
    if granted:
        before.put(server, "rpi4:1")
    else:
        before.leave(client)
    why = "granted" if granted else "left"
    assert before.recorded("waited") == [{"ticket": waiting["ticket"], "waited_s": 2.0, "why": why}]
    assert before.state.records.tickets == before.state.records.places == {}


def test_requests_of_tvms_get_their_places_again(before):
    before.server()
    for address in ("10.0.0.5", "10.0.0.6", "10.0.0.5"):
        tvm_client(before, address=address)
        before.wait(0.1)
    before.request(before.client("ann"))
    before.wait(RECORD_S)
    scene = again(again(before))  # a tracker that is killed twice forgets nothing
    server = scene.server()
    scene.put(server, "rpi4:1")
    new = scene.client("new")
    scene.request(new)
    order = [tvm_client(scene, address=address) for address in ("10.0.0.6", "10.0.0.5", "10.0.0.5")]
    assert [scene.granted(conn) for conn in order] == [[], [], []], "ann's ticket is absent"
    scene.wait(SETTLE_S)
    for number, conn in enumerate((order[1], order[0], new, order[2]), start=2):  # users take turns
        assert scene.granted(conn) == [f"rpi4:{number - 1}"]
        scene.put(server, f"rpi4:{number}")
    assert scene.state.records.places.of_senders == {}
    assert [waited["why"] for waited in scene.recorded("waited")] == ["granted"] * 4
    assert scene.replayed() == scene.state


@pytest.mark.parametrize(
    ("request_", "address"),
    [
        (REQUEST, "10.0.0.6"),
        ([4, "rpi4", "", 2], "10.0.0.5"),
        ([4, "gpu", "", 1], "10.0.0.5"),
        ([4, "rpi4", "x", 1], "10.0.0.5"),
    ],
    ids=["address", "priority", "key", "user"],
)
def test_a_place_is_for_a_request_like_the_one_before(before, request_, address):
    before.server()
    tvm_client(before)
    before.wait(RECORD_S)
    scene = again(before)
    tvm_client(scene, request_, address)
    assert len(scene.state.records.places) == 1
    tvm_client(scene)
    assert scene.state.records.places == {}


def test_a_request_behind_a_proxy_is_known_by_its_clients_address():
    def relayed(scene, address):
        conn = scene.connect("10.0.0.3")
        scene.say(conn, {"op": "via", "address": [address, 1], "proxy": [None, 9090]})
        scene.say(conn, REQUEST)

    before = Scene(proxy_from=("10.0.0.3",))
    before.server()
    relayed(before, "10.9.0.1")
    before.wait(RECORD_S)
    scene = again(before)
    relayed(scene, "10.9.0.2")
    assert len(scene.state.records.places) == 1
    tvm_client(scene, address="10.9.0.1")
    assert scene.state.records.places == {}


def test_places_of_tvms_requests_are_reserved_for_three_and_kept_for_ten_seconds(before):
    before.server()
    for address in ("10.0.0.5", "10.0.0.6"):
        tvm_client(before, address=address)
    before.wait(RECORD_S)
    scene = again(before)
    server, new = scene.server(), scene.client("new")
    scene.put(server, "rpi4:1")
    scene.request(new)
    scene.wait(SETTLE_S - 0.1)
    assert scene.granted(new) == []
    scene.wait(0.1)
    assert scene.granted(new) == ["rpi4:1"]
    late, second = scene.connect("10.0.0.5"), scene.client("second")
    scene.request(second)
    scene.wait(TVM_TICKET_S - SETTLE_S - 0.1)
    scene.say(late, REQUEST)
    scene.put(server, "rpi4:2")
    assert scene.granted(late) == ["rpi4:2"], "its place is before that of who came meanwhile"
    scene.wait(0.1)
    assert scene.recorded("waited")[-1]["why"] == "left"
    later = tvm_client(scene, address="10.0.0.6")
    scene.put(server, "rpi4:3")
    assert (scene.granted(second), scene.granted(later)) == (["rpi4:3"], [])


def test_a_client_of_ours_cannot_present_the_ticket_of_a_request_of_tvms(before):
    before.server()
    tvm_client(before, [4, "rpi4", "ann", 1])
    before.wait(RECORD_S)
    (waiting,) = before.recorded("waiting")
    ann = before.client("ann")
    before.request(ann, ticket=waiting["ticket"])
    assert len(before.state.records.waiting) == 2
    scene = again(before)
    before.leave(ann)
    assert scene.request(scene.client("ann"), ticket=waiting["ticket"])["position"] > 0
    assert waiting["ticket"] in scene.state.records.places
