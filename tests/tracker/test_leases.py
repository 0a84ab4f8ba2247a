"""The tracker's decisions, as transcripts: leases from grant to end."""

import pytest

from rpcsys.tracker import leases
from rpcsys.tracker.leases import AWAY_S, LONGEST_S
from rpcsys.tracker.records import EPOCHS_AHEAD
from rpcsys.wire import outcomes
from tests.tracker.transcripts import Scene


def lease_of(scene, server, client, number=1):
    scene.put(server, f"rpi4:{number}")
    scene.hear(server)
    lease = scene.ask(client, "request", key="rpi4")[-1]["leases"][0]
    scene.hear(server)
    return {"lease": lease["lease"], "epoch": lease["epoch"]}


def test_a_lease_from_grant_to_end(scene):
    server, client = scene.server(), scene.client()
    lease = lease_of(scene, server, client)
    (row,) = scene.summary()["leases"]
    assert (row["state"], row["holder"], row["address"]) == ("granted", "ann", "10.0.0.5")
    assert scene.ask(server, "lease_started", **lease, peer="10.0.0.5:1") == [{"id": 1, "ok": True}]
    scene.wait(10)
    (row,) = scene.summary()["leases"]
    assert (row["state"], row["since_s"]) == ("running", 10)
    assert scene.summary()["servers"][0]["running"] == 1
    assert scene.ask(server, "lease_ended", **lease, outcome="closed") == [{"id": 1, "ok": True}]
    assert scene.summary()["leases"] == []


def test_a_server_reports_why_a_process_ended(scene):
    server, client = scene.server(), scene.client()
    lease = lease_of(scene, server, client)
    scene.ask(server, "lease_started", **lease, peer="10.0.0.5:1")
    scene.ask(server, "lease_ended", **lease, outcome="crashed", why="its process was ended by SIGABRT")
    (over,) = scene.recorded("over")
    assert (over["reason"], over["fault"]) == ("its process was ended by SIGABRT", "")


def test_epochs_rise(scene):
    server, client = scene.server(), scene.client()
    leases = [lease_of(scene, server, client, number) for number in range(5)]
    epochs = [lease["epoch"] for lease in leases]
    assert epochs == sorted(set(epochs))
    assert len({lease["lease"] for lease in leases}) == 5


def test_a_late_message_about_an_old_lease_changes_nothing(scene):
    server, other, client = scene.server(), scene.server(name="other"), scene.client()
    lease = lease_of(scene, server, client)
    scene.ask(server, "lease_ended", lease=lease["lease"], epoch=lease["epoch"] - 1, outcome="closed")
    scene.ask(other, "lease_ended", **lease, outcome="closed")
    assert len(scene.summary()["leases"]) == 1
    assert scene.ask(server, "lease_ended", lease="never was", epoch=0, outcome="closed")[0]["ok"]


def test_the_lease_of_a_client_that_leaves_before_its_session_ends(scene):
    server, client = scene.server(), scene.client()
    lease = lease_of(scene, server, client)
    scene.leave(client)
    (end,) = scene.hear(server)
    assert end == {"op": "end", "id": 2, **lease, "reason": "unused", "why": leases._LEFT}
    scene.ask(server, "lease_ended", **lease, outcome="unused")
    assert scene.summary()["leases"] == []


def test_the_lease_of_a_tvm_client_that_leaves_before_its_session_ends(scene):
    """Its only connection to the tracker is closed when its session is open."""
    server, client = scene.server(), scene.connect()
    scene.put(server, "rpi4:1")
    ((code, _),) = scene.say(client, [4, "rpi4", "", 1])
    assert code == 0
    (taken,) = scene.hear(server)
    lease = {"lease": taken["lease"], "epoch": taken["epoch"]}
    scene.leave(client)
    (end,) = scene.hear(server)
    assert end == {"op": "end", "id": 2, **lease, "reason": "unused", "why": leases._LEFT}
    scene.ask(server, "lease_ended", **lease, outcome="unused")
    assert scene.summary()["leases"] == []
    assert scene.state.records.shares.users == {}


