"""A tracker that restarts with the records of its last run."""

import json

import pytest

from rpcsys.tracker.batch import LiveState
from rpcsys.tracker.leases import AWAY_S
from rpcsys.tracker.records import TICKET_S
from rpcsys.tracker.restore import SETTLE_S
from tests.tracker.restarts import again
from tests.tracker.transcripts import Scene


@pytest.fixture
def before():
    scene = Scene()
    scene.wait(60)
    return scene


def test_leases_of_running_sessions_are_restored(before):
    server, client = before.server(), before.client("bob")
    before.put(server, "rpi4:1")
    lease = before.request(client, session_timeout=500)["leases"][0]
    names = {"lease": lease["lease"], "epoch": lease["epoch"]}
    before.ask(server, "lease_started", **names)
    before.ask(client, "renew", 2, lease=lease["lease"], session_timeout=900)
    before.wait(30)
    scene = again(before)
    (row,) = scene.summary()["leases"]
    assert (row["holder"], row["state"], row["limit_s"]) == ("bob", "server away", 900)
    back = scene.server(running=[{**names, "since_s": 31}])
    (row,) = scene.summary()["leases"]
    assert (row["holder"], row["state"], row["since_s"], row["until_s"]) == ("bob", "running", 31, 869)
    scene.ask(back, "lease_ended", **names, outcome="closed")
    (over,) = scene.recorded("over")
    assert (over["user"], over["held_s"]) == ("bob", 31)
    assert scene.replayed() == scene.state


def test_sessions_that_do_not_come_back_are_lost(before):
    server, client = before.server(), before.client("bob")
    before.put(server, "rpi4:1")
    before.request(client)
    scene = again(before)
    scene.wait(AWAY_S)
    assert scene.summary()["leases"] == []
    assert scene.recorded("over")[0]["outcome"] == "lost"


def test_epochs_and_arrivals_rise_over_restarts(before):
    server, client = before.server(), before.client()
    before.put(server, "rpi4:1")
    lease = before.request(client)["leases"][0]
    before.request(client, 2)
    scene = again(before, after_s=-3600.0)  # a clock that was set back meanwhile
    back, waits = scene.server(), scene.client()
    scene.wait(SETTLE_S)
    scene.put(back, "rpi4:2")
    assert scene.request(waits)["leases"][0]["epoch"] > lease["epoch"]
    assert scene.state.records.arrivals > before.state.records.arrivals


def test_an_epoch_at_its_limit_is_not_restored(before):
    server, client = before.server(), before.client()
    before.state.records.epoch = 2**53 - 2
    before.put(server, "rpi4:1")
    assert before.request(client)["leases"][0]["epoch"] == 2**53 - 1
    scene = again(before)
    back = scene.server(identity="new", slots=2)
    scene.wait(SETTLE_S)
    scene.put(back, "rpi4:2")
    assert scene.request(scene.client())["leases"][0]["epoch"] == int(scene.now * 1000)
    assert scene.replayed() == scene.state


def test_places_are_kept_and_nothing_is_granted_before_all_are_back(before):
    server = before.server()
    clients = [before.client(user) for user in ("ann", "bob", "eve")]
    tickets = [before.request(client)["ticket"] for client in clients]
    scene = again(before)
    stranger = scene.client("new")
    scene.request(stranger)
    back = scene.server()
    scene.put(back, "rpi4:1")
    assert scene.granted(stranger) == []
    returned = [scene.client(user) for user in ("eve", "bob")]
    for client, ticket in zip(returned, (tickets[2], tickets[1]), strict=True):
        scene.request(client, ticket=ticket)
    assert [scene.granted(client) for client in returned] == [[], []]
    ann = scene.client("ann")
    (lease,) = scene.request(ann, ticket=tickets[0])["leases"]
    assert lease["matchkey"] == "rpi4:1", "all are back: there is nothing to wait for"
    for number, client in enumerate([returned[1], returned[0], stranger], start=2):
        scene.put(back, f"rpi4:{number}")
        assert scene.granted(client) == [f"rpi4:{number}"]
    assert server != back
    assert scene.replayed() == scene.state


