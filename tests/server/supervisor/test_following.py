"""The server's link to a tracker with replicas."""

from __future__ import annotations

import time

import pytest

from rpcsys.link.address import Addresses
from rpcsys.server.supervisor import events as ev
from rpcsys.server.supervisor.loop import Loop
from rpcsys.server.supervisor.tracker_link import TrackerLink
from tests.link.fake_replicas import eventually, replicas
from tests.server.supervisor.test_tracker_link import CARD, SOON_S


@pytest.mark.parametrize("fate", ["hangs", "is killed"])
def test_it_registers_where_another_replica_leads(fate):
    with replicas() as group:
        loop = Loop()
        link = TrackerLink(loop, [Addresses([one.address for one in group.each])], CARD)

        def posted(kind):
            end = time.monotonic() + SOON_S
            while not any(isinstance(event, kind) for event in loop.events):
                assert time.monotonic() < end
                loop.run_once(0.05)
            found = next(event for event in loop.events if isinstance(event, kind))
            loop.events.clear()
            return found

        link.connect()
        posted(ev.LinkUp)
        link.register((("L0", 3, 1.5),))
        posted(ev.Registered)
        eventually(lambda: loop.run_once(0.01) or sum(one.lookouts for one in group.each) == 1)
        group.each[0].pause() if fate == "hangs" else group.each[0].die()
        group.lead(1)
        assert posted(ev.LinkDown).at_once or fate == "is killed"  # then the news or the end may be first
        link.connect()
        posted(ev.LinkUp)
        link.register((("L0", 3, 1.5),))
        posted(ev.Registered)
        assert [said["op"] for said in group.each[1].received] == ["register"]
        assert group.each[1].hellos[-1]["capabilities"] == ["session/1", "keepalive/1", "replicas/1"]
        link.close()
        loop.close()


def test_a_lookout_is_looked_for_though_nothing_arrives():
    """The loop wakes for it: the first one hangs, and the leader says nothing."""
    with replicas() as group:
        loop = Loop()
        link = TrackerLink(loop, [Addresses([one.address for one in group.each])], CARD)
        for one in group.each[1:]:
            one.pause()
        link.connect()
        end = time.monotonic() + SOON_S
        while len(group.each[1].connections) + len(group.each[2].connections) < 1:
            assert time.monotonic() < end
            loop.run_once(1)
        tried = group.each[1] if group.each[1].connections else group.each[2]
        other = group.each[1] if tried is group.each[2] else group.each[2]
        other.running.set()
        while not other.lookouts:
            assert time.monotonic() < end
            loop.run_once(None)
        link.close()
        loop.close()
