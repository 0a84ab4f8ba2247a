"""Addresses as text, and the tracker's default address."""

import pytest

from rpcsys.errors import ConfigError
from rpcsys.link.address import address_text, host_and_port, parse_address, split_address, tracker_defaults


@pytest.mark.parametrize(
    ("host", "port", "address"),
    [
        ("0.0.0.0", None, ("0.0.0.0", 9090)),
        ("0.0.0.0", 0, ("0.0.0.0", 0)),
        ("0.0.0.0:9300", None, ("0.0.0.0", 9300)),
        ("0.0.0.0:9300", 9300, ("0.0.0.0", 9300)),
        ("lab:0", None, ("lab", 0)),
        ("::", 9300, ("::", 9300)),
        ("[::]:9300", None, ("::", 9300)),
    ],
)
def test_a_host_may_have_its_port(host, port, address):
    assert host_and_port(host, port, 9090) == address


@pytest.mark.parametrize(
    ("host", "port", "words"),
    [
        ("lab:9300", 9400, "lab:9300 has another port than 9400, which is given apart: give the port once"),
        ("lab:http", None, "'lab:http' is no address"),
        ("lab:65536", None, "is no address"),
        (":9300", None, "is no address"),
    ],
)
def test_a_port_is_given_once(host, port, words):
    with pytest.raises(ConfigError, match=words):
        host_and_port(host, port, 9090)


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("29190", "HOST:29190"),
        ("127:9190", "HOST:9190"),
        ("99999", "HOST:PORT"),
        ("0", "HOST:PORT"),
        ("[7]:1", "HOST:1"),
    ],
)
@pytest.mark.parametrize(
    "parse", [split_address, lambda text: parse_address(text, 9190), lambda text: host_and_port(text, None, 9190)]
)
def test_a_port_is_no_host(parse, text, what):
    with pytest.raises(ConfigError) as refused:
        parse(text)
    assert str(refused.value) == f"{text!r} has no host: write {what}, as in 10.0.0.1:9190"


def test_addresses_are_split_as_they_are_written():
    assert split_address("lab") == ("lab", None)
    assert split_address("lab:") == ("lab", "")
    assert split_address("[fe80::1]:x") == ("fe80::1", "x")
    assert split_address("fe80::1") == ("fe80::1", None)


@pytest.mark.parametrize(
    ("text", "default", "address"),
    [
        ("10.0.0.1:9190", None, ("10.0.0.1", 9190)),
        ("tracker.lab:1", None, ("tracker.lab", 1)),
        ("tracker.lab", 9190, ("tracker.lab", 9190)),
        ("[::1]:9190", None, ("::1", 9190)),
        ("[::1]", 9190, ("::1", 9190)),
        ("fe80::1", 9190, ("fe80::1", 9190)),
    ],
)
def test_addresses_are_parsed_and_written_alike(text, default, address):
    assert parse_address(text, default) == address
    assert parse_address(address_text(*address)) == address


@pytest.mark.parametrize(
    "text",
    [
        "",
        ":",
        ":1",
        "h:",
        "h",
        "h:0",
        "h:65536",
        "h:x",
        "h:-1",
        "[::1",
        "[::1]x:1",
        "[]:1",
        "::1",
        "h:9999999999",
        "h:²",
    ],
)
def test_an_invalid_address_is_refused(text):
    with pytest.raises(ConfigError, match="HOST:PORT"):
        parse_address(text)


def test_defaults_come_from_the_environment(monkeypatch):
    for name in (
        "RPCSYS_TRACKER",
        "RPCSYS_TRACKER_HOST",
        "RPCSYS_TRACKER_PORT",
        "TVM_TRACKER_HOST",
        "TVM_TRACKER_PORT",
    ):
        monkeypatch.delenv(name, raising=False)
    assert tracker_defaults() == ("127.0.0.1", 9190)
    monkeypatch.setenv("TVM_TRACKER_HOST", "tvm.lab")
    monkeypatch.setenv("TVM_TRACKER_PORT", "1")
    assert tracker_defaults() == ("tvm.lab", 1)
    monkeypatch.setenv("RPCSYS_TRACKER_PORT", "2")
    assert tracker_defaults() == ("tvm.lab", 2)
    monkeypatch.setenv("RPCSYS_TRACKER_HOST", "our.lab")
    assert tracker_defaults() == ("our.lab", 2)
    monkeypatch.setenv("RPCSYS_TRACKER", "whole.lab:3")
    assert tracker_defaults() == ("whole.lab", 3)
    monkeypatch.setenv("RPCSYS_TRACKER", "whole.lab:x")
    with pytest.raises(ConfigError, match=r"^RPCSYS_TRACKER: .* HOST:PORT"):
        tracker_defaults()
    monkeypatch.delenv("RPCSYS_TRACKER")
    monkeypatch.setenv("RPCSYS_TRACKER_PORT", "")
    monkeypatch.setenv("RPCSYS_TRACKER_HOST", "our.lab:4")
    assert tracker_defaults() == ("our.lab", 4)
    monkeypatch.setenv("RPCSYS_TRACKER_PORT", "2")
    monkeypatch.setenv("RPCSYS_TRACKER_PORT", "many")
    with pytest.raises(ConfigError, match="RPCSYS_TRACKER_PORT"):
        tracker_defaults()
