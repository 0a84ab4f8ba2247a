"""Deployed modules at the tracker, as transcripts."""

from rpcsys.tracker.servers import MAX_MODULES
from rpcsys.tracker.views.rows import MAX_MODULES as MAX_ROWS


def module(name, running=0, waiting=0, clients=0, workers=2, **more):
    load = {"workers": workers, "running": running, "waiting": waiting, "clients": clients}
    return {"name": name, "version": "0001-abc", **load, **more}


def tell(scene, server, *modules, key=""):
    (answer,) = scene.ask(server, "deployed", modules=list(modules), key=key)
    return answer


def resolve(scene, name=""):
    (answer,) = scene.ask(scene.client(), "resolve", name=name)
    return answer


def test_the_least_busy_server_comes_first(scene):
    for name, load in (("a", (2, 3, 1)), ("b", (1, 0, 1)), ("c", (0, 0, 4)), ("d", (0, 0, 2))):
        tell(scene, scene.server(name=name), module("head", *load))
    rows = resolve(scene, "head")["modules"]
    assert [row["server"] for row in rows] == ["d", "c", "b", "a"]
    assert (rows[3]["running"], rows[3]["waiting"], rows[3]["clients"], rows[3]["workers"]) == (2, 3, 1, 2)
    assert rows[0]["version"] == "0001-abc"


def test_one_name_or_all_modules_are_listed(scene):
    tell(scene, scene.server(name="a"), module("head"), module("neck"), module("new", serving=False))
    assert [row["name"] for row in resolve(scene)["modules"]] == ["head", "neck"]
    assert [row["name"] for row in resolve(scene, "neck")["modules"]] == ["neck"]
    answer = resolve(scene, "nick")
    assert (answer["error"], answer["ok"]) == ("UnknownKey", False)
    assert answer["message"].startswith("no server has a deployed module 'nick'; there is neck")
    assert resolve(scene, "new")["error"] == "UnknownKey"  # no server serves it yet


def test_without_deployed_modules_the_name_is_refused(scene):
    assert resolve(scene)["modules"] == []
    assert "rpcsys deploy" in resolve(scene, "head")["message"]


def test_a_servers_modules_end_with_its_next_list_or_its_connection(scene):
    server = scene.server(name="a")
    tell(scene, server, module("head"))
    tell(scene, server, module("neck"))
    assert [row["name"] for row in resolve(scene)["modules"]] == ["neck"]
    scene.leave(server)
    assert resolve(scene)["modules"] == []


def test_a_peer_that_is_not_registered_deploys_nothing(scene):
    stranger = scene.client()
    assert tell(scene, stranger, module("head"))["ok"]
    assert resolve(scene)["modules"] == []


def test_a_drained_or_unhealthy_server_is_left_out(scene):
    server = scene.server(name="a")
    tell(scene, server, module("head"))
    operator = scene.client()
    scene.ask(operator, "drain", server="a")
    assert resolve(scene)["modules"] == []
    scene.ask(operator, "enable", 2, server="a")
    assert len(resolve(scene)["modules"]) == 1
    scene.ask(server, "health", 9, problem="it is being stopped")
    assert resolve(scene)["modules"] == []


def test_the_list_of_modules_is_bounded(scene):
    server = scene.server(name="a")
    refused = tell(scene, server, *[module(str(number)) for number in range(MAX_MODULES + 1)])
    assert refused["error"] == "BadRequest"
    for number in range(MAX_ROWS // MAX_MODULES + 1):
        tell(scene, scene.server(name=f"s{number}"), *[module(f"{number}-{each}") for each in range(MAX_MODULES)])
    assert len(resolve(scene)["modules"]) == MAX_ROWS
