"""The engines that there are have what replicas ask for."""

from __future__ import annotations

import inspect

import pytest

from rpcsys.errors import RpcsysError
from rpcsys.tracker.replicas.engine import Engine, EngineFull, EngineLost, EngineRefused, Leader
from rpcsys.tracker.replicas.etcd import EtcdEngine
from tests.tracker.replicas.memory_engine import MemoryEngine


@pytest.mark.parametrize("made", [EtcdEngine, MemoryEngine])
def test_an_engine_has_all_verbs_itself(made: type[Engine]) -> None:
    verbs = [name for name in vars(Engine) if inspect.iscoroutinefunction(vars(Engine)[name])]
    assert len(verbs) > 10
    for name in verbs:
        asked = inspect.signature(vars(Engine)[name]).parameters
        assert len(inspect.signature(vars(made)[name]).parameters) == len(asked), name


def test_a_leader_is_plain_json() -> None:
    leader = Leader(("lab-1", 9190), 8080, "1.2", "ab")
    assert leader.to_json() == {
        "address": ["lab-1", 9190], "http_port": 8080, "version": "1.2", "replica": "ab", "format": 1,
    }  # fmt: skip


def test_an_engine_that_is_full_is_asked_again() -> None:
    assert issubclass(EngineFull, EngineLost)
    assert issubclass(EngineRefused, RpcsysError)
    assert not issubclass(EngineRefused, EngineLost)
