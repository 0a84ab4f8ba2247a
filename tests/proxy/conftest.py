"""Fixture: a proxy as a process."""

from __future__ import annotations

import pytest

from tests.live.conftest import daemons  # noqa: F401 (a fixture)


@pytest.fixture
def proxy(daemons):  # noqa: F811
    """A proxy without a tracker."""
    return daemons.proxy("--grace", "5")
