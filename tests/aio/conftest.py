"""A device for each test, and the check that no thread of the asyncio client stays."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from tests.device import Device, until


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    before = {*threading.enumerate()}
    yield

    def ended() -> bool:
        return not [one for one in {*threading.enumerate()} - before if one.name.startswith("rpcsys-")]

    until(ended, "the threads of the test to end")


@pytest.fixture
def device() -> Iterator[Device]:
    with Device() as device:
        yield device
