"""The order of service, as transcripts: aging, device time, several at once, labels."""

import pytest

from rpcsys.tracker.scheduler import GATHER_S
from tests.tracker.closed_lab import ClosedLab
from tests.tracker.transcripts import Scene, order


def hold(scene, server, user, seconds, number):
    """Give ``user`` a device for ``seconds``."""
    client = scene.client(user)
    scene.put(server, f"rpi4:hold{number}")
    lease = scene.request(client)["leases"][0]
    scene.wait(seconds)
    scene.ask(server, "lease_ended", lease=lease["lease"], epoch=lease["epoch"], outcome="closed")
    scene.leave(client)
    scene.hear(server)


# --- priority, and time that makes up for it -----------------------------------------------------


def test_each_ten_minutes_of_waiting_are_one_step(scene):
    server, clients = scene.server(), []
    for priority in (1, 2, 3, 4, 5):
        clients.append(scene.client(f"user{priority}"))
        scene.request(clients[-1], priority=priority)
    scene.wait(1799)
    newer = [scene.client(f"new{priority}") for priority in (3, 4)]
    for client, priority in zip(newer, (3, 4), strict=True):
        scene.request(client, priority=priority)
    # two steps so far: 3, 4, 5, 6, 7, and of equals who came first
    assert order(scene, server, [*clients, *newer]) == [4, 3, 2, 1, 6, 0, 5]


def test_the_third_step_is_the_last(scene):
    server, old, new = scene.server(), scene.client("old"), scene.client("new")
    scene.request(old, priority=1)
    scene.wait(6 * 3600)
    scene.request(new, priority=5)
    assert order(scene, server, [old, new]) == [1, 0]


def test_tvm_requests_rise_too(scene):
    server, old, new = scene.tvm_server(), scene.connect("10.0.0.1"), scene.connect("10.0.0.2")
    scene.say(old, [4, "rpi4", "", 1])
    scene.wait(1800)
    scene.say(new, [4, "rpi4", "", 3])
    assert order(scene, server, [old, new]) == [0, 1]


# --- device time -------------------------------------------------------------------------------------


def test_the_user_with_less_device_time_is_first(scene):
    server = scene.server()
    hold(scene, server, "ann", 300, 1)
    hold(scene, server, "bob", 100, 2)
    clients = [scene.client(user) for user in ("ann", "bob", "eve")]
    for client in clients:
        scene.request(client)
    assert order(scene, server, clients) == [2, 1, 0]


def test_old_device_time_counts_less(scene):
    server = scene.server()
    hold(scene, server, "ann", 1000, 1)
    scene.wait(3600)  # half of it has decayed
    hold(scene, server, "bob", 700, 2)
    clients = [scene.client(user) for user in ("bob", "ann")]
    for client in clients:
        scene.request(client)
    assert order(scene, server, clients) == [1, 0]
    assert scene.state.records.shares.spent(scene.now, "bob") > 650


def test_running_leases_count(scene):
    servers = [scene.server(name=f"s{n}", port=n) for n in (1, 2)]
    holder, other = scene.client("ann"), scene.client("bob")
    hold(scene, servers[0], "bob", 100, 0)
    scene.put(servers[1], "rpi4:long")
    assert scene.request(holder)["ok"]
    again = scene.client("ann")
    scene.request(other)
    scene.request(again)
    scene.wait(60)  # ann has had less so far
    assert order(scene, servers[0], [other, again]) == [1, 0]
    scene.request(other, 2)
    scene.request(again, 2)
    scene.wait(100)
    assert order(scene, servers[0], [other, again]) == [0, 1]


def test_users_take_turns_and_each_users_requests_stay_in_order(scene):
    server, ann, bob = scene.server(), scene.client("ann"), scene.client("bob")
    for number in range(3):
        scene.request(ann, number)
    scene.request(bob, 9)
    heard = []
    for number in range(4):
        scene.put(server, f"rpi4:{number}")
        for client in (ann, bob):
            heard += [message["id"] for message in scene.hear(client) if "leases" in message]
    assert heard == [0, 9, 1, 2]


