"""Fixture: a proxy as a process."""

from __future__ import annotations

import pytest

from tests.live.conftest import daemons, way  # noqa: F401 (fixtures)


@pytest.fixture
def proxy(daemons):  # noqa: F811
    """A proxy without a tracker."""
    return daemons.proxy("--grace", "5")
