"""Checks the invariant for labs (`rpcsys.lab`): when a lab closes, nothing is left at its daemons."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from rpcsys.lab import Lab
from tests.live import invariant
from tests.live.leftovers import Watched


@contextmanager
def watched() -> Iterator[None]:
    """Check every lab inside this context."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Lab, "start", _start(Lab.start))
        patch.setattr(Lab, "close", _close(Lab.close))
        yield


def _start(start: Any) -> Any:
    def started(lab: Lab) -> Lab:
        start(lab)
        for daemon in lab.daemons:
            module = daemon.process.args[2]  # python -m rpcsys.server ...
            role = module.removeprefix("rpcsys.")
            invariant.running.watch(Watched.of(role, daemon.port or None, daemon.pid))
        return lab

    return started


def _close(close: Any) -> Any:
    def closed(lab: Lab) -> None:
        left: list[str] = []
        pids = [daemon.pid for daemon in lab.daemons]
        try:
            if sys.exc_info()[0] is None and not invariant.running.excused:
                left = invariant.settled(lambda: invariant.running.left(pids))
        finally:
            close(lab)
            for pid in pids:
                invariant.running.forget(pid)
        assert not left, "left behind in a lab: " + "; ".join(left)

    return closed
