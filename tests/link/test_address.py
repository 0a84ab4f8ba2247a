"""Addresses as text, and the tracker's default address."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rpcsys.errors import ConfigError
from rpcsys.link.address import (
    address_text,
    each_address,
    host_and_port,
    parse_address,
    parse_tracker,
    several,
    split_address,
    tracker_defaults,
    tracker_text,
)


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


# --- replicas ----------------------------------------------------------------------------------


def test_several_addresses_are_a_pair_that_has_them_all():
    found = parse_tracker("lab-1, lab-2:9191,[::1],lab-1", 9190)
    assert found == ("lab-1", 9190)
    assert found.all == each_address(found) == (("lab-1", 9190), ("lab-2", 9191), ("::1", 9190))
    assert tracker_text(found) == "lab-1:9190,lab-2:9191,[::1]:9190"
    assert parse_tracker(tracker_text(found)).all == found.all


@pytest.mark.parametrize("text", ["lab-1:9190", "lab-1:9190,lab-1:9190"])
def test_one_address_is_what_it_was(text):
    found = parse_tracker(text)
    assert type(found) is tuple
    assert found == ("lab-1", 9190)
    assert each_address(found) == (found,)
    assert tracker_text(found) == "lab-1:9190"


@given(st.lists(st.tuples(st.sampled_from(["a", "10.0.0.1", "::1", "lab.x"]), st.integers(1, 65535)), min_size=1))
def test_lists_are_parsed_and_written_alike(addresses):
    found = several(addresses)
    assert each_address(parse_tracker(tracker_text(found))) == each_address(found) == tuple(dict.fromkeys(addresses))


@given(st.text(alphabet="a1:,[]. ", max_size=20))
def test_any_text_is_addresses_or_refused(text):
    try:
        found = parse_tracker(text, 9190)
    except ConfigError:
        return
    assert all(host and 0 < port < 65536 for host, port in each_address(found))


@pytest.mark.parametrize("text", ["a:1,", ",a:1", "a:1,,b:2", "a:1,b", "a:1,9190:2"])
def test_each_address_of_a_list_is_checked(text):
    with pytest.raises(ConfigError, match="HOST:"):
        parse_tracker(text)


def test_the_environment_may_have_a_list(monkeypatch):
    monkeypatch.setenv("RPCSYS_TRACKER", "a:1,b")
    assert each_address(tracker_defaults()) == (("a", 1), ("b", 9190))