def test_the_address_of_a_tvm_client_stands_for_its_user(scene):
    server = scene.server()
    greedy, other = [scene.connect("10.0.0.1") for _ in range(2)], scene.connect("10.0.0.2")
    for client in greedy:
        scene.say(client, [4, "rpi4", "", 1])
    scene.say(other, [4, "rpi4", "", 1])
    assert order(scene, server, [*greedy, other]) == [0, 2, 1]


def test_a_clock_of_months_keeps_the_order(scene):
    server = scene.server()
    for month in range(4):
        scene.wait(30 * 86400.0)
        hold(scene, server, f"user{month}", 100, month)
    hold(scene, server, "ann", 50, "last")
    assert 40 < scene.state.records.shares.spent(scene.now, "ann") <= 50
    assert (
        "user0" not in scene.state.records.shares.users or scene.state.records.shares.spent(scene.now, "user0") < 1e-6
    )


# --- several at once -----------------------------------------------------------------------------------


def board(scene, number):
    return scene.server(name=f"s{number}", port=number, labels={"rev": str(number)})


def test_several_devices_are_granted_together(scene):
    servers = [board(scene, number) for number in range(3)]
    client = scene.client()
    for number, server in enumerate(servers):
        scene.put(server, f"rpi4:{number}")
    answer = scene.request(client, count=3)
    assert [lease["matchkey"] for lease in answer["leases"]] == ["rpi4:0", "rpi4:1", "rpi4:2"]
    assert len(scene.recorded("granted")) == 3


def test_the_first_request_gathers_several_devices(scene):
    servers = [board(scene, number) for number in range(2)]
    first, pair, last = scene.client("ann"), scene.client("bob"), scene.client("eve")
    scene.request(first)
    scene.request(pair, count=2)
    scene.request(last)
    scene.put(servers[0], "rpi4:1")
    assert scene.granted(first) == ["rpi4:1"]
    scene.put(servers[0], "rpi4:2")
    assert (scene.granted(pair), scene.granted(last)) == ([], [])
    assert scene.queue() == (0, 2)
    scene.put(servers[1], "rpi4:3")
    assert scene.granted(pair) == ["rpi4:2", "rpi4:3"]
    assert scene.granted(last) == []
    scene.put(servers[0], "rpi4:4")
    assert scene.granted(last) == ["rpi4:4"]


def test_a_higher_priority_takes_gathered_devices(scene):
    servers = [board(scene, number) for number in range(2)]
    pair, urgent = scene.client("bob"), scene.client("eve")
    scene.request(pair, count=2)
    scene.put(servers[0], "rpi4:1")
    assert scene.request(urgent, priority=5)["leases"][0]["matchkey"] == "rpi4:1"
    scene.put(servers[0], "rpi4:2")
    scene.put(servers[1], "rpi4:3")
    assert scene.granted(pair) == ["rpi4:2", "rpi4:3"]


@pytest.mark.parametrize("leaves", ["cancel", "leave", "timeout"])
def test_gathered_devices_are_offered_again_when_the_request_ends(scene, leaves):
    servers = [board(scene, number) for number in range(2)]
    pair, other = scene.client("bob"), scene.client("eve")
    scene.request(pair, count=2, wait_timeout=30)
    scene.put(servers[0], "rpi4:1")
    scene.request(other)
    if leaves == "cancel":
        scene.ask(pair, "cancel", 2, request=1)
    elif leaves == "leave":
        scene.leave(pair)
    else:
        scene.wait(31)
    assert scene.granted(other) == ["rpi4:1"]


def test_a_request_for_too_many_devices_is_passed_over(scene):
    servers = [board(scene, number) for number in range(2)]
    many, other = scene.client("bob"), scene.client("eve")
    note = "3 devices are wanted together ('rpi4'), and there are 2: lower the count to 2 (--count 2)"
    assert scene.request(many, count=3)["note"] == note
    scene.request(other)
    scene.put(servers[0], "rpi4:1")
    assert scene.granted(other) == ["rpi4:1"]
    third = board(scene, 2)
    for number, server in enumerate([*servers, third]):
        scene.put(server, f"rpi4:again{number}")
    assert len(scene.granted(many)) == 3


