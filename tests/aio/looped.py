"""Runs tests that are coroutines."""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import Callable, Coroutine
from typing import Any

from tests.device import WAIT_S

#: Far more than any of these tests takes.
TEST_S = 90.0


def looped(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """The test as a function that runs it in a loop of its own."""

    @functools.wraps(test)
    def run(*args: Any, **fixtures: Any) -> None:
        asyncio.run(asyncio.wait_for(test(*args, **fixtures), TEST_S))

    return run


async def become(happened: Callable[[], Any], what: str) -> None:
    """Wait until ``happened()`` is true; the loop goes on."""
    deadline = time.monotonic() + WAIT_S
    while not happened():
        assert time.monotonic() < deadline, f"waited {WAIT_S} s for {what}"
        await asyncio.sleep(0.01)
