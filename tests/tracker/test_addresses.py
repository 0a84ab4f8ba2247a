"""The addresses that the tracker sends, as transcripts, and the networks of trusted proxies."""

import pytest

from rpcsys.tracker.addresses import ProxyNetworks


@pytest.mark.parametrize(
    ("server_at", "custom", "client_at", "told"),
    [
        ("10.0.0.7", None, "10.0.0.5", "10.0.0.7"),
        ("10.0.0.7", "board.lab", "10.0.0.5", "board.lab"),
        ("127.0.0.1", None, "127.0.0.1", "127.0.0.1"),
        ("127.0.0.1", None, "10.0.0.5", "10.0.0.1"),
        ("127.0.0.1", "localhost", "10.0.0.5", "10.0.0.1"),
        ("127.0.0.1", "board.lab", "10.0.0.5", "board.lab"),
        ("10.0.0.7", "127.0.0.1", "10.0.0.5", "10.0.0.1"),
        ("::1", None, "10.0.0.5", "10.0.0.1"),
        ("10.0.0.7", None, "127.0.0.1", "10.0.0.7"),
    ],
)
def test_clients_get_an_address_that_they_can_reach(scene, server_at, custom, client_at, told):
    server = scene.tvm_server(address=server_at, custom=custom)
    scene.put(server, "rpi4:1", custom=custom)
    client = scene.connect(client_at, local="10.0.0.1")
    ((_, summary),) = scene.say(client, [6])
    assert summary["server_info"] == [{"key": "server:rpi4", "addr": [told, 9090]}]
    assert scene.say(client, [4, "rpi4", "", 1]) == [[0, [told, 9090, "rpi4:1"]]]


@pytest.mark.parametrize(
    ("address", "trusted"),
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
def test_only_proxies_in_named_networks_are_trusted(address, trusted):
    proxies = ProxyNetworks.of(["10.0.0.5", "10.1.0.0/16", "fd00::/8"])
    assert proxies.include(address, "10.0.0.1") == trusted


@pytest.mark.parametrize("address", ["127.0.0.1", "127.1.2.3", "::1", "10.0.0.1"])
def test_without_named_networks_this_machine_is_trusted(address):
    assert ProxyNetworks.of([]).include(address, "10.0.0.1")
    assert not ProxyNetworks.of([]).include("10.0.0.5", "10.0.0.1")


def test_an_invalid_network_is_refused():
    with pytest.raises(ValueError, match="proxy"):
        ProxyNetworks.of(["proxy.lab"])
