"""The phases of a server."""

from __future__ import annotations

import pytest

from rpcsys.server.supervisor import actions as do
from rpcsys.server.supervisor.records import (
    DRAIN,
    EXITED,
    LEAVE,
    READY,
    SERVING,
    STARTING,
    STOP,
    STOPPING,
    TRANSITIONS,
    Policy,
    ServerRecords,
)


@pytest.mark.parametrize(
    ("events", "phase", "stopping"),
    [
        ((), STARTING, False),
        ((READY,), SERVING, False),
        ((READY, STOP), STOPPING, True),
        ((READY, DRAIN, DRAIN, STOP, DRAIN), STOPPING, True),
        ((READY, DRAIN, LEAVE), EXITED, True),
        ((DRAIN, READY, STOP, LEAVE), EXITED, True),
    ],
)
def test_events_change_the_phase(events, phase, stopping):
    records = ServerRecords(Policy("k"))
    for event in events:
        records.move(event)
    assert (records.phase, records.stopping) == (phase, stopping)


def test_a_server_that_stops_never_serves_again():
    for phase in TRANSITIONS.keys() - {STARTING, SERVING}:
        assert not {STARTING, SERVING} & set(TRANSITIONS[phase].values())


def test_a_failed_start_ends_the_server():
    records = ServerRecords(Policy("k"))
    assert records.exit("no such module") == [do.Exit("no such module")]
    assert records.phase is EXITED