def test_a_tvm_client_that_leaves_after_its_session_is_open_keeps_its_lease(scene):
    server, client = scene.server(), scene.connect()
    scene.put(server, "rpi4:1")
    scene.say(client, [4, "rpi4", "", 1])
    (taken,) = scene.hear(server)
    scene.ask(server, "lease_started", lease=taken["lease"], epoch=taken["epoch"], peer="10.0.0.5:1")
    scene.hear(server)
    scene.leave(client)
    assert scene.hear(server) == []
    assert [row["state"] for row in scene.summary()["leases"]] == ["running"]


def test_a_session_opened_while_its_server_was_away_keeps_its_lease(scene):
    """The server had received the grant, and its connection broke before the client connected."""
    server, client = scene.server(identity="one"), scene.client()
    lease = lease_of(scene, server, client)
    scene.leave(server)
    scene.wait(1)
    server = scene.server(identity="one")
    scene.ask(server, "lease_started", **lease, peer="10.0.0.5:1")
    scene.wait(2 * AWAY_S)
    assert [row["state"] for row in scene.summary()["leases"]] == ["running"]
    scene.ask(server, "lease_ended", **lease, outcome="closed")
    assert scene.summary()["leases"] == []


def test_a_late_report_of_an_opened_session_counts(scene):
    server, client = scene.server(), scene.client()
    lease = lease_of(scene, server, client)
    scene.leave(client)
    scene.ask(server, "lease_started", **lease, peer="10.0.0.5:1")
    scene.ask(server, "lease_ended", **lease, outcome="lost")
    (over,) = scene.recorded("over")
    assert (over["outcome"], over["reason"]) == ("lost", "its client is gone")


def test_a_client_that_leaves_during_its_session_keeps_its_lease(scene):
    server, client = scene.server(), scene.client()
    lease = lease_of(scene, server, client)
    scene.ask(server, "lease_started", **lease)
    scene.leave(client)
    assert scene.hear(server) == []
    assert len(scene.summary()["leases"]) == 1


def test_a_released_lease_ends(scene):
    server, client, other = scene.server(), scene.client(), scene.client("bob")
    lease = lease_of(scene, server, client)
    assert scene.ask(other, "release", lease=lease["lease"])[0]["ok"]
    assert scene.hear(server) == []
    assert scene.ask(client, "release", lease=lease["lease"])[0]["ok"]
    (end,) = scene.hear(server)
    assert (end["op"], end["reason"]) == ("end", "released")


def test_leases_outlive_their_servers_connection_for_some_seconds(scene):
    server, client = scene.server(), scene.client()
    lease = lease_of(scene, server, client)
    scene.ask(server, "lease_started", **lease)
    scene.leave(server)
    (row,) = scene.summary()["leases"]
    assert (row["state"], row["holder"]) == ("server away", "ann")
    scene.wait(5)
    again = scene.server(running=[{**lease, "since_s": 5}])
    (row,) = scene.summary()["leases"]
    assert (row["state"], row["holder"], row["since_s"]) == ("running", "ann", 5)
    scene.leave(again)
    scene.wait(AWAY_S)
    assert scene.summary()["leases"] == []
    (over,) = scene.recorded("over")
    assert (over["outcome"], over["user"], over["held_s"]) == ("lost", "ann", 15)
    assert over["reason"] == "its server board has been gone for 10 s"


def test_the_end_of_a_lease_is_reported_after_the_server_is_back(scene):
    server, client = scene.server(), scene.client()
    lease = lease_of(scene, server, client)
    scene.ask(server, "lease_started", **lease)
    scene.leave(server)
    again = scene.server()
    assert len(scene.summary()["leases"]) == 1
    scene.ask(again, "lease_ended", **lease, outcome="closed")
    assert scene.summary()["leases"] == []
    assert scene.recorded("over")[0]["outcome"] == "closed"


