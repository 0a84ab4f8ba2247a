"""Devices that every machine has."""

from __future__ import annotations

import pytest

from rpcsys import graph
from rpcsys.graph._plan import devices


@pytest.fixture
def cpus(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Two devices on any machine, even with a single CPU."""
    monkeypatch.setattr(devices, "available", lambda: {0, 1, 2})
    monkeypatch.setattr(devices.PlanDevice, "target", property(lambda device: graph.OnnxRuntime(threads=1)))
    return ["cpu:0", "cpu:1"]
