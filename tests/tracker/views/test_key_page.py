"""A key's page, as fragments."""

from __future__ import annotations

from rpcsys.tracker.views import key_page
from rpcsys.tracker.views.key_page import key_fragments
from rpcsys.tracker.views.past import Past


def fragments(scene, key, past=None):
    found = key_fragments(scene.state.records, scene.now, key, past or Past())
    return {(fragment.group, fragment.id): fragment.data for fragment in found}


def busy(scene):
    """A board whose past leases lasted a minute, that is leased, and four users that wait."""
    board = scene.server("rpi4", "shelf", slots=1)
    for number in range(4):
        scene.put(board, f"rpi4:{number}")
        client = scene.client("zoe")
        lease = scene.request(client)["leases"][0]
        scene.ask(board, "lease_started", lease=lease["lease"], epoch=lease["epoch"], peer="x")
        scene.wait(60)
        scene.ask(board, "lease_ended", lease=lease["lease"], epoch=lease["epoch"], outcome="closed")
    scene.put(board, "rpi4:last")
    scene.request(scene.client("ann"))
    for user in ("bo", "cy", "di"):
        scene.ask(scene.client(user), "request", key="rpi4")
        scene.wait(1)
    return board


def test_the_queue_is_in_order_with_forecasts(scene) -> None:
    busy(scene)
    found = fragments(scene, "rpi4")
    queue = found["parts", "queue"]["queue"]
    assert [row["who"].partition(" ")[0] for row in queue] == ["bo", "cy", "di"]
    times = [row["forecast"] for row in queue]
    assert all(scene.now <= first <= last for first, last in times)
    assert times == sorted(times)
    assert found["parts", "state"]["reasons"] == ["1 of 1 devices are taken"]
    assert found["boards", "shelf"]["state"] == "busy"


def test_a_long_queue_is_counted(scene, monkeypatch) -> None:
    monkeypatch.setattr(key_page, "MAX_WAITING", 2)
    busy(scene)
    queue = fragments(scene, "rpi4")["parts", "queue"]
    assert (len(queue["queue"]), queue["more"]) == (2, 1)


def test_usage_is_the_historys(scene) -> None:
    scene.server("rpi4", "shelf")
    usage = [{"user": "ann", "held_s": 90.0}, {"user": "bo", "held_s": 30.0}]
    shown = fragments(scene, "rpi4", Past(usage=usage))["usage", "usage"]
    assert (shown["usage"], shown["most"], shown["problem"]) == (usage, 90.0, "")


def test_a_key_without_a_server_is_known_while_anything_knows_it(scene) -> None:
    assert fragments(scene, "rpi4") == {}
    assert fragments(scene, "rpi4", Past(usage=[{"user": "ann", "held_s": 1.0}]))
    scene.leave(scene.server("rpi4", "shelf"))
    scene.wait(60)
    assert "rpi4" not in scene.state.records.queues
    assert fragments(scene, "rpi4")["boards", "gone\nshelf"]["state"] == "gone"


def test_requests_by_label_alone_have_a_page(scene) -> None:
    scene.server("rpi4", "shelf", labels={"rack": "1"})
    scene.ask(scene.client("ann"), "request", key=None, labels={"rack": "1"})
    (row,) = fragments(scene, "")["parts", "queue"]["queue"]
    assert (row["who"], row["details"], row["forecast"]) == ("ann @ 10.0.0.5", "rack=1", None)
