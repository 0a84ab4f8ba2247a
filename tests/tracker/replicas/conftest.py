"""A standby that nobody has told who leads."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from rpcsys.tracker.config import TrackerConfig
from tests.tracker.replicas.standbys import Script, Site


@pytest.fixture
def config() -> TrackerConfig:
    """How the standby is started."""
    return TrackerConfig()


@pytest.fixture
def site(config: TrackerConfig) -> Iterator[Site]:
    made = Site(config)
    yield made
    made.close()


@pytest.fixture
def script() -> Iterator[Script]:
    made = Script()
    yield made
    made.close()
