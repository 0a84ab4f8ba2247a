"""Tickets: which requests get the place that they had."""

import pytest

from rpcsys.tracker.batch import LiveState
from rpcsys.tracker.records import TICKET_S
from tests.tracker.transcripts import Scene, order


def test_a_ticket_keeps_its_place(scene):
    server, first, second = scene.server(), scene.client("ann"), scene.client("bob")
    ticket = scene.request(first)["ticket"]
    scene.request(second)
    scene.leave(first)
    assert scene.queue() == (0, 1)
    scene.wait(TICKET_S - 1)
    again = scene.client("ann")
    assert scene.request(again, ticket=ticket)["position"] == 1
    assert order(scene, server, [second, again]) == [1, 0]


@pytest.mark.parametrize("why", ["late", "another's", "another key's", "nonsense", "used"])
def test_an_invalid_ticket_keeps_no_place(scene, why):
    server, first, second = scene.server(), scene.client("ann"), scene.client("bob")
    ticket = scene.request(first)["ticket"]
    scene.request(second)
    if why == "used":
        scene.put(server, "rpi4:1")
        scene.granted(first)
    scene.leave(first)
    scene.wait(TICKET_S + 1 if why == "late" else 1)
    fields = {"ticket": "nonsense" if why == "nonsense" else ticket}
    if why == "another key's":
        scene.server("gpu", "g", 7)
        scene.request(scene.client("bob"), key="gpu")
        assert scene.request(scene.client("ann"), key="gpu", **fields)["position"] == 2
        return
    again = scene.client("bob" if why == "another's" else "ann")
    assert scene.request(again, 2, **fields)["position"] == 2


@pytest.mark.parametrize(
    ("then", "position"),
    [("nothing", 1), ("lost", 1), ("unused", 1), ("late", 2), ("opened", 2), ("released", 2), ("closed", 2)],
)
def test_a_grant_of_which_its_client_has_not_heard_costs_no_place(scene, then, position):
    """Its connection was lost before; what the client did with its lease shows that it has heard."""
    server, first, second = scene.server(), scene.client("ann"), scene.client("ann")
    ticket = scene.request(first)["ticket"]
    scene.wait(1)
    scene.request(second)
    scene.put(server, "rpi4:1")
    lease = {name: scene.recorded("granted")[0][name] for name in ("lease", "epoch")}
    if then == "lost":
        scene.leave(first)
    elif then == "released":
        scene.ask(first, "release", 2, lease=lease["lease"], problem="")
    elif then == "opened":
        scene.ask(server, "lease_started", **lease, peer="10.0.0.5:1")
    elif then in ("closed", "unused"):
        scene.ask(server, "lease_ended", **lease, outcome=then)
    scene.wait(TICKET_S + 1 if then == "late" else 1)
    assert scene.request(scene.client("ann"), ticket=ticket)["position"] == position
    assert scene.request(scene.client("ann"), ticket=ticket)["position"] == (1 if position == 1 else 3)
    assert scene.replayed() == scene.state


@pytest.mark.parametrize("late", [False, True])
def test_a_grant_of_a_tvm_server_that_is_lost_costs_no_place(scene, late):
    server, first = scene.tvm_server(), scene.client("ann")
    ticket = scene.request(first)["ticket"]
    scene.wait(1)
    scene.request(scene.client("ann"))
    scene.put(server, "rpi4:1")
    scene.wait(TICKET_S + 5 if late else 1)
    scene.leave(first)
    scene.leave(server)
    assert scene.recorded("over")[0]["outcome"] == "lost"
    assert len(scene.recorded("unheard")) == (0 if late else 1)
    assert scene.request(scene.client("ann"), ticket=ticket)["position"] == (2 if late else 1)


def test_grants_of_which_no_client_has_heard_are_bounded(monkeypatch):
    from rpcsys.tracker import records

    monkeypatch.setattr(records, "MAX_UNHEARD", 3)
    scene = Scene()
    server = scene.server(slots=9)
    for number in range(6):
        scene.request(scene.client())
        scene.put(server, f"rpi4:{number}")
    assert len(scene.state.records.unheard) == 3
    for lease in scene.recorded("granted"):
        scene.ask(server, "lease_ended", lease=lease["lease"], epoch=lease["epoch"], outcome="unused")
        scene.request(client := scene.client())
        scene.put(server, f"rpi4:{lease['epoch']}")
        assert scene.granted(client)
    for lease in scene.recorded("granted")[6:]:
        scene.ask(server, "lease_ended", lease=lease["lease"], epoch=lease["epoch"], outcome="unused")
    kept = [entry for entry in LiveState(scene.entries).values() if entry.kind == "unheard"]
    assert len(kept) == len(scene.state.records.kept_unheard) == 3
    scene.wait(TICKET_S + 1)
    assert not scene.state.records.kept_unheard
    assert scene.replayed() == scene.state


def test_a_ticket_replaces_the_request_of_its_old_connection(scene):
    scene.server()
    old, new = scene.client("ann"), scene.client("ann")
    ticket = scene.request(old)["ticket"]
    assert scene.request(new, ticket=ticket)["position"] == 1
    assert scene.hear(old)[-1]["error"] == "Cancelled"
    assert scene.queue() == (0, 1)


def test_places_of_tickets_are_bounded(monkeypatch):
    from rpcsys.tracker import quotas

    monkeypatch.setattr(quotas, "MAX_PLACES", 3)
    scene = Scene()
    scene.server()
    for number in range(6):
        client = scene.client(f"user{number}")
        scene.request(client)
        scene.leave(client)
        scene.wait(0)
    assert len(scene.state.records.places) <= 3
