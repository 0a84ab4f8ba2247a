"""Imports that hang, as transcripts of a whole server."""

from __future__ import annotations

from rpcsys.server.supervisor import actions as do
from rpcsys.server.supervisor import events as ev
from tests.server.transcripts import Transcript


def test_an_import_that_hangs_before_the_server_serves_ends_it():
    script = Transcript(import_s=5.0)
    script.say(ev.Importing, "--preload a")
    script.say(ev.Importing, "--preload b", after=4.0)
    assert script.tick(4.0) == []
    (kill, leave) = script.tick(2.0)
    assert kill == do.KillZygote()
    assert leave.why.startswith("--preload b: the import is not done after 5 s")
    script.replay()


def test_an_import_that_hangs_later_is_logged_and_tried_again(direct):
    direct.say(ev.ZygoteDown)
    direct.tick(5.0)
    direct.say(ev.Importing, "--import slow")
    assert direct.tick(61.0) == [do.KillZygote()]
    assert any(line.startswith("--import slow:") for line in direct.logged())
    assert do.StartZygote() in direct.say(ev.ZygoteDown) + direct.tick(10.0)


def test_an_import_of_a_child_hangs():
    script = Transcript()
    script.boot()
    script.visit(1)
    script.say(ev.ChildDone, 1, "closed")
    script.say(ev.Importing, "--preload numpy", 2)
    assert do.Kill(2) in script.tick(61.0)
    script.replay()
