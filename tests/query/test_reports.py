"""Running leases, and why requests wait, as text and as JSON."""

import json
import time

import pytest

from rpcsys.errors import NotSupported
from rpcsys.query.reports import print_boards, print_leases, print_replicas, print_why
from tests.tracker.test_canaries import SLOW_S, Lab
from tests.tracker.transcripts import Scene


class FakeTracker:
    """A tracker's state, without a connection."""

    def __init__(self, scene):
        self.scene = scene
        self.viewer = scene.client("viewer")

    def summary(self):
        return self.scene.summary()

    def why(self, key):
        return self.scene.ask(self.viewer, "why", key=key)[0]["why"]


@pytest.fixture
def tracker():
    scene = Scene(limits={"rpi4": 600})
    scene.wait(60)
    server = scene.server(slots=2)
    scene.tvm_server("gpu")
    scene.put(server, "rpi4:1")
    scene.put(server, "rpi4:2")
    scene.request(scene.client("ann"))
    scene.wait(90)
    scene.say(scene.connect("10.0.0.77"), [4, "rpi4", "", 1])
    scene.request(scene.client("bob"), priority=2)
    scene.wait(700)
    scene.request(scene.client("eve"), count=2, labels={"server": "board"})
    scene.put(scene.server("rpi4", "out", 7), "rpi4:3")
    return FakeTracker(scene)


def test_leases_as_a_table(tracker, capsys):
    print_leases(tracker, False, None)
    head, first, second, third, note = capsys.readouterr().out.splitlines()
    assert head.split() == ["lease", "key", "server", "holder", "since", "at", "most", "state"]
    assert first.split()[2:5] == ["board", "ann@10.0.0.5", "13m10s"]
    assert second.split()[2:5] == ["board", "10.0.0.77", "11m40s"]
    assert third.split()[2:4] == ["out", "bob@10.0.0.5"]
    assert "1 of the servers" in note


def test_leases_as_json_and_of_a_key(tracker, capsys):
    print_leases(tracker, True, "rpi4")
    assert [json.loads(line)["holder"] for line in capsys.readouterr().out.splitlines()] == ["ann", "10.0.0.77", "bob"]
    print_leases(tracker, True, "gpu")
    assert capsys.readouterr().out == ""


def test_why_explains_a_wait(tracker, capsys):
    print_why(tracker, False, "rpi4")
    text = capsys.readouterr().out
    assert text.startswith("rpi4: 0 of 3 devices free, 1 request waiting\n  3 of 3 devices are taken\n")
    assert "2 at once server=board" in text
    print_why(tracker, True, "rpi4")
    assert json.loads(capsys.readouterr().out)["devices"] == 3


def test_why_names_servers_that_are_out_of_use(tracker, capsys):
    for number in range(4):
        tracker.scene.server("gpu", f"g{number}", 20 + number)
        tracker.scene.ask(tracker.viewer, "drain", server=f"g{number}")
    tracker.scene.server("gpu", "fine", 30)
    print_why(tracker, False, "gpu")
    lines = capsys.readouterr().out.splitlines()
    assert lines[2:] == ["  g0, g1, g2 and 1 more are drained by viewer: type rpcsys enable g0"]


def test_tvms_tracker_has_no_leases():
    class Tvm:
        def summary(self):
            return {"queue_info": {}, "server_info": []}

    with pytest.raises(NotSupported):
        print_leases(Tvm(), False, None)


def test_boards_as_a_table(tracker, capsys):
    tracker.scene.leave(tracker.scene.server("rpi4", "lost", 9))
    tracker.scene.wait(120)
    print_boards(tracker.summary())
    blank, title, head, *lines = capsys.readouterr().out.splitlines()
    assert (blank, title, head.split()) == ("", "Boards", ["name", "key", "state", "holder", "since"])
    found = {line.split()[0]: line for line in lines}
    assert "busy" in found["board"]
    assert "ann@10.0.0.5, 10.0.0.77" in found["board"]
    assert found["lost"].split() == ["lost", "rpi4", "gone", "-", "2m00s"]


def test_a_gone_board_keeps_its_holder_while_the_lease_runs(capsys):
    scene = Scene()
    lost = scene.server("rpi4", "lost", 9)
    scene.put(lost, "rpi4:1", 9)
    scene.request(scene.client("ann"))
    scene.leave(lost)
    scene.wait(3)
    assert boards(scene, capsys) == {"lost": ["rpi4", "gone", "ann@10.0.0.5", "3.0s"]}


def test_since_when_and_by_whom_a_board_is_drained(capsys):
    scene = Scene()
    scene.server("rpi4", "idle", 9)
    held = scene.server("gpu", "held", 10)
    scene.put(held, "gpu:1", 10)
    scene.request(scene.client("ann"), key="gpu")
    scene.wait(60)
    for board in ("idle", "held"):
        scene.ask(scene.client("bob"), "drain", server=board)
    scene.ask(held, "health", problem="too hot")
    scene.wait(120)
    scene.ask(scene.client("eve"), "drain", server="idle")
    assert boards(scene, capsys) == {
        "idle": ["rpi4", "drained", "by", "bob", "-", "2m00s"],
        "held": ["gpu", "drained", "by", "bob", "ann@10.0.0.5", "2m00s"],
    }