def test_a_request_that_gathers_for_too_long_is_parked(scene):
    servers = [board(scene, number) for number in range(2)]
    pair, other = scene.client("bob"), scene.client("eve")
    scene.request(pair, count=2)
    scene.put(servers[0], "rpi4:1")
    scene.request(other)
    scene.wait(GATHER_S - 1)
    assert scene.granted(other) == []
    scene.wait(2)
    assert scene.granted(other) == ["rpi4:1"]
    scene.put(servers[0], "rpi4:2")
    assert scene.queue() == (1, 1)
    scene.wait(GATHER_S)
    scene.put(servers[1], "rpi4:3")
    assert scene.granted(pair) == ["rpi4:2", "rpi4:3"]


def test_two_gatherers_do_not_block_each_other(scene):
    servers = [board(scene, number) for number in range(2)]
    pairs = [scene.client("bob"), scene.client("eve")]
    for pair in pairs:
        scene.request(pair, count=2)
    for turn in range(2):
        for number, server in enumerate(servers):
            scene.put(server, f"rpi4:{turn}{number}")
    assert [scene.granted(pair) for pair in pairs] == [["rpi4:00", "rpi4:01"], ["rpi4:10", "rpi4:11"]]


# --- labels ----------------------------------------------------------------------------------------------


def test_requests_do_not_wait_behind_others_labels(scene):
    one, two = board(scene, 1), board(scene, 2)
    picky, easy = scene.client("bob"), scene.client("eve")
    scene.request(picky, labels={"rev": "2"}, priority=9)
    scene.request(easy)
    scene.put(one, "rpi4:1")
    assert (scene.granted(picky), scene.granted(easy)) == ([], ["rpi4:1"])
    scene.put(two, "rpi4:2")
    assert scene.granted(picky) == ["rpi4:2"]


def test_a_request_may_name_labels_without_a_key(scene):
    scene.put(scene.server("gpu", "g", 1, labels={"arch": "x86_64"}), "gpu:1")
    scene.put(scene.server("rpi4", "r", 2, labels={"arch": "aarch64", "cores": "4"}, loads=[".onnx"]), "rpi4:1")
    client = scene.client()
    answer = scene.request(client, key=None, labels={"arch": "aarch64", "cores": ">=4", "loads": ".onnx"})
    assert answer["leases"][0]["key"] == "rpi4"
    assert scene.request(client, 2, key=None, labels={"arch": "aarch64"})["event"] == "queued"
    assert scene.request(client, 3, key=None, labels={"server": "g"})["leases"][0]["key"] == "gpu"


@pytest.mark.parametrize(
    ("fields", "error", "named"),
    [
        ({"key": None}, "BadRequest", "key"),
        ({"labels": {"cores": ">=many"}}, "BadRequest", "no number"),
        ({"key": None, "labels": {"cores": ">=2"}}, "UnknownKey", "no server has the label cores"),
        ({"key": None, "labels": {"rev": ">=3,<7"}}, "UnknownKey", "with rev>=3,<7; there are rev=1, rev=2"),
        (
            {"labels": {"python": ">=3.12", "onxruntime": "1"}},
            "UnknownKey",
            "no server has the label onxruntime, python",
        ),
        ({"labels": {"rev": "7"}}, "UnknownKey", "rev=1"),
        ({"key": None, "labels": {"board": "x"}}, "UnknownKey", "board=x"),
        ({"labels": {"rev": "1", "server": "s2"}}, "UnknownKey", "rev=1"),
        ({"key": "rpi5"}, "UnknownKey", "rpi4"),
    ],
)
def test_unknown_or_invalid_keys_and_labels_are_refused_at_once(scene, fields, error, named):
    board(scene, 1)
    board(scene, 2)
    answer = scene.request(scene.client(), **fields)
    assert answer["error"] == error
    assert named in answer["message"]


def test_versions_are_compared_as_versions(scene):
    """1.9 is older than 1.22. No key is needed, and a request waits for the board that fits."""
    for number, version in enumerate(("1.9.0", "1.22.0", "1.30.0rc1"), start=1):
        labels = {"onnxruntime": version, "kernel": f"6.{number}.0-13-amd64"}
        scene.put(scene.server(name=f"s{number}", port=number, labels=labels), f"rpi4:{number}")
    scene.put(scene.tvm_server("gpu"), "gpu:1")
    client = scene.client()
    wanted = {"onnxruntime": ">=1.22,<1.30.dev0"}
    assert scene.request(client, 1, key=None, labels=wanted)["leases"][0]["server"] == "s2"
    assert scene.request(client, 2, key=None, labels=wanted)["event"] == "queued"
    assert scene.request(client, 3, labels={"onnxruntime": "!=1.9"})["leases"][0]["server"] == "s3"
    assert scene.request(client, 4, labels={"kernel": "6.1.0-13"})["leases"][0]["server"] == "s1"
    scene.put(scene.server(name="s4", port=4, labels={"onnxruntime": "1.22.0.post1"}), "rpi4:4")
    assert scene.granted(client) == ["rpi4:4"]