def test_a_tvm_servers_lease_lasts_until_its_next_offer(scene):
    server, client = scene.tvm_server(), scene.connect()
    scene.put(server, "rpi4:1")
    scene.say(client, [4, "rpi4", "", 1])
    assert len(scene.summary()["leases"]) == 1
    scene.put(server, "rpi4:2")
    assert scene.summary()["leases"] == []


def tvm_lease(scene, server, client, number=1):
    scene.put(server, f"rpi4:{number}")
    scene.say(client, [4, "rpi4", "", 1])
    scene.hear(client)


def test_a_lease_whose_tvm_server_goes_on_polling_was_not_used(scene):
    """It polls every 2 s, and makes a new match key after 8 s; during a session it sends nothing."""
    server, client = scene.tvm_server(), scene.connect()
    tvm_lease(scene, server, client)
    for _ in range(4):
        scene.wait(2)
        scene.say(server, [7])
    scene.put(server, "rpi4:2")
    assert [over["outcome"] for over in scene.recorded("over")] == ["unused"]
    scene.say(client, [4, "rpi4", "", 1])
    scene.wait(1)
    scene.say(server, [7])
    scene.wait(60)  # a session
    scene.put(server, "rpi4:3")
    assert [over["outcome"] for over in scene.recorded("over")] == ["unused", "closed"]
    assert scene.recorded("over")[1]["held_s"] == 61


def test_a_tvm_servers_lease_ends_with_its_connection(scene):
    server, client = scene.tvm_server(), scene.connect()
    tvm_lease(scene, server, client)
    scene.leave(server)
    (over,) = scene.recorded("over")
    assert (over["outcome"], over["reason"]) == ("lost", "the server's connection ended")


def test_behind_tvms_proxy_leases_are_inferred_the_oldest_first(scene):
    proxy = scene.connect("10.0.0.9")
    scene.say(proxy, [5, {"key": "server:proxy[rpi4,gpu]", "addr": [None, 9090]}])
    clients = [scene.connect(f"10.0.0.{number}") for number in range(3)]
    keys = ("rpi4", "rpi4", "gpu")
    for number, key in enumerate(keys):
        scene.put(proxy, f"{key}:{number}")
    for client, key in zip(clients, keys, strict=True):
        scene.say(client, [4, key, "", 1])
        scene.wait(10)
    assert [row["state"] for row in scene.summary()["leases"]] == ["inferred"] * 3
    scene.say(proxy, [7])  # a proxy polls all the time
    scene.put(proxy, "rpi4:9")
    (over,) = scene.recorded("over")
    assert (over["address"], over["outcome"]) == ("10.0.0.0", "closed")
    assert {row["address"] for row in scene.summary()["leases"]} == {"10.0.0.1", "10.0.0.2"}


# --- limits --------------------------------------------------------------------------------------


@pytest.fixture
def limited():
    scene = Scene(limits={"rpi4": 600})
    scene.wait(60)
    yield scene
    assert scene.replayed() == scene.state


@pytest.mark.parametrize(("asked", "given"), [(None, 600), (0, 600), (60, 60), (6000, 600)])
def test_the_keys_limit_holds_for_all_requests(limited, asked, given):
    server, client = limited.server(), limited.client()
    limited.put(server, "rpi4:1")
    answer = limited.request(client, session_timeout=asked)
    assert answer["leases"][0]["limit_s"] == given
    assert limited.hear(server)[-1]["limit_s"] == given


def test_the_keys_limit_holds_for_tvms_clients_but_not_on_tvms_servers(limited):
    ours, theirs, client = limited.server(), limited.tvm_server(), limited.connect()
    limited.put(ours, "rpi4:1")
    limited.say(client, [4, "rpi4", "", 1])
    assert limited.hear(ours)[-1]["limit_s"] == 600
    limited.put(theirs, "rpi4:2")
    limited.say(client, [4, "rpi4", "", 1])
    summary = limited.summary()
    assert [row["limit_s"] for row in summary["leases"]] == [600, None]
    assert {row["name"]: row["limits"] for row in summary["servers"]} == {"board": True, "10.0.0.7:9090": False}