@pytest.mark.parametrize("end", ["lost", "unused"])
@pytest.mark.parametrize("restarts", [1, 2])
def test_a_grant_that_was_over_before_its_client_heard_of_it_costs_no_place_after_a_restart(before, end, restarts):
    server = before.tvm_server() if end == "lost" else before.server()
    first, second = before.client("ann"), before.client("bob")
    ticket = before.request(first)["ticket"]
    before.wait(1)
    later = before.request(second)["ticket"]
    before.put(server, "rpi4:1")
    if end == "lost":
        before.leave(server)
    else:
        lease = {name: before.recorded("granted")[0][name] for name in ("lease", "epoch")}
        before.ask(server, "lease_ended", **lease, outcome="unused")
    assert before.recorded("over")[0]["outcome"] == end
    scene = again(before)
    for _ in range(restarts - 1):
        scene = again(scene)
    scene.server()
    assert scene.request(scene.client("bob"), ticket=later)["position"] == 1
    assert scene.request(scene.client("ann"), ticket=ticket)["position"] == 1
    assert scene.recorded("heard") == [{"request": ticket.partition("@")[0]}]
    assert scene.replayed() == scene.state
    assert "unheard" not in [entry.kind for entry in LiveState(scene.entries).values()]


def test_a_place_of_a_grant_that_nobody_heard_of_is_kept_for_a_minute(before):
    server, client = before.tvm_server(), before.client("ann")
    ticket = before.request(client)["ticket"]
    before.put(server, "rpi4:1")
    before.leave(server)
    scene = again(before)
    scene.server()
    scene.request(scene.client("bob"))
    scene.wait(TICKET_S + 1)
    assert scene.recorded("heard") == [{"request": ticket.partition("@")[0]}]
    assert scene.request(scene.client("ann"), ticket=ticket)["position"] == 2
    assert scene.replayed() == scene.state


def test_settling_ends_after_three_seconds(before):
    before.server()
    gone = before.client("gone")
    before.request(gone)
    scene = again(before)
    client = scene.client("ann")
    scene.put(scene.server(), "rpi4:1")
    scene.request(client)
    scene.wait(SETTLE_S - 0.1)
    assert scene.granted(client) == []
    scene.wait(0.2)
    assert scene.granted(client) == ["rpi4:1"]
    scene.wait(TICKET_S)
    assert scene.recorded("waited")[-1]["why"] == "left"


def test_a_request_that_the_history_lacks_keeps_its_place(before):
    """A record of the last second before a kill may not have reached the disk."""
    before.server()
    for user in ("ann", "bob"):
        before.wait(0.1)
        before.request(before.client(user))
    kept, lost = before.recorded("waiting")
    before.entries = [record for record in before.entries if record.details.get("ticket") != lost["ticket"]]
    scene = again(before)
    new, bob, ann = scene.client("new"), scene.client("bob"), scene.client("ann")
    scene.request(new)
    assert scene.request(bob, ticket=lost["ticket"])["position"] == 1
    assert scene.request(ann, ticket=kept["ticket"])["position"] == 1
    forged = f"{int(scene.now * 1000) + 5}@run"
    assert scene.request(scene.client("x"), ticket=forged)["position"] == 4


@pytest.mark.parametrize("how", ["ours", "TVM's"])
def test_a_grant_of_which_its_client_has_not_heard_costs_no_place(before, how):
    """The tracker's host may be cut off, or killed, between a grant and its answer."""
    server = before.server() if how == "ours" else before.tvm_server()
    first = before.request(before.client("ann"))["ticket"]
    before.wait(1)
    second = before.request(before.client("ann"))["ticket"]
    before.put(server, "rpi4:1")
    assert len(before.recorded("granted")) == 1
    scene = again(before)
    assert scene.request(scene.client("ann"), ticket=second)["position"] == 1
    answer = scene.request(scene.client("ann"), ticket=first)
    assert (answer["position"], answer["ticket"]) == (1, first)
    assert scene.replayed() == scene.state
    scene = again(before)
    assert scene.request(scene.client("eve"), ticket=first)["ticket"] != first


def test_a_grant_whose_session_was_opened_was_heard(before):
    server = before.server()
    first = before.request(before.client("ann"))["ticket"]
    before.put(server, "rpi4:1")
    (granted,) = before.recorded("granted")
    before.ask(server, "lease_started", lease=granted["lease"], epoch=granted["epoch"], peer="10.0.0.5:1")
    before.wait(1)
    before.request(before.client("bob"))  # the history has all places up to this one
    scene = again(before)
    assert scene.request(scene.client("ann"), ticket=first, wait_for_key=True)["ticket"] != first


