"""The tracker's limits by key, as flags."""

import re

import pytest

from rpcsys.errors import ConfigError, UsageError
from rpcsys.link.address import each_address
from rpcsys.tracker.config import parse

REPLICA = ["--replicate", "etcd://lab-1/lab", "--state-dir", "/d"]


def test_the_flags_of_a_tracker_with_replicas():
    assert parse([]).replicate is None
    tls = ["--replicate-ca", "ca", "--replicate-cert", "c", "--replicate-key", "k"]
    found = parse([*REPLICA, "--advertise", "lab-1:9300", *tls])
    assert (found.replicate, found.advertise) == ("etcd://lab-1/lab", "lab-1:9300")
    assert (found.replicate_ca, found.replicate_cert, found.replicate_key) == ("ca", "c", "k")


@pytest.mark.parametrize(
    ("flags", "problem"),
    [
        (["--replicate", "etcd://lab-1/lab"], "give --state-dir DIR, too"),
        ([*REPLICA, "--lab", "/lab"], "a closed lab has one tracker"),
        (["--advertise", "lab-1"], "--advertise is for a tracker with replicas: give --replicate, too"),
        (["--replicate-ca", "ca"], "--replicate-ca is for a tracker with replicas"),
        (["--replicate-cert", "c"], "--replicate-cert is for a tracker with replicas"),
        (["--replicate-key", "k"], "--replicate-key is for a tracker with replicas"),
        (["--replicate", ""], "the value is empty"),
    ],
)
def test_flags_that_replicas_cannot_have(flags, problem):
    with pytest.raises(UsageError, match=problem):
        parse(flags)


def test_the_flags_of_a_site():
    assert (parse([]).site, parse([]).peers) == (None, ())
    peers = ["--peer", "paris=10.2.0.1:9300,tracker.paris", "--peer", "rome=[fd00::1]:9190"]
    found = parse(["--site", "berlin", *peers])
    assert found.site == "berlin"
    (paris, first), (rome, other) = found.peers
    assert (paris, each_address(first)) == ("paris", (("10.2.0.1", 9300), ("tracker.paris", 9190)))
    assert (rome, other) == ("rome", ("fd00::1", 9190))


@pytest.mark.parametrize(
    ("flags", "problem"),
    [
        (["--peer", "paris=10.2.0.1"], "--peer is for a tracker whose site has a name: give --site NAME, too"),
        (["--site", "berlin", "--lab", "/lab"], "the members of a closed lab are known to its own tracker alone"),
        (["--site", "berlin", "--peer", "berlin=10.2.0.1"], "two sites have one name"),
        (["--site", "b", "--peer", "p=10.2.0.1", "--peer", "p=10.2.0.2"], "two sites have one name"),
        (["--site", "any"], "'any' is no name of a site"),
        (["--site", "a.b"], "'a.b' is no name of a site: 1 to 32 letters"),
        (["--site", "s" * 33], "is no name of a site"),
        (["--site", "berlin", "--peer", "paris"], "'' has no host|NAME=HOST:PORT"),
        (["--site", "berlin", "--peer", "paris=10.2.0.1:x"], "NAME=HOST:PORT"),
        (["--site", "berlin", "--peer", "10.2.0.1:9190"], "is no name of a site"),
    ],
)
def test_flags_that_a_site_cannot_have(flags, problem):
    with pytest.raises(UsageError, match=problem):
        parse(flags)


def test_limits_by_key_are_parsed():
    config = parse(["--max-session", "rpi4=600", "--max-session", "a=b:1=2.5", "--max-session", "rpi4=60"])
    assert dict(config.limits) == {"rpi4": 60, "a=b:1": 2.5}
    assert parse([]).limits == ()


def test_trusted_proxies_are_parsed():
    config = parse(["--proxy-from", "10.0.0.5", "--proxy-from", "fd00::/8", "--proxy-from", "10.1.2.3/16"])
    assert config.proxy_from == ("10.0.0.5/32", "fd00::/8", "10.1.0.0/16")
    assert parse([]).proxy_from == ()


@pytest.mark.parametrize("text", ["proxy.lab", "10.0.0.5:9090", "10.0.0.0/33", ""])
def test_an_invalid_address_is_refused(text):
    with pytest.raises(UsageError, match=re.escape("10.0.0.0/24")):
        parse(["--proxy-from", text])


def test_admitted_networks_are_parsed():
    assert parse([]).admit == ()
    assert parse(["--admit", "203.0.113.0/24,2001:db8::/32"]).admit == ("203.0.113.0/24", "2001:db8::/32")
    assert parse(["--admit", "any"]).admit == ("any",)


@pytest.mark.parametrize("text", ["rpi4", "rpi4=", "=600", "rpi4=0", "rpi4=-1", "rpi4=nan", "rpi4=1e99", "a b=1"])
def test_an_invalid_limit_is_refused(text):
    with pytest.raises(UsageError, match="write KEY=SECONDS"):
        parse(["--max-session", text])


def test_the_host_may_have_the_port():
    config = parse(["--host", "[::1]:9300"])
    assert (config.host, config.port, config.port_end) == ("::1", 9300, 9309)
    assert (parse([]).host, parse([]).port) == ("0.0.0.0", 9190)
    with pytest.raises(ConfigError, match="give the port once"):
        parse(["--host", "lab:9300", "--port", "9301"])


@pytest.mark.parametrize(("port", "end"), [(9190, 9199), (9300, 9309), (65530, 65536)])
def test_the_end_of_the_ports_moves_along(port, end):
    assert parse(["--port", str(port)]).port_end == end


@pytest.mark.parametrize(
    ("flags", "words"), [(["--prot", "9300"], "did you mean --port?"), (["--http_port=1"], "--http-port?")]
)
def test_a_mistyped_flag_suggests_the_right_one(flags, words):
    with pytest.raises(UsageError, match=re.escape(words)):
        parse(flags)


@pytest.mark.parametrize(
    ("flags", "problem"),
    [
        (["--http-key", "k"], "--http-key is that of a certificate: give --http-cert FILE, too"),
        (["--http-cert", "c"], "--http-cert is for the page: give --http-port N, too"),
        (["--http-cert", "", "--http-port", "80"], "the value is empty"),
    ],
)
def test_a_certificate_is_that_of_a_page(flags, problem):
    with pytest.raises(UsageError, match=problem):
        parse(flags)
    found = parse(["--http-port", "80", "--http-cert", "c", "--http-key", "k"])
    assert (found.http_cert, found.http_key) == ("c", "k")