def test_a_renewal_sets_the_limit_anew(limited):
    server, client = limited.server(), limited.client()
    limited.put(server, "rpi4:1")
    lease = limited.request(client, session_timeout=60)["leases"][0]
    names = {"lease": lease["lease"], "epoch": lease["epoch"]}
    limited.ask(server, "lease_started", **names)
    limited.wait(50)
    (answer,) = limited.ask(client, "renew", 2, lease=lease["lease"], session_timeout=100)
    assert answer["limit_s"] == 150
    order = limited.hear(server)[-1]
    assert (order["op"], order["limit_s"], order["epoch"]) == ("limit", 100, lease["epoch"])
    (answer,) = limited.ask(client, "renew", 3, lease=lease["lease"], session_timeout=1000)
    assert (answer["limit_s"], limited.hear(server)[-1]["limit_s"]) == (600, 550)
    other = limited.client("bob")
    assert limited.ask(other, "renew", 4, lease=lease["lease"])[0]["error"] == "BadRequest"
    same_user = limited.client()
    assert limited.ask(same_user, "renew", 5, lease=lease["lease"])[0]["limit_s"] == 600
    assert limited.recorded("limited")[-1]["limit_s"] == 600
    limited.leave(server)
    assert limited.ask(client, "renew", 6, lease=lease["lease"])[0]["error"] == "BadRequest"


@pytest.mark.parametrize("how", ["end", "release", "timeout"])
def test_a_lease_that_its_server_still_cleans_up_is_not_renewed(scene, how):
    server, client = scene.server(), scene.client()
    scene.put(server, "rpi4:1")
    lease = scene.request(client, session_timeout=60)["leases"][0]
    scene.ask(server, "lease_started", lease=lease["lease"], epoch=lease["epoch"])
    scene.wait(59)
    assert scene.ask(client, "renew", 2, lease=lease["lease"], session_timeout=1)[0]["ok"]
    if how == "timeout":
        scene.wait(1)
    else:
        assert scene.ask(client, how, 3, lease=lease["lease"])[-1]["ok"]
    (refused,) = scene.ask(client, "renew", 4, lease=lease["lease"], session_timeout=100)
    why = {"end": "ann ended it", "release": "its client gave it back", "timeout": "its time was over"}[how]
    assert refused["message"] == f"the lease {lease['lease']!r} has ended: {why}; request a device"
    assert len([order for order in scene.hear(server) if order["op"] == "limit"]) == 1


def test_an_operator_ends_a_lease(scene):
    server, client, keeper = scene.server(), scene.client(), scene.client("eve")
    lease = lease_of(scene, server, client)
    scene.ask(server, "lease_started", **lease)
    scene.hear(server)
    assert scene.ask(keeper, "end", lease=lease["lease"], reason="fire")[0]["ok"]
    (end,) = scene.hear(server)
    assert (end["reason"], end["why"]) == ("ended", "eve ended it: fire")
    scene.ask(server, "lease_ended", **lease, outcome="ended")
    assert scene.recorded("over")[0]["reason"] == "eve ended it: fire"
    assert scene.ask(keeper, "end", 2, lease=lease["lease"])[0]["error"] == "BadRequest"
    scene.leave(server)
    tvm = scene.tvm_server()
    tvm_lease(scene, tvm, scene.connect(), 7)
    (row,) = scene.summary()["leases"]
    answer = scene.ask(keeper, "end", 3, lease=row["lease"])[0]
    assert "TVM's own" in answer["message"]


def test_every_end_has_a_reason(scene):
    server, client = scene.server(), scene.client()
    for outcome in outcomes.OUTCOMES:
        lease = lease_of(scene, server, client)
        scene.ask(server, "lease_ended", **lease, outcome=outcome)
    assert all(over["reason"] for over in scene.recorded("over"))


# --- a server's reports about leases ------------------------------------------------------------


LIMIT = 2**53


