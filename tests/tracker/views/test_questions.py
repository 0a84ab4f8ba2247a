"""Questions that are answered from the records."""

import pytest


def why(scene, client, **about):
    (answer,) = scene.ask(client, "why", 9, **about)
    return answer


def test_why_a_request_waits(scene):
    server = scene.server(name="board", slots=1)
    scene.put(server, "rpi4:1")
    scene.request(scene.client("ann"))
    client = scene.client("bob")
    scene.ask(client, "request", 1, key="rpi4")
    scene.wait(5)
    told = why(scene, client, request=1)["why"]
    assert (told["key"], told["position"], told["ahead"], told["devices"], told["free"]) == ("rpi4", 1, 0, 1, 0)
    assert [holder["user"] for holder in told["holders"]] == ["ann"]
    assert [(other["user"], other["waited_s"]) for other in told["queue"]] == [("bob", 5.0)]
    assert told["reasons"] == ["1 of 1 devices are taken"]


def test_reasons_name_each_cause_of_the_wait(scene):
    server = scene.server(name="board", slots=2)
    scene.ask(server, "drain", 2, server="board")
    client = scene.client()
    scene.ask(client, "request", 1, key="rpi4", count=2)
    reasons = why(scene, client, request=1)["why"]["reasons"]
    assert reasons[1:] == [
        "board is drained by 10.0.0.8: type rpcsys enable board",
        "the request is passed over: 2 devices are wanted together ('rpi4'), and only 0 of 2 are offered",
    ]
    scene.leave(server)
    scene.wait(180)
    scene.hear(client)
    gone = "no server offers 'rpi4' now: the last one left 3 min ago"
    assert why(scene, client, request=1)["why"]["reasons"] == [gone, f"the request is passed over: {gone}"]


@pytest.mark.parametrize(("about", "error"), [({}, "BadRequest"), ({"key": "never"}, "UnknownKey")])
def test_why_without_a_request_or_a_key_is_refused(scene, about, error):
    assert why(scene, scene.client(), **about)["error"] == error


@pytest.mark.parametrize("op", ["history", "usage"])
def test_a_question_that_the_state_does_not_support_is_refused(scene, op):
    (answer,) = scene.ask(scene.client(), op)
    assert (answer["ok"], answer["error"]) == (False, "BadRequest")


def test_the_lease_of_a_server_that_is_gone_takes_no_device(scene):
    gone, client = scene.server(name="a"), scene.client()
    scene.put(gone, "rpi4:1")
    lease = scene.ask(client, "request", key="rpi4")[-1]["leases"][0]
    scene.ask(gone, "lease_started", lease=lease["lease"], epoch=lease["epoch"])
    scene.server(name="b")
    scene.leave(gone)
    reasons = why(scene, client, key="rpi4")["why"]["reasons"]
    assert "0 of 1 devices are taken" in reasons
    assert "1 of the leases is of servers that are gone: they end if these stay away" in reasons


def test_labels_that_nothing_in_use_or_nothing_free_has(scene):
    one, two = scene.server(name="one", labels={"rev": "1"}), scene.server(name="two", port=7, labels={"rev": "2"})
    client = scene.client()
    scene.put(two, "rpi4:2")
    for number, rev in enumerate(["1", "9"], start=1):
        scene.ask(client, "request", number, key="rpi4", labels={"rev": rev}, wait_for_key=True)
    nothing = "no server is 'rpi4' with rev=9 now"
    assert why(scene, client, request=1)["why"]["reasons"] == [
        "0 of 2 devices are taken",
        "no free device is 'rpi4' with rev=1",
    ]
    assert why(scene, client, request=2)["why"]["reasons"] == ["0 of 2 devices are taken", nothing]
    scene.ask(one, "drain", 2, server="one")
    assert why(scene, client, key="rpi4")["why"]["reasons"] == [
        "0 of 2 devices are taken",
        "one is drained by 10.0.0.8: type rpcsys enable one",
        "no server in use is 'rpi4' with rev=1",
        nothing,
    ]


def test_holders_for_a_request_are_those_of_devices_that_fit_it(scene):
    one, two = scene.server(name="one", labels={"rev": "1"}), scene.server(name="two", port=7, labels={"rev": "2"})
    for number, (server, user) in enumerate([(one, "ann"), (two, "bob")]):
        scene.put(server, f"rpi4:{number}")
        scene.request(scene.client(user))
    client = scene.client()
    scene.ask(client, "request", 1, key="rpi4", labels={"rev": "2"})
    assert [row["user"] for row in why(scene, client, request=1)["why"]["holders"]] == ["bob"]
    assert [row["user"] for row in why(scene, client, key="rpi4")["why"]["holders"]] == ["ann", "bob"]
