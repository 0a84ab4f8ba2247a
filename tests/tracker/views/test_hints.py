"""Errors about unknown names have the nearest known ones."""

from rpcsys.tracker.labels import wants_of
from rpcsys.tracker.views import hints


def unknown(scene, key, **labels):
    return hints.unknown(scene.state.records, wants_of(key, labels))


def test_without_servers_the_error_names_the_command(scene):
    assert "nor any other key" in unknown(scene, "rpi4")


def test_the_error_names_similar_keys(scene):
    for key in ("rpi4", "gpu-a100", "esp32"):
        scene.server(key, key)
    assert "there is rpi4." in unknown(scene, "rpi5")
    assert "esp32, gpu-a100, rpi4" in unknown(scene, "nothing-like-it")


def test_the_error_has_the_time_when_the_last_server_left(scene):
    server = scene.server("rpi4", "board", labels={"name": "board"})
    scene.leave(server)
    scene.wait(180)
    scene.connect()
    assert unknown(scene, "rpi4").startswith("no server offers 'rpi4': the last one left 3 min ago; start one with")
    scene.server("gpu", "gpu", 9091)
    assert unknown(scene, "rpi4").startswith("no server offers 'rpi4': the last one left 3 min ago; there is gpu.")
    assert unknown(scene, "", name="board").startswith(
        "no server is any device with name=board: the last one left 3 min"
    )


def test_the_error_names_similar_values_of_a_label(scene):
    scene.server("rpi4", "a", labels={"site": "berlin"})
    scene.server("rpi4", "b", 9091, labels={"site": "bern"})
    assert "site=berlin" in unknown(scene, "rpi4", site="berlim")
    assert "Check the labels" in unknown(scene, "rpi4", site="berlim")


def test_the_error_names_versions_that_are_there_and_labels_that_no_server_has(scene):
    scene.server("rpi4", "a", labels={"tvm": "0.26.0"})
    scene.server("rpi4", "b", 9091, labels={"tvm": "0.27.0"})
    scene.server("gpu", "c", 9092, labels={"tvm": "0.9.0"})
    text = unknown(scene, "rpi4", tvm=">=1", driver=">=535", sight="x")
    assert text.startswith("no server is 'rpi4' with driver>=535, sight=x, tvm>=1; there are tvm=0.26.0, tvm=0.27.0;")
    assert "; no server has the label driver, sight. Check the labels" in text
    assert "tvm=0.9.0" in unknown(scene, "", tvm=">=1")


def test_the_error_names_similar_servers_and_modules(scene):
    server = scene.server(name="board-1")
    assert "there is board-1" in hints.unknown_server(scene.state.records, "bord-1")
    assert "nor any other" in hints.unknown_module(scene.state.records, "resnet")
    scene.ask(server, "deployed", modules=[{"name": "resnet50", "version": "1"}])
    assert "there is resnet50" in hints.unknown_module(scene.state.records, "resnet")
    assert hints.unknown_module(scene.state.records, "resnet50").startswith("no server serves 'resnet50' now")