def test_a_server_cannot_raise_the_epochs_to_their_limit(scene):
    for number, epoch in enumerate((LIMIT, LIMIT - 1, int(scene.now * 1000) + EPOCHS_AHEAD + 1)):
        scene.server(port=number, running=[{"lease": "old-1", "epoch": epoch}])
    assert scene.summary()["leases"] == []
    server = scene.server(port=7)
    assert lease_of(scene, server, scene.client())["epoch"] == int(scene.now * 1000)


@pytest.mark.parametrize("back", [{"identity": "9a8b"}, {"identity": ""}, {"identity": "9a8b", "key": "x"}])
def test_a_lease_comes_back_with_its_own_server_alone(scene, back):
    board = scene.server(identity="1f2e")
    lease = lease_of(scene, board, scene.client())
    scene.ask(board, "lease_started", **lease)
    thief = scene.server(port=1, running=[lease], **back)
    scene.ask(thief, "lease_ended", **lease, outcome="closed")
    assert [row["server"] for row in scene.summary()["leases"]] == ["board"]
    scene.leave(board)
    thief = scene.server(running=[lease], **back)
    scene.ask(thief, "lease_ended", **lease, outcome="closed")
    assert [row["state"] for row in scene.summary()["leases"]] == ["server away"]
    scene.leave(thief)
    scene.server(identity="1f2e", running=[lease])
    assert [row["state"] for row in scene.summary()["leases"]] == ["running"]


def test_a_server_cannot_take_over_past_or_future_leases(scene):
    lease = lease_of(scene, scene.server(), scene.client())
    later = {"lease": f"run-{lease['epoch'] + 1}", "epoch": lease["epoch"] + 1}
    wrong = {"lease": f"run-{lease['epoch'] + 1}", "epoch": lease["epoch"]}
    for number, told in enumerate((later, wrong, {**lease, "epoch": lease["epoch"] - 1}), start=1):
        scene.server(port=number, running=[told])
    (row,) = scene.summary()["leases"]
    assert row["holder"] == "ann"


def test_the_length_of_an_unknown_session_does_not_count_in_estimates(scene):
    server = scene.server(running=[{"lease": "old-1", "epoch": 1, "since_s": 1e300}])
    scene.ask(server, "lease_ended", lease="old-1", epoch=1, outcome="closed")
    assert scene.recorded("over")[0]["held_s"] == LONGEST_S
    assert not scene.state.records.queues["rpi4"].lengths


def test_leases_that_outlive_the_tracker_come_back(scene):
    epoch = int((scene.now + 3600) * 1000)
    server = scene.server(running=[{"lease": "old-1", "epoch": epoch, "since_s": 30}])
    (row,) = scene.summary()["leases"]
    assert (row["lease"], row["since_s"], row["state"]) == ("old-1", 30, "running")
    assert lease_of(scene, server, scene.client())["epoch"] > epoch
    scene.ask(server, "lease_ended", lease="old-1", epoch=epoch, outcome="closed")
    assert len(scene.summary()["leases"]) == 1


def test_the_limit_of_a_tvm_clients_session_comes_from_its_server(scene):
    server, client = scene.server(), scene.client()
    lease = lease_of(scene, server, client)
    scene.ask(server, "lease_started", **lease, limit_s=30)
    (row,) = scene.summary()["leases"]
    assert (row["limit_s"], row["until_s"]) == (30, 30)
    assert scene.recorded("limited") == [{"lease": lease["lease"], "limit_s": 30}]


def test_a_server_reports_no_limit_above_the_leases(limited):
    server, client = limited.server(), limited.client()
    limited.put(server, "rpi4:1")
    granted = limited.ask(client, "request", key="rpi4")[-1]["leases"][0]
    (taken,) = limited.hear(server)
    assert taken["longest_s"] == taken["limit_s"] == granted["limit_s"]
    lease = {"lease": granted["lease"], "epoch": granted["epoch"]}
    limited.ask(server, "lease_started", **lease, limit_s=granted["limit_s"] + 1)
    assert limited.summary()["leases"][0]["limit_s"] == granted["limit_s"]
    assert limited.recorded("limited") == []
