"""What the supervisor does about deployed modules, as transcripts."""

from __future__ import annotations

import pytest

from rpcsys.server import events as ev
from rpcsys.server.serving import events as se
from rpcsys.server.serving import hosting as h
from rpcsys.server.serving.store import Version

ONE = Version("head", "0001-aaaaaaaaaaaa", "head.so", "a" * 64)
TWO = Version("head", "0002-bbbbbbbbbbbb", "head.so", "b" * 64)


class Script:
    """Hosting with a clock, where each word is followed by what it leads to."""

    def __init__(self, *versions: Version) -> None:
        self.hosting = h.Hosting()
        self.now = 100.0
        self.hosting.zygote(True)
        self.first = self.say(se.Catalogue, versions)

    def say(self, event: type, *fields) -> list[ev.Action]:
        return self.act(self.hosting.handle(event(self.now, *fields)))

    def act(self, actions: list[ev.Action]) -> list[ev.Action]:
        return [
            action for action in actions + self.hosting.settle(self.now) if not isinstance(action, ev.Log)
        ]

    def visit(self, conn: int, name: str = "head") -> list[ev.Action]:
        return self.act(self.hosting.visit(self.now, conn, f"peer{conn}", name))

    def serving(self, child: int) -> list[ev.Action]:
        """A child comes up and loads what it is given."""
        assert isinstance(self.act(self.hosting.ready(child))[0], se.BeHost)
        return self.say(se.Loaded, child, "rpcsys.onnx", ("main",))

    def dies(self, child: int) -> list[ev.Action]:
        return self.act(self.hosting.dead(self.now, child, -9))


@pytest.fixture
def script():
    script = Script(ONE)
    assert script.first == [ev.Spawn(-1)]
    script.serving(-1)
    return script


def hand(child: int, conn: int, fresh: bool = True, greeted: bool = False) -> se.Hand:
    return se.Hand(child, conn, f"peer{conn}", fresh, greeted)


def test_a_client_waits_for_its_host():
    script = Script(ONE)
    assert script.visit(1) == []
    assert script.serving(-1) == [hand(-1, 1)]
    assert script.visit(2) == [hand(-1, 2)]


def test_a_client_does_not_wait_for_ever():
    script = Script(ONE)
    script.visit(1)
    assert script.hosting.deadline() == script.now + h.WAIT_S
    script.now += h.WAIT_S
    (away,) = script.act([])
    assert (away.conn, away.kind) == (1, "Busy")
    assert script.hosting.deadline() is None


@pytest.mark.parametrize(
    ("name", "words"), [("haed", "it has head"), ("x", "it has head"), ("../head", "it has head")]
)
def test_a_name_that_is_not_deployed(script, name, words):
    (away,) = script.visit(1, name)
    assert away.kind == "ServerRefused"
    assert words in away.text


def test_a_client_that_leaves_while_it_waits():
    script = Script(ONE)
    script.visit(1)
    assert script.hosting.hung_up(script.now, 1) == [ev.Drop(1)]
    assert script.hosting.hung_up(script.now, 1) is None
    assert script.serving(-1) == []


def test_deployed_tried_switched_to_and_the_old_one_leaves(script):
    assert script.visit(9, "") == [ev.Spawn(-2)]
    assert script.act(script.hosting.ready(-2)) == [se.BeDeployer(-2, 9, "peer9")]
    assert script.say(se.Try, -2, TWO) == [ev.Spawn(-3)]
    assert script.serving(-3) == [se.TellChild(-2, (("tried", ""),))]
    assert script.visit(1) == [hand(-1, 1)]  # the old one, until the disk says otherwise
    assert script.say(se.Changed, -2) == [se.Reread()]
    told, leave = script.say(se.Catalogue, (TWO,))
    assert told == se.TellChild(-2, (("seen", True),))
    assert leave == se.TellChild(-1, (("leave", "successor"),))
    assert script.visit(2) == [hand(-3, 2)]
    assert script.say(se.Moved, -1, 3, "peer3", True) == [hand(-3, 3, False, True)]
    assert script.dies(-1) == []
    assert list(script.hosting.hosts) == [-3]


@pytest.mark.parametrize("how", ["cannot be loaded", "dies"])
def test_what_cannot_be_loaded_is_told_to_who_deploys(script, how):
    script.visit(9, "")
    script.hosting.ready(-2)
    script.say(se.Try, -2, TWO)
    script.hosting.ready(-3)
    (told,) = script.say(se.Unloadable, -3, "it is broken") if how == "cannot be loaded" else script.dies(-3)
    assert told.child == -2
    assert told.fields[0][1] in ("it is broken", "its process ended by signal 9")
    assert script.visit(1) == [hand(-1, 1)]


