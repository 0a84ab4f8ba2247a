"""The tracker's decisions, as transcripts: what ends with a connection."""

from rpcsys.tracker.records import GRACE_S
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
