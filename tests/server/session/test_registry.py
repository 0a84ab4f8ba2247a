"""Functions by name."""

from __future__ import annotations

import pytest

import rpcsys.server
from rpcsys.errors import ConfigError, RemoteFunctionError
from rpcsys.server.session import registry


@pytest.fixture(autouse=True)
def as_it_was(monkeypatch):
    monkeypatch.setattr(registry, "_functions", dict(registry._functions))


def test_a_registered_function_is_found_and_unchanged():
    @rpcsys.server.register("lab.double")
    def double(x):
        return 2 * x

    assert double(2) == 4
    assert registry.lookup("lab.double") is double
    assert "lab.double" in registry.names()
    assert registry.names() == sorted(registry.names())


@pytest.mark.parametrize("name", ["session.put", "session.anything", "testing.echo"])
def test_taken_names_are_refused(name):
    with pytest.raises(ConfigError, match="registered already"):
        registry.register(name)


def test_an_unknown_function_is_refused():
    with pytest.raises(RemoteFunctionError, match="has no function"):
        registry.lookup("lab.none")


def test_every_server_has_the_testing_functions():
    echo, nop = registry.lookup("testing.echo"), registry.lookup("testing.nop")
    assert (echo(), echo(1), echo(1, 2), nop(1, 2)) == ((), 1, (1, 2), None)
    with pytest.raises(RuntimeError, match="asked to fail"):
        registry.lookup("testing.fail")()
