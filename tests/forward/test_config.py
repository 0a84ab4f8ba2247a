"""The flags of ``rpcsys connect``, and where it may listen."""

from __future__ import annotations

import socket

import pytest

from rpcsys.errors import ConfigError, PortRangeError, UsageError
from rpcsys.forward.config import ForwardConfig, listen, parse


def test_defaults_are_tvms_own_address() -> None:
    assert parse([]) == ForwardConfig(("127.0.0.1", 9190), None)


@pytest.mark.parametrize(
    ("text", "address"),
    [("127.0.0.1:0", ("127.0.0.1", 0)), ("[::1]:9200", ("::1", 9200)), ("localhost", ("localhost", 9190))],
)
def test_addresses(text: str, address: tuple[str, int]) -> None:
    assert parse(["--listen", text]).listen == address


def test_the_tracker_has_a_default_port() -> None:
    assert parse(["--tracker", "lab-host"]).tracker == ("lab-host", 9190)


@pytest.mark.parametrize("flags", [["--listen", "9190"], ["--tracker", "host:x"], ["--listen", ":1"], ["host"]])
def test_mistakes_are_one_line(flags: list[str]) -> None:
    with pytest.raises(UsageError):
        parse(flags)


def test_nobody_else_can_reach_it() -> None:
    with pytest.raises(ConfigError, match=r"other machines could reach it there; give 127\.0\.0\.1:0"):
        listen(("0.0.0.0", 0))
    with listen(("127.0.0.1", 0)) as listener:
        assert listener.getsockname()[0] == "127.0.0.1"


def test_a_port_that_is_taken_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other, pytest.raises(PortRangeError, match="give another --listen"):
        listen(other.getsockname())
