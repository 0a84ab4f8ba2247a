"""A tracker in a process of its own, and connections to it with raw frames."""

from __future__ import annotations

import resource

import pytest

from tests.live.conftest import daemons, module_daemons, way  # noqa: F401 (fixtures)
from tests.live.probe import TrackerProbe
from tests.tracker.stores import opened  # noqa: F401 (a fixture)
from tests.tracker.transcripts import Scene


@pytest.fixture
def tracker(daemons):  # noqa: F811
    """A running tracker."""
    return daemons.tracker()


@pytest.fixture
def connect(tracker):
    """Makes connections to the tracker, past the magic."""
    made = []

    def make():
        made.append(TrackerProbe(tracker.address))
        return made[-1]

    yield make
    for probe in made:
        probe.close()


@pytest.fixture
def descriptors():
    """Allows this process to open many sockets."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 8192), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.fixture
def scene():
    """A tracker that has run for long enough to know its keys; replayed at the end."""
    scene = Scene()
    scene.wait(60)
    yield scene
    assert scene.replayed() == scene.state
