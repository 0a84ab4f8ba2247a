"""The proxy's flags."""

from __future__ import annotations

import pytest

from rpcsys.errors import ConfigError, UsageError
from rpcsys.proxy.config import ProxyConfig, parse


def test_defaults_are_those_of_the_class() -> None:
    assert parse([]) == ProxyConfig()


@pytest.mark.parametrize(("port", "end"), [(9300, 9409), (65530, 65536)])
def test_the_end_of_the_ports_moves_along(port: int, end: int) -> None:
    assert parse(["--port", str(port)]).port_end == end


def test_hosts_may_have_a_port() -> None:
    config = parse(["--host", "10.0.0.1:9300", "--custom-addr", "lab.example:80"])
    assert (config.host, config.port, config.port_end) == ("10.0.0.1", 9300, 9409)
    assert (config.public, config.public_port) == ("lab.example", 80)
    assert parse(["--host", ""]) == ProxyConfig()
    with pytest.raises(ConfigError, match="give the port once"):
        parse(["--host", "10.0.0.1:9300", "--port", "9301"])


def test_every_flag() -> None:
    line = (
        "--host 127.0.0.1 --port 1 --port-end 3 --web-port 8888 --http-port 80 --tracker [::1]:9190 --custom-addr lab "
        "--timeout-client 0.5 --timeout-server 7 --grace 0 --max-waiting 10 --max-waiting-per-address 5 "
        "--web-origin https://a.example --web-origin https://b.example --silent --log-format json"
    )
    assert parse(line.split()) == ProxyConfig(
        host="127.0.0.1",
        port=1,
        port_end=3,
        web_port=8888,
        http_port=80,
        tracker=("::1", 9190),
        public="lab",
        timeout_client=0.5,
        timeout_server=7,
        grace=0,
        max_waiting=10,
        max_waiting_per_address=5,
        web_origins=("https://a.example", "https://b.example"),
        silent=True,
        log_format="json",
    )
    assert parse(["--next", "outer:9090"]).next == ("outer", 9090)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("--tracker nowhere", "HOST:PORT"),
        ("--tracker a:1 --next b:2", "--next"),
        ("--timeout-client soon", "seconds"),
        ("--timeout-server -1", "seconds"),
        ("--grace nan", "seconds"),
        ("--max-waiting 0", "streams"),
        ("--max-waiting-per-address many", "streams"),
        ("--port 65536", "port"),
        ("--log-format xml", "xml"),
        ("--what", "--what"),
    ],
)
def test_a_bad_flag_is_refused(line: str, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        parse(line.split())


def test_admitted_networks_are_parsed():
    assert parse([]).admit == ()
    assert parse(["--admit", "203.0.113.0/24,any"]).admit == ("203.0.113.0/24", "any")


def test_metrics_are_opened_in_a_lab_only():
    flags = ["--http-port", "80", "--http-open", "10.0.0.5,10.1.0.0/16"]
    assert parse([*flags, "--lab", "/x"]).http_open == ("10.0.0.5", "10.1.0.0/16")
    with pytest.raises(UsageError, match="--http-open needs --lab and --http-port"):
        parse(flags)