def test_a_grant_without_an_arrival_has_no_place(before):
    """An earlier version has written it."""
    before.request(before.client("ann"), wait_for_key=True)
    before.put(before.server(), "rpi4:1")
    (granted,) = [entry for entry in before.entries if entry.kind == "granted"]
    del granted.details["arrival"]
    scene = again(before)
    assert scene.request(scene.client("ann"), ticket="0@run", wait_for_key=True)["ticket"] != "0@run"


def test_a_grant_of_an_earlier_run_is_heard_after_a_while(before):
    before.server()
    first = before.request(before.client("ann"))["ticket"]
    before.put(before.server(name="other", port=2), "rpi4:1")
    scene = again(before)
    scene.server()
    scene.wait(TICKET_S + 1)
    assert scene.request(scene.client("ann"), ticket=first)["ticket"] != first


def test_without_records_there_is_no_settling():
    scene = again(Scene())
    client = scene.client()
    scene.put(scene.server(), "rpi4:1")
    assert scene.request(client)["ok"]


def test_device_time_and_lease_lengths_are_restored(before):
    server = before.server()
    for number in range(4):
        client = before.client("ann")
        before.put(server, f"rpi4:{number}")
        lease = before.request(client)["leases"][0]
        names = {"lease": lease["lease"], "epoch": lease["epoch"]}
        before.ask(server, "lease_started", **names)
        before.wait(100)
        before.ask(server, "lease_ended", **names, outcome="closed")
    spent = before.state.records.shares.spent(before.now, "ann")
    scene = again(before, after_s=0)
    assert scene.state.records.shares.spent(scene.now, "ann") == pytest.approx(spent, rel=1e-6)
    back, client = scene.server(), scene.client()
    scene.wait(SETTLE_S)
    scene.put(back, "rpi4:9")
    scene.request(client)
    assert scene.request(scene.client())["eta_s"] == [100, 100]


def test_set_aside_and_drained_survive_a_restart(before):
    for name, port in (("bad", 1), ("out", 2)):
        server = before.server(name=name, port=port)
        for number in range(3 if name == "bad" else 0):
            before.put(server, f"rpi4:{number}")
            client = before.client()
            lease = before.request(client)["leases"][0]
            names = {"lease": lease["lease"], "epoch": lease["epoch"]}
            before.ask(server, "lease_ended", **names, outcome="crashed", fault="x")
    before.ask(before.client(), "drain", server="out")
    scene = again(before, after_s=5)
    for name, port in (("bad", 1), ("out", 2)):
        scene.put(scene.server(name=name, port=port), f"rpi4:{name}")
    rows = {row["name"]: row for row in scene.summary()["servers"]}
    assert (rows["bad"]["state"], rows["bad"]["until_s"]) == ("set aside", 25)
    assert (rows["out"]["state"], rows["out"]["reason"], rows["out"]["since_s"]) == ("drained", "by ann", 5)
    assert scene.queue() == (0, 0)
    scene.wait(25)
    assert scene.queue() == (1, 0)
    assert scene.replayed() == scene.state


def test_leases_of_tvm_servers_are_not_restored(before):
    server, client = before.tvm_server(), before.connect()
    before.put(server, "rpi4:1")
    before.say(client, [4, "rpi4", "", 1])
    scene = again(before)
    assert scene.summary()["leases"] == []


@pytest.mark.parametrize("days", [400, 91, 0.01, -400])
def test_a_clock_that_was_ahead_or_behind_does_no_harm(days):
    """Device time in the future does not count, and what still holds began now at the latest."""
    scene = Scene()
    scene.wait(60)
    server, ann, bob = scene.server(slots=2), scene.client("ann"), scene.client("bob")
    scene.put(server, "rpi4:1")
    (lease,) = scene.request(ann)["leases"]
    told = {"lease": lease["lease"], "epoch": lease["epoch"]}
    scene.ask(server, "lease_started", **told)
    scene.wait(600)
    scene.ask(server, "lease_ended", **told, outcome="closed")
    scene.put(server, "rpi4:2")
    scene.request(ann, 2)
    scene.request(bob, 3)
    following = again(scene, -days * 86400)
    at = following.now
    assert following.state.records.shares.spent(at, "ann") <= (600 if days > 0 else 6000)
    assert all(held.since <= at for held in following.state.records.leases.values())
    assert all(place.since <= at for place in following.state.records.places.values())
    following.wait(SETTLE_S + 1)
    carol = following.client("carol")
    (answer,) = following.ask(carol, "why", key="rpi4")
    assert answer["ok"]
    assert all(held["since_s"] >= 0 for held in answer["why"]["holders"])
    assert json.dumps(answer, allow_nan=False)
