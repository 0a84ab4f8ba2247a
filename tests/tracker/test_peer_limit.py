"""The limit of connections of one address."""

from rpcsys.daemon.acceptor import LOG_EVERY_S
from rpcsys.tracker.addresses import ProxyNetworks
from rpcsys.tracker.peer_limit import PeerLimit


def test_connections_of_one_address_are_bounded(caplog):
    now = 0.0
    limit = PeerLimit(2, ProxyNetworks.of(["10.0.0.9"]), lambda: now)
    asked = [limit.admit(address, "10.0.0.1") for address in ("a", "a", "a", "b", "a", "10.0.0.1")]
    assert asked == [True, True, False, True, False, True]
    assert len(caplog.records) == 1
    assert "--max-connections-per-address" in caplog.text
    now = LOG_EVERY_S
    assert not limit.admit("a", "10.0.0.1")
    assert len(caplog.records) == 2
    limit.leave("a", "10.0.0.1")
    assert limit.admit("a", "10.0.0.1")


def test_connections_of_trusted_proxies_do_not_count():
    named, this_machine = (PeerLimit(1, ProxyNetworks.of(texts), float) for texts in (["10.0.0.9"], []))
    for _ in range(3):
        assert named.admit("10.0.0.9", "10.0.0.1")
        assert this_machine.admit("127.0.0.1", "127.0.0.1")
    assert named.admit("127.0.0.1", "127.0.0.1")
    assert not named.admit("127.0.0.1", "127.0.0.1")


def test_ended_connections_leave_no_count():
    limit = PeerLimit(1, ProxyNetworks.of([]), float)
    assert limit.admit("10.0.0.5", "10.0.0.1")
    limit.leave("10.0.0.5", "10.0.0.1")
    assert not limit._counted.counts


def test_connections_of_replicas_do_not_count_whenever_those_change():
    replicas = {"10.0.0.2"}
    limit = PeerLimit(2, ProxyNetworks.of(["10.0.0.9"]), float, lambda: replicas)
    assert [limit.admit("10.0.0.2", "10.0.0.1") for _ in range(3)] == [True] * 3
    assert [limit.admit("10.0.0.3", "10.0.0.1") for _ in range(3)] == [True, True, False]
    replicas = {"10.0.0.3"}
    assert limit.admit("10.0.0.3", "10.0.0.1")
    assert [limit.admit("10.0.0.2", "10.0.0.1") for _ in range(3)] == [True, True, False]
    for address, count in (("10.0.0.2", 5), ("10.0.0.3", 3)):
        for _ in range(count):
            limit.leave(address, "10.0.0.1")
    assert not limit._counted.counts
    assert not +limit._of_replicas