def test_wait_for_key_waits_for_labels_too(scene):
    client = scene.client()
    scene.request(client, key=None, labels={"rev": "7"}, wait_for_key=True)
    scene.put(board(scene, 7), "rpi4:7")
    assert scene.granted(client) == ["rpi4:7"]


def test_labels_of_a_restarting_board_count(scene):
    board(scene, 1)
    gone = board(scene, 2)
    scene.leave(gone)
    client = scene.client()
    assert scene.request(client, labels={"rev": "2"})["event"] == "queued"
    scene.wait(10)
    assert scene.hear(client)[-1]["error"] == "UnknownKey"


# --- position events -------------------------------------------------------------------------------------------


def test_position_events_have_holders_and_an_estimate(scene):
    limited = Scene(limits={"rpi4": 600})
    limited.wait(60)
    server = limited.server()
    for number, seconds in enumerate((100, 200, 300, 400)):
        client = limited.client(f"user{number}")
        limited.put(server, f"rpi4:{number}")
        lease = limited.request(client)["leases"][0]
        limited.ask(server, "lease_started", lease=lease["lease"], epoch=lease["epoch"])
        limited.wait(seconds)
        if number < 3:
            limited.ask(server, "lease_ended", lease=lease["lease"], epoch=lease["epoch"], outcome="closed")
    told = limited.request(limited.client("eve"))
    (holder,) = told["holders"]
    assert (holder["user"], holder["server"], holder["since_s"], holder["until_s"]) == ("user3", "board", 400, 200)
    low, high = told["eta_s"]
    assert low == 0  # it has lasted longer than a quarter of the others
    assert high == 200  # its limit


def test_why_explains_a_wait(scene):
    server, tvm = scene.server(), scene.tvm_server()
    client, other = scene.client("ann"), scene.client("bob")
    scene.put(server, "rpi4:1")
    scene.request(other)
    scene.request(client, 1, count=5)
    scene.request(client, 2, priority=3)
    (answer,) = scene.ask(client, "why", 3, request=2)
    why = answer["why"]
    assert (why["position"], why["devices"], why["waiting"]) == (1, 1, 2)
    assert [row["user"] for row in why["holders"]] == ["bob"]
    assert [row["priority"] for row in why["queue"]] == [3]
    (answer,) = scene.ask(client, "why", 4, request=1)
    assert any("(--count 1)" in reason for reason in answer["why"]["reasons"])
    assert scene.ask(client, "why", 5, key="rpi5")[0]["error"] == "UnknownKey"
    assert scene.ask(client, "why", 6)[0]["error"] == "BadRequest"
    scene.leave(tvm)
    scene.ask(client, "drain", 7, server="board")
    (answer,) = scene.ask(client, "why", 8, key="rpi4")
    assert "board is drained by ann: type rpcsys enable board" in answer["why"]["reasons"]


# In a lab.


def test_a_member_is_told_of_a_tvm_server_that_it_speaks_in_the_clear() -> None:
    """And nobody else: what TVM's client gets in an allowed network is what TVM's tracker sends."""
    lab = ClosedLab()
    request = [4, "rpi4", "", 1]
    assert lab.say(lab.come("ann"), request) == [[0, ["10.0.0.1", 9090, "rpi4:1"]]]
    server = lab.connect()
    lab.say(server, [5, {"key": "server:rpi4", "addr": [None, 9091]}])
    lab.say(server, [3, "rpi4", [9091, "rpi4:2"], None])
    lab.say(server, [3, "rpi4", [9091, "rpi4:3"], None])
    assert lab.say(lab.come("bo"), request) == [[0, ["10.0.0.3", 9091, "rpi4:2"], {"plain": True}]]
    assert lab.say(lab.connect(), request) == [[0, ["10.0.0.3", 9091, "rpi4:3"]]]
