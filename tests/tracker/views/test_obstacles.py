"""Why a request cannot be met, as one line, and who holds the devices that fit it."""

from __future__ import annotations

import pytest

from rpcsys.tracker.labels import wants_of
from rpcsys.tracker.settling import Settling
from rpcsys.tracker.transitions import FAILURES
from rpcsys.tracker.views import obstacles
from rpcsys.tracker.views.obstacles import NAMED, NONE, Obstacle, Obstacles
from rpcsys.wire.checks import MAX_TEXT, text
from tests.tracker.transcripts import Scene

DRAINED = "b0 is drained by bob: type rpcsys enable b0"


def look(scene):
    return Obstacles(scene.state.records, scene.now)


def obstacle(scene, key="rpi4", count=1, **labels):
    return str(look(scene).of(wants_of(key, labels), count))


def drain(scene, name):
    scene.ask(scene.client("bob"), "drain", server=name)


def set_aside(scene, server):
    """Let the sessions of a server fail until it is set aside."""
    for number in range(FAILURES):
        scene.put(server, f"rpi4:{number}")
        (lease,) = scene.request(scene.client())["leases"]
        about = {"lease": lease["lease"], "epoch": lease["epoch"]}
        scene.ask(server, "lease_ended", **about, outcome="crashed", fault="no process")


def test_a_free_or_busy_device_is_no_obstacle(scene):
    server = scene.server()
    assert look(scene).of(wants_of("rpi4", {})) is NONE
    scene.put(server, "rpi4:1")
    scene.request(scene.client())
    assert obstacle(scene) == ""


@pytest.mark.parametrize(
    ("key", "labels", "text"),
    [
        ("gpu", {}, "no server offers 'gpu' now"),
        ("gpu", {"rev": "1"}, "no server offers 'gpu' now"),
        ("rpi4", {"rev": "9"}, "no server is 'rpi4' with rev=9 now"),
        ("rpi4", {"rev": ">=2"}, "no server is 'rpi4' with rev>=2 now"),
        ("", {"rev": "9"}, "no server is any device with rev=9 now"),
        ("rpi4", {"name": "b9"}, "no server is 'rpi4' with name=b9 now"),
        ("rpi4", {"rev": "1"}, ""),
    ],
)
def test_what_no_server_has(scene, key, labels, text):
    scene.server(labels={"rev": "1"})
    assert obstacle(scene, key, **labels) == text


def test_a_server_that_is_gone_has_its_time(scene):
    scene.server(name="other")
    board, gpu = scene.server(name="board", port=7, labels={"name": "board"}), scene.server("gpu", "gpu", 8)
    for server in (board, gpu):
        scene.leave(server)
    scene.wait(180)
    assert obstacle(scene, name="board") == "no server is 'rpi4' with name=board now: the last one left 3 min ago"
    assert (
        obstacle(scene, "", server="board")
        == "no server is any device with server=board now: the last one left 3 min ago"
    )
    assert obstacle(scene, "gpu") == "no server offers 'gpu' now: the last one left 3 min ago"


def test_servers_that_are_not_offered_have_the_reason_and_what_to_type(scene):
    scene.server(name="a b")
    drain(scene, "a b")
    assert obstacle(scene) == "a b is drained by bob: type rpcsys enable 'a b'"
    sick = scene.server(name="sick", port=7)
    scene.ask(sick, "health", problem="too hot")
    assert obstacle(scene) == "a b is drained by bob: type rpcsys enable 'a b'; sick is unhealthy: too hot"
    scene.ask(sick, "health", problem="")
    assert obstacle(scene) == ""


def test_a_server_that_is_set_aside_has_the_time_of_its_trial(scene):
    set_aside(scene, scene.server(name="board"))
    scene.wait(10)
    assert obstacle(scene) == "board is set aside: no process (again in 20 s)"


