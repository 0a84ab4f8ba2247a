"""Hooks of pytest that limit each run of a test and its teardown.

pytest-timeout ends its timer with a test's first failure: a rerun that hangs, or a teardown after a failure, would have
no limit.
"""

from __future__ import annotations

import signal
from collections.abc import Generator
from typing import Any

import pytest

_SETTINGS = pytest.StashKey[Any]()


@pytest.hookimpl(wrapper=True)
def pytest_timeout_set_timer(item: pytest.Item, settings: Any) -> Generator[None, object, object]:
    """Keep the settings, with which the timer can be set again."""
    item.stash[_SETTINGS] = settings
    return (yield)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    _set_again(item)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> None:
    _set_again(item)


def _set_again(item: pytest.Item) -> None:
    """Set the timer of a test that has one, if it does not run."""
    if _SETTINGS in item.stash and signal.getitimer(signal.ITIMER_REAL)[0] == 0:
        item.config.pluginmanager.hook.pytest_timeout_set_timer(item=item, settings=item.stash[_SETTINGS])
