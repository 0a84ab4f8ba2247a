"""A standby that nobody has told who leads; members of etcd, and what an engine waits for."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator

import pytest

from rpcsys import logs
from rpcsys.tracker.config import TrackerConfig
from rpcsys.tracker.replicas import etcd as etcd_engine
from tests import etcd
from tests.etcd import Etcd
from tests.tracker.replicas.standbys import Script, Site


@pytest.fixture
def config() -> TrackerConfig:
    """How the standby is started."""
    return TrackerConfig()


@pytest.fixture
def site(config: TrackerConfig) -> Iterator[Site]:
    made = Site(config)
    yield made
    made.close()


@pytest.fixture
def script() -> Iterator[Script]:
    made = Script()
    yield made
    made.close()


@pytest.fixture(scope="module")
def one() -> Iterator[Etcd]:
    with etcd.running() as members:
        yield members


@pytest.fixture(scope="module")
def three_members() -> Iterator[Etcd]:
    with etcd.running(3) as members:
        yield members


@pytest.fixture
def three(three_members: Etcd) -> Iterator[Etcd]:
    three_members.heal()
    yield three_members
    three_members.heal()


@pytest.fixture
def limits(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Changes what the engine waits for. A machine that does something else must not fail a test."""

    def change(lease: int = 600, member: float = 10.0, together: float = 30.0) -> None:
        for name, seconds in (("LEADER_LEASE_S", lease), ("MEMBER_S", member), ("ALL_S", together)):
            monkeypatch.setattr(etcd_engine, name, seconds)

    change()
    return change


@pytest.fixture
def daemons_log(monkeypatch: pytest.MonkeyPatch) -> None:
    """The process's log is a daemon's until the test ends."""
    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    monkeypatch.setattr(logging.getLogger(), "level", logging.NOTSET)
    logs.setup("rpcsys-tracker")
