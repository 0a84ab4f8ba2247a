"""Which addresses are served without a lab."""

from __future__ import annotations

import argparse
import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rpcsys.link import admission
from rpcsys.link.admission import Admission, network_of


@pytest.mark.parametrize(
    "host",
    [
        *("127.0.0.1", "127.9.9.9", "10.1.2.3", "172.16.0.1", "172.31.255.255", "192.168.7.7", "100.64.0.1"),
        *("169.254.1.1", "::1", "fd00::7", "fe80::1%eth0", "::ffff:10.1.2.3"),
    ],
)
def test_private_networks_are_served(host: str) -> None:
    assert Admission().serves(host)
    assert Admission().refusal("tracker", host) == ""


@pytest.mark.parametrize(
    "host",
    [
        *("203.0.113.9", "172.32.0.1", "172.15.255.255", "11.0.0.1", "100.128.0.1", "8.8.8.8", "2001:db8::1"),
        *("::ffff:8.8.8.8", "fe00::1", "::2", "", "lab-host", "10.1.2", "1.2.3.4.5", ":", "10.1.2.3\0"),
    ],
)
def test_others_are_not(host: str) -> None:
    assert not Admission().serves(host)
    assert host in Admission().refusal("tracker", host)
    assert Admission(("any",)).serves(host)


def test_this_machines_own_addresses_are_served() -> None:
    assert Admission().serves("203.0.113.9", "203.0.113.9")
    assert not Admission().serves("203.0.113.9", "203.0.113.10")


def test_networks_are_added() -> None:
    served = Admission(("203.0.113.0/24", "2001:db8::/32", "198.51.100.7"))
    for host in ("203.0.113.255", "2001:db8:1::1", "198.51.100.7", "127.0.0.1", "::ffff:203.0.113.9"):
        assert served.serves(host)
    for host in ("203.0.114.0", "2001:db9::1", "198.51.100.8"):
        assert not served.serves(host)


def test_a_refusal_says_what_to_type() -> None:
    assert Admission().refusal("server", "203.0.113.9") == (
        "this server serves private networks only, and you come from 203.0.113.9: "
        "whoever keeps it lets you in with --admit 203.0.113.9, or everyone with --admit any"
    )


@pytest.mark.parametrize(
    "text", ["any", "203.0.113.9", "203.0.113.0/24,2001:db8::/32", "0.0.0.0/0", "::/0", "1.2.3.4/32"]
)
def test_the_flag(text: str) -> None:
    assert admission.flag(text) == tuple(text.split(","))


@pytest.mark.parametrize(
    "text",
    [
        "",
        ",",
        "any,",
        "all",
        "lab-host",
        "10.0.0.0/33",
        "10.0.0.0/",
        "10.0.0.0/-1",
        "10.0.0.0/x",
        "::/129",
        "1.2.3.4/٣",
        "/8",
    ],
)
def test_what_is_no_network_is_told(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="is no network: write numbers"):
        admission.flag(text)


addresses = st.one_of(st.ip_addresses(v=4), st.ip_addresses(v=6).filter(lambda found: found.ipv4_mapped is None))


@given(addresses, st.integers(0, 32), addresses)
def test_networks_are_those_of_ipaddress(
    base: ipaddress.IPv4Address, length: int, other: ipaddress.IPv4Address
) -> None:
    expected = ipaddress.ip_network((base, length), strict=False)
    found = admission.network(f"{base}/{length}")
    for address in (base, other, expected[0], expected[-1]):
        if getattr(address, "ipv4_mapped", None) is None:
            assert found.includes(admission.packed(str(address))) == (address in expected)


def test_the_private_networks_are_no_public_ones() -> None:
    for text in admission.PRIVATE:
        found = ipaddress.ip_network(text)
        assert not found.is_global
        assert not found.is_multicast


def test_a_network_of_ipv6_has_64_bits() -> None:
    assert network_of("2001:db8::1") == network_of("2001:db8::ffff:1") != network_of("2001:db8:0:1::1")
    assert network_of("10.0.0.1") != network_of("10.0.0.2")
    assert network_of("::ffff:10.0.0.1") == "::ffff:10.0.0.1"
    assert network_of("some-host") == "some-host"
