"""Fixtures: servers as transcripts, whose logs must replay to the same state."""

from __future__ import annotations

import pytest

from rpcsys.server.supervisor import actions as do
from tests.server.transcripts import Transcript, kinds


@pytest.fixture
def direct():
    """A server without a tracker, ready, with two slots."""
    script = Transcript(slots=2)
    script.boot()
    yield script
    script.replay()


@pytest.fixture
def tracked():
    """A server with one slot, registered with our tracker; its match key is k:1."""
    script = Transcript(tracked=True)
    assert kinds(script.boot()) == [do.Announce, do.Connect]
    assert script.register() == ["k:1"]
    yield script
    script.replay()