def test_a_request_for_labels_names_them_beside_its_servers(scene):
    scene.server(name="one", labels={"rev": "1"})
    scene.server(name="two", port=7, labels={"rev": "2"})
    drain(scene, "one")
    found = look(scene).of(wants_of("rpi4", {"rev": "1"}))
    assert found == ("no server in use is 'rpi4' with rev=1", "one is drained by bob: type rpcsys enable one")
    assert str(found) == "no server in use is 'rpi4' with rev=1: one is drained by bob: type rpcsys enable one"
    assert obstacle(scene) == obstacle(scene, rev="2") == ""


def test_servers_are_named_together_and_not_without_end(scene):
    names = [f"b{number}" for number in range(NAMED + 2)]
    for port, name in enumerate(names, start=7):
        scene.server(name=name, port=port)
        drain(scene, name)
    records = scene.state.records
    everything = records.peers.values()
    together = "b0, b1, b2 and 2 more are drained by bob: type rpcsys enable b0"
    assert obstacles.out_of_use(records, scene.now, everything) == [together]
    for port in range(20, 20 + NAMED + 1):
        scene.ask(scene.server(name=f"s{port}", port=port), "health", problem=f"disk {port}")
    *_, last, more = obstacles.out_of_use(records, scene.now, everything)
    assert (last, more) == ("s21 is unhealthy: disk 21", "2 more are out of use")


@pytest.mark.parametrize(
    ("count", "drained", "said"),
    [
        (3, 0, "3 devices are wanted together ('rpi4'), and there are 2: lower the count to 2 (--count 2)"),
        (3, 1, "3 devices are wanted together ('rpi4'), and there are 2: lower the count to 2 (--count 2)"),
        (2, 1, f"2 devices are wanted together ('rpi4'), and only 1 of 2 are offered: {DRAINED}"),
        (2, 0, ""),
    ],
)
def test_several_devices_together(scene, count, drained, said):
    for number in range(2):
        scene.server(name=f"b{number}", port=7 + number)
    for number in range(drained):
        drain(scene, f"b{number}")
    assert obstacle(scene, count=count) == said


def test_one_device_for_a_request_of_several(scene):
    scene.server(name="one", labels={"rev": "1"})
    said = "2 devices are wanted together ('rpi4' with rev=1), and there is 1: lower the count to 1 (--count 1)"
    assert obstacle(scene, count=2, rev="1") == said


def test_a_line_fits_an_event():
    line = str(Obstacle("x" * 300, "y\n"))
    assert text(line, "note") == line
    assert len(line) == MAX_TEXT
    assert str(Obstacle("", "a\nb")) == "a\\nb"


def test_a_tracker_that_has_just_started_again_finds_no_obstacle():
    scene = Scene()
    scene.state.records.settling = Settling()
    assert obstacle(scene) == ""


def test_a_large_lab_takes_no_longer(scene, monkeypatch):
    """With no room left, nothing is found, rather than something wrong."""
    for number in range(4):
        scene.server(name=f"b{number}", port=7 + number, labels={"rev": "1"})
        drain(scene, f"b{number}")
    monkeypatch.setattr(obstacles, "ROOM", 3)
    assert obstacle(scene) == obstacle(scene, rev="1") == obstacle(scene, rev=">1") == ""


def test_holders_are_those_of_devices_that_fit(scene):
    one = scene.server(name="one", slots=2, labels={"rev": "1"})
    two = scene.server(name="two", port=7, labels={"rev": "2"})
    for number, (server, user) in enumerate([(two, "eve"), (one, "ann"), (one, "bob")]):
        scene.put(server, f"rpi4:{number}")
        scene.request(scene.client(user))
        scene.wait(1)

    def holders(key="rpi4", most=8, **labels):
        return [holder["user"] for holder in look(scene).holders(wants_of(key, labels), most)]

    assert holders() == ["eve", "ann", "bob"]
    assert holders(rev="1") == holders(rev="<2") == holders("", server="one") == ["ann", "bob"]
    assert holders("", rev=">0") == ["eve", "ann", "bob"]
    assert holders(rev="2") == ["eve"]
    assert holders(rev="3") == []
    assert holders(most=1) == ["eve"]
