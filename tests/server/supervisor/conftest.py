"""Fixture: a served module."""

from __future__ import annotations

import pytest

from rpcsys.server.supervisor import actions as do
from tests.server.deployed import HOST, ONE, DeploymentsTranscript


@pytest.fixture
def script():
    """Deployments with one served module, whose host is child 1."""
    script = DeploymentsTranscript(ONE)
    assert script.first == [do.Spawn(1, HOST)]
    script.serving(1)
    return script
