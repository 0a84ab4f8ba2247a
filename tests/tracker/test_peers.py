"""The tracker's decisions, as transcripts: what ends with a connection."""

import pytest

from rpcsys.tracker import policy
from rpcsys.tracker.events import LabChanged
from rpcsys.tracker.lab_view import LabView
from rpcsys.tracker.records import GRACE_S
from tests.tracker.closed_lab import ClosedLab
from tests.tracker.transcripts import Scene


def granted(heard):
    """The match key of a TVM client's reply."""
    ((code, (_, _, match_key)),) = heard
    assert code == 0
    return match_key


def test_a_clients_requests_end_with_its_connection(scene):
    gone, stays, server = scene.connect(), scene.connect(), scene.tvm_server()
    scene.say(gone, [4, "rpi4", "", 9])
    scene.say(gone, [4, "rpi4", "", 1])
    scene.say(stays, [4, "rpi4", "", 1])
    scene.leave(gone)
    assert scene.queue() == (0, 1)
    scene.put(server, "rpi4:1")
    assert granted(scene.hear(stays)) == "rpi4:1"
    assert scene.hear(gone) == []


def test_a_servers_offers_end_with_its_connection(scene):
    server, client = scene.tvm_server(), scene.connect()
    scene.put(server, "rpi4:1")
    scene.leave(server)
    assert scene.say(client, [4, "rpi4", "", 1]) == []
    assert scene.summary()["server_info"] == []


def test_a_key_is_dropped_when_all_have_left(scene):
    server, client = scene.tvm_server(), scene.connect()
    scene.put(server, "rpi4:1")
    scene.say(client, [4, "rpi4", "", 1])
    scene.say(client, [4, "other", "", 1])
    scene.leave(client)
    scene.leave(server)
    scene.wait(GRACE_S)
    assert scene.state.records.queues == {}
    assert scene.state.records.leases == {}
    assert scene.state.records.waiting == {}
    assert scene.state.next_deadline is None


def test_a_message_of_an_ended_connection_changes_nothing(scene):
    server = scene.tvm_server()
    scene.leave(server)
    assert scene.put(server, "rpi4:1") == []
    scene.leave(server)


def test_stop_needs_the_stop_key():
    closed, open_ = Scene(), Scene(stop_key="open sesame")
    assert closed.say(closed.connect(), [2, ""]) == [-1]
    assert open_.say(open_.connect(), [2, "x"]) == [-1]
    assert not open_.stopped
    assert open_.say(open_.connect(), [2, "open sesame"]) == [0]
    assert open_.stopped


def test_a_lab_that_is_closed_ends_what_those_in_the_clear_offer_and_wait_for():
    lab = ClosedLab()
    access = lab.state.records.lab.access
    lab.apply(LabChanged(lab.now, LabView(access, "lab-host:9190", (), open=True)))
    server, holder, old, silent = (lab.connect() for _ in range(4))
    lab.say(server, {"op": "register", "id": 1, "key": "free", "name": "old", "port": 9091})
    lab.say(server, [3, "free", [9091, "free:1"], None])
    assert lab.say(holder, {"op": "request", "id": 1, "key": "rpi4"})[0]["leases"]
    assert lab.say(holder, {"op": "request", "id": 2, "key": "rpi4"})[0]["event"] == "queued"
    assert lab.say(old, [4, "rpi4", "", 1]) == []
    ann = lab.come("ann")
    assert lab.say(ann, {"op": "request", "id": 1, "key": "rpi4"})[0]["event"] == "queued"
    lab.apply(LabChanged(lab.now, LabView(access, "lab-host:9190", ())))
    why = "lab basement wants a credential for this: ask its keeper for an invitation, then type: rpcsys login"
    assert lab.heard[holder] == [{"id": 2, "ok": False, "error": "Unauthorized", "message": why}]
    assert lab.heard[old] == [[-1, why]]
    assert lab.closed == [server]
    records = lab.state.records
    assert [lease.key for lease in records.leases.values()] == ["rpi4"]
    assert [request.user for request in records.waiting.values()] == ["ann"]
    assert silent in records.peers, "it may be about to say who it is"
    assert "no server offers 'free' now" in str(lab.say(lab.come("bo"), {"op": "request", "id": 1, "key": "free"}))


def test_those_of_allowed_networks_stay_where_a_lab_is_closed():
    lab = ClosedLab()
    rules = policy.parse('[tvm]\nfrom = ["10.0.0.0/8"]\n', "basement")
    lab.apply(LabChanged(lab.now, LabView(rules, "lab-host:9190", (), open=True)))
    server, waits = lab.connect(), lab.connect()
    lab.say(server, [3, "free", [9091, "free:1"], None])
    lab.say(waits, [4, "rpi4", "", 1])
    lab.say(waits, [4, "rpi4", "", 1])
    lab.apply(LabChanged(lab.now, LabView(rules, "lab-host:9190", ())))
    assert lab.closed == []
    assert len(lab.state.records.waiting) == 1


@pytest.mark.parametrize(("term", "role"), [(0, {}), (7, {"role": "leader", "term": 7})])
def test_a_leader_says_so_to_those_that_know_of_replicas(term, role):
    scene = Scene(term=term)
    hello = {"op": "hello", "version": "0", "capabilities": ["replicas/1"]}
    (knows,) = scene.say(scene.connect(), [1, hello])
    (old,) = scene.say(scene.connect(), [1, {**hello, "capabilities": ["replicas/2"]}])
    assert knows == {**old, **role}
    assert not {"role", "term"} & old.keys()
