"""Sessions with their own device, for tests that end them, and a shared one for tests that leave it unchanged."""

from __future__ import annotations

import pytest

from tests.device import Device


@pytest.fixture(scope="module")
def shared(speedups):
    with Device() as device, device.session() as session:
        yield session


@pytest.fixture
def device(speedups):
    with Device() as device:
        yield device


@pytest.fixture
def session(device):
    with device.session() as session:
        yield session
