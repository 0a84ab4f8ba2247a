"""Whose word counts on where a connection comes from."""

import pytest

from rpcsys.tracker.relays import Relays


@pytest.mark.parametrize(
    ("address", "believed"),
    [
        ("10.0.0.5", True),
        ("10.1.2.3", True),
        ("10.0.0.6", False),
        ("fd00::5", True),
        ("127.0.0.1", False),
        ("10.0.0.1", False),
        ("not an address", False),
        ("", False),
    ],
)
def test_named_networks_alone(address, believed):
    relays = Relays.of(["10.0.0.5", "10.1.0.0/16", "fd00::/8"])
    assert relays.include(address, "10.0.0.1") == believed


@pytest.mark.parametrize("address", ["127.0.0.1", "127.1.2.3", "::1", "10.0.0.1"])
def test_this_machine_where_none_is_named(address):
    assert Relays.of([]).include(address, "10.0.0.1")
    assert not Relays.of([]).include("10.0.0.5", "10.0.0.1")


def test_what_is_no_network():
    with pytest.raises(ValueError, match="proxy"):
        Relays.of(["proxy.lab"])