def test_who_deploys_dies_and_what_was_tried_goes(script):
    script.visit(9, "")
    script.hosting.ready(-2)
    script.say(se.Try, -2, TWO)
    script.serving(-3)
    assert script.hosting.hung_up(script.now, 9) == []
    script.now = script.hosting.deadline()
    assert script.act([]) == [ev.Kill(-2)]  # it has not tidied up in time
    assert script.dies(-2) == [ev.Drop(9), se.Reread()]
    assert script.say(se.Catalogue, (ONE,)) == [ev.Kill(-3)]


def test_who_deploys_dies_after_the_disk_was_switched(script):
    script.visit(9, "")
    script.hosting.ready(-2)
    script.say(se.Try, -2, TWO)
    script.serving(-3)
    script.dies(-2)
    assert script.say(se.Catalogue, (TWO,)) == [se.TellChild(-1, (("leave", "successor"),))]
    assert script.visit(1) == [hand(-3, 1)]


def test_a_host_that_dies_is_started_again_after_growing_pauses(script):
    pauses = []
    for child in (-1, -2, -3, -4):
        script.dies(child)
        due = script.hosting.deadline()
        pauses.append(due - script.now)
        script.now = due
        assert script.act([]) == [ev.Spawn(child - 1)]
        script.serving(child - 1)
    assert pauses == sorted(pauses)
    assert pauses[-1] > 4 * pauses[0]
    script.now += h.LASTED_S
    script.dies(-5)
    assert script.hosting.deadline() - script.now == pytest.approx(pauses[0])


def test_a_client_that_a_dead_host_did_not_take_waits_for_the_next(script):
    assert script.visit(1) == [hand(-1, 1)]
    assert script.say(se.NotTaken, -1, 1, "peer1", True, False) == [ev.Kill(-1)]
    assert script.visit(2) == []
    script.dies(-1)
    script.now = script.hosting.deadline()
    script.act([])
    assert script.serving(-2) == [hand(-2, 1), hand(-2, 2)]


def test_a_module_that_cannot_be_loaded_here_any_more():
    script = Script(ONE)
    script.visit(1)
    script.hosting.ready(-1)
    (away,) = script.say(se.Unloadable, -1, "onnxruntime is gone")
    assert (away.kind, "onnxruntime is gone" in away.text) == ("Busy", True)


def test_a_stuck_host_is_succeeded_by_one_of_the_same_version(script):
    assert script.say(se.Stuck, -1) == [ev.Spawn(-2)]
    assert script.visit(1) == []
    assert script.serving(-2) == [se.TellChild(-1, (("leave", "successor"),)), hand(-2, 1)]


def test_withdrawn(script):
    assert script.say(se.Catalogue, ()) == [se.TellChild(-1, (("leave", ""),))]
    (away,) = script.visit(1)
    assert "nothing is deployed" in away.text


def test_the_zygote_takes_all_hosts_along(script):
    assert script.act(script.hosting.zygote(False)) == [se.Reread()]
    assert script.visit(1) == []
    assert script.act(script.hosting.zygote(True)) == [ev.Spawn(-2)]


def test_the_end_of_the_server(script):
    script.visit(9, "")
    assert script.act(script.hosting.stop()) == [ev.Kill(-2), se.TellChild(-1, (("leave", ""),))]
    assert script.hosting.busy
    script.dies(-2)
    script.dies(-1)
    assert not script.hosting.busy


def test_clients_of_one_host_are_bounded(script):
    script.say(se.Load, -1, 0, 0, h.MAX_CLIENTS - 1)
    assert script.visit(1) == [hand(-1, 1)]
    (away,) = script.visit(2)
    assert away.kind == "Busy"


def test_those_who_deploy_are_bounded(script):
    for conn in range(h.MAX_DEPLOYERS):
        assert isinstance(script.visit(conn, "")[0], ev.Spawn)
    (away,) = script.visit(99, "")
    assert away.kind == "Busy"


def test_the_tracker_is_told_what_changes(script):
    (told,) = script.hosting.announce(())
    assert told.modules == (("head", ONE.version, True, 0, 0, 0),)
    assert script.hosting.announce(told.modules) == []
    script.say(se.Load, -1, 1, 2, 3)
    assert script.hosting.announce(told.modules)[0].modules == (("head", ONE.version, True, 1, 2, 3),)
