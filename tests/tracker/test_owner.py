"""What owns connections has all that these use."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

import pytest

from rpcsys import logs
from rpcsys.tracker.config import TrackerConfig
from rpcsys.tracker.owner import Owner
from rpcsys.tracker.replicas.standby import Standby
from rpcsys.tracker.service import TrackerService


@pytest.fixture(autouse=True)
def _logs(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tracker is the only one of its process, with the log that its command has set up."""
    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    logs.setup("rpcsys-tracker")


@pytest.mark.parametrize("make", [TrackerService, Standby])
def test_an_owner_has_everything(make: Callable[[TrackerConfig], TrackerService | Standby]) -> None:
    async def run() -> None:
        owner = make(TrackerConfig())
        names = {*Owner.__annotations__, *(name for name in vars(Owner) if not name.startswith("_"))}
        assert len(names) > 10
        assert [name for name in names if not hasattr(owner, name)] == []
        owner.close()

    asyncio.run(run())
