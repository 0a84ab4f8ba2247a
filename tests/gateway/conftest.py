"""A gateway that runs in this process, for tests of what its clients see."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from rpcsys.gateway.config import GatewayConfig
from rpcsys.gateway.settings import GatewaySettings
from tests.gateway.running import GatewayBench, gateway_before

CONFIG = GatewayConfig(servers=(("10.0.0.1", 9090),), max_body=8 << 20, max_json=1 << 20, shared_memory=True)


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Iterator[GatewayBench]:
    yield from gateway_before(monkeypatch, CONFIG, GatewaySettings(control=True))