def test_a_free_board_has_its_time_too(capsys):
    scene = Scene()
    server = scene.server("rpi4", "idle", 9)
    scene.put(server, "rpi4:1", 9)
    scene.wait(5)
    assert boards(scene, capsys) == {"idle": ["rpi4", "free", "-", "5.0s"]}


def boards(scene, capsys):
    """The words of each row of the table, by name."""
    print_boards(scene.summary())
    lines = capsys.readouterr().out.partition("Boards\n")[2].splitlines()[1:]
    return {line.split()[0]: line.split()[1:] for line in lines}


def test_versions_as_a_table_with_the_columns_that_boards_have(capsys):
    scene = Scene()
    scene.server("rpi4", "one", labels={"tvm": "0.27.0.post1", "python": "3.11.2", "shelf": "3"})
    scene.server("rpi4", "two", 7, labels={"python": "3.8.10"})
    scene.tvm_server("gpu", 8)
    scene.leave(scene.server("rpi4", "lost", 9, labels={"driver": "535.129.03"}))
    print_boards(scene.summary())
    table = capsys.readouterr().out.partition("\nVersions\n")[2].splitlines()
    assert [line.split() for line in table] == [
        ["name", "python", "tvm"],
        ["one", "3.11.2", "0.27.0.post1"],
        ["two", "3.8.10", "-"],
    ]


def test_devices_of_the_boards_that_have_more_than_a_cpu(capsys):
    scene = Scene()
    scene.server("rpi4", "two", 7, devices=["cpu:0", "opencl:0", "npu:0"])
    scene.server("rpi4", "one", devices=["cpu:0"])
    print_boards(scene.summary())
    table = capsys.readouterr().out.partition("\nDevices\n")[2].splitlines()
    assert [line.split(maxsplit=1) for line in table] == [["name", "devices"], ["two", "cpu:0, opencl:0, npu:0"]]
    old = {
        **scene.summary(),
        "servers": [{key: row[key] for key in row if key != "devices"} for row in scene.summary()["servers"]],
    }
    print_boards(old)
    assert "Devices" not in capsys.readouterr().out


def test_tvms_servers_alone_have_no_table_of_boards(capsys):
    scene = Scene()
    scene.tvm_server()
    print_boards(scene.summary())
    assert capsys.readouterr().out == ""


class Several:
    """A tracker with replicas."""

    def __init__(self, **changed):
        row = {"http_port": 0, "version": "1.2", "through": 40}
        rows = [
            {"address": "lab-1:9190", "role": "follows", "behind": 3, "since": time.time() - 65, **row},
            {"address": "lab-2:9190", "role": "leads", "behind": 0, "since": time.time() - 7200, **row},
        ]
        self.found = {"leader": "lab-2:9190", "term": 41, "engine": "up", "replicas": rows, **changed}

    def replicas(self):
        return self.found


def test_replicas_as_a_table_the_leader_first(capsys):
    print_replicas(Several(), False)
    first, head, leader, other = capsys.readouterr().out.splitlines()
    assert first == "lab-2:9190 leads (term 41)"
    assert head.split() == ["address", "role", "version", "behind", "since"]
    assert leader.split()[:4] == ["lab-2:9190", "leads", "1.2", "0"]
    assert other.split() == ["lab-1:9190", "follows", "1.2", "3", "1m05s"]


def test_replicas_without_a_leader_and_without_an_engine(capsys):
    print_replicas(Several(leader=None, engine="no etcd answers"), False)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "nobody leads at the moment"
    assert lines[-1] == "the engine: no etcd answers"


def test_replicas_as_json_and_of_a_tracker_without(capsys):
    print_replicas(Several(), True)
    assert json.loads(capsys.readouterr().out)["term"] == 41
    print_replicas(Several(replicas=[]), False)
    assert "has no replicas" in capsys.readouterr().out


def test_slow_boards_and_why(capsys):
    scene = Scene()
    lab = Lab(scene)
    for number, name in enumerate(("one", "two")):
        lab.add(name, port=9000 + number)
        lab.run(name, times=100)
    print_boards(scene.summary())
    assert "Slow" not in capsys.readouterr().out
    lab.run("two", SLOW_S, times=30)
    print_boards(scene.summary())
    table = capsys.readouterr().out.partition("\nSlow\n")[2].splitlines()
    assert table[0].split() == ["name", "key", "why"]
    assert len(table) == 2
    assert table[1].split(maxsplit=2) == ["two", "rpi4", "its canary takes 3.0% longer than its own 10 ms"]
