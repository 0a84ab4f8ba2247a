"""Which HTTP requests are of this machine, and which of another site's page in a browser here."""

from __future__ import annotations

import socket

import pytest

from rpcsys.link.web_guard import MetricsGuard, foreign, from_loopback, host_name

MACHINE = socket.gethostname()


@pytest.mark.parametrize(
    "host", ["", "localhost", "LOCALHOST:8190", "127.0.0.1:8190", "[::1]:8190", "10.0.0.7:8190", MACHINE, "lab:8190"]
)
def test_names_of_this_machine_are_known(host: str) -> None:
    assert foreign("127.0.0.1", host, "", ["lab"]) == ""
    assert foreign("127.0.0.1", host, f"http://{host}" if host else "", ["lab"]) == ""


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:8190", "localhost.evil.example", "127.0.0.1.evil.example"]
)
def test_a_name_that_another_site_has_resolve_to_here_is_refused(host: str) -> None:
    assert "no name of this machine: say localhost" in foreign("127.0.0.1", host, "")
    assert "no name of this machine" in foreign("::1", host, f"http://{host}")


@pytest.mark.parametrize("origin", ["http://evil.example", "https://evil.example", "null", "http://lab:81"])
def test_a_page_of_another_site_is_refused_from_anywhere(origin: str) -> None:
    for address in ("127.0.0.1", "10.0.0.7"):
        assert foreign(address, "lab:8190", origin, ["lab"]) == "a page of another site may not read this one"


def test_over_a_network_this_machine_may_have_any_name() -> None:
    assert foreign("10.0.0.7", "tracker.lab:8190", "") == ""


@pytest.mark.parametrize(
    ("address", "found"),
    [("127.0.0.1", True), ("127.9.9.9", True), ("::1", True), ("::ffff:127.0.0.1", True), ("10.0.0.1", False),
     ("::2", False), ("localhost", False), ("", False)],
)  # fmt: skip
def test_loopback_is_known(address: str, found: bool) -> None:
    assert from_loopback(address) is found


def test_a_host_is_read_without_its_port() -> None:
    assert [host_name(text) for text in ("Lab:80", "lab", "[fd00::1]:80", "[fd00::1]", ":80")] == [
        "lab", "lab", "fd00::1", "fd00::1", ""
    ]  # fmt: skip


def test_metrics_are_for_this_machine_and_what_was_opened() -> None:
    guard = MetricsGuard("server", ("10.1.0.0/16",))

    def refusal(address: str, path: str = "/metrics", host: str = "board") -> str:
        return guard.refusal(path, address, "10.9.0.1", host, "")

    assert refusal("10.1.0.9") == refusal("10.9.0.1") == refusal("127.0.0.1", host="localhost") == ""
    assert refusal("10.2.0.9", "/healthz") == ""
    assert refusal("10.2.0.9") == (
        "in a lab, this server shows its metrics to its own machine, and you come from 10.2.0.9: "
        "whoever keeps it lets you in with --http-open 10.2.0.9"
    )
    assert refusal("127.0.0.1", host="evil.example")
    assert not MetricsGuard("server", ("any",)).refusal("/metrics", "203.0.113.9", None, "board", "")
