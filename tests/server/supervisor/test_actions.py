"""Actions and events are values: they compare by type and fields."""

from __future__ import annotations

from rpcsys.server.supervisor import actions as do
from rpcsys.server.supervisor import events as ev


def test_equal_fields_compare_equal():
    assert do.Kill(3) == do.Kill(3)
    assert do.Kill(3) != do.Kill(4)
    assert do.Unpark(3) != do.Kill(3)
    assert ev.Stuck(1.0, 2) != ev.Leaving(1.0, 2)


def test_repr_shows_all_fields():
    assert repr(do.Refuse(7, "mismatch")) == "Refuse(conn=7, how='mismatch')"
    assert repr(ev.ChildDone(1.5, 2, "closed")) == "ChildDone(now=1.5, child=2, outcome='closed', removed=(), why='')"
