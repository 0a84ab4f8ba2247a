"""Whoever comes to the wrong port is told in one line what is there, and which port to give."""

from __future__ import annotations

import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable
from typing import NamedTuple

import pytest

import rpcsys
from rpcsys.errors import ProtocolError, TrackerUnreachable
from tests.live.daemons import ROOT, Daemon, Daemons, free_port, wait_until

ENDS_S = 60.0
LOGGED_S = 30.0
SERVER, PAGE, TRACKER = "a device server or a proxy", r"a page \(HTTP\)", "a tracker"
WEB = ("tracker's page", "server's page", "proxy's page", "web", "gateway")
#: What a tracker's client reads at each port that is no tracker's.
NO_TRACKER = {
    "server": f"that is {SERVER}; give the tracker's own port",
    "proxy": "the proxy has no tracker",
    **dict.fromkeys(WEB, f"that is {PAGE}; give the tracker's"),
}
#: The same for a session's client.
NO_SERVER = {
    "tracker": f"is {TRACKER}; give the port of a device server",
    **dict.fromkeys(WEB, f"is {PAGE}; give the port of a"),
}


class Lab(NamedTuple):
    daemons: Daemons
    ports: dict[str, int]
    tracker: Daemon


@pytest.fixture(scope="module")
def lab(module_daemons: Callable[[], Daemons]) -> Lab:
    daemons = module_daemons()
    pages = {name: free_port() for name in WEB}
    tracker = daemons.tracker("--http-port", str(pages["tracker's page"]))
    server = daemons.server("board", "--preload", "none", "--http-port", str(pages["server's page"]))
    web = ("--web-port", str(pages["web"]))
    proxy = daemons.proxy("--http-port", str(pages["proxy's page"]), *web)
    daemons.gateway("--tracker", tracker.where, "--grpc-port", "0", port=pages["gateway"])
    own = {"tracker": tracker.address[1], "server": server.address[1], "proxy": proxy.address[1]}
    return Lab(daemons, {**own, **pages}, tracker)


@pytest.mark.parametrize("port", NO_TRACKER)
def test_a_tracker_is_wanted(lab: Lab, port: str) -> None:
    with pytest.raises(TrackerUnreachable, match=NO_TRACKER[port]) as caught:
        rpcsys.connect_tracker(("127.0.0.1", lab.ports[port]))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("port", NO_SERVER)
def test_a_server_is_wanted(lab: Lab, port: str) -> None:
    with pytest.raises(ProtocolError, match=NO_SERVER[port]) as caught:
        rpcsys.connect("127.0.0.1", lab.ports[port], "board", timeout=ENDS_S)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("command", "port", "words"),
    [
        (("query", "--tracker"), "server", f"that is {SERVER}"),
        (("drain", "board", "--tracker"), "tracker's page", f"that is {PAGE}"),
        (("deploy", "README.md", "--to"), "tracker", f"is {TRACKER}"),
    ],
)
def test_commands_print_it_as_one_line(lab: Lab, command: tuple[str, ...], port: str, words: str) -> None:
    words = words.replace("\\", "")
    line = [sys.executable, "-m", "rpcsys", *command, f"127.0.0.1:{lab.ports[port]}"]
    done = subprocess.run(line, cwd=ROOT, capture_output=True, text=True, timeout=ENDS_S, check=False)
    assert done.returncode == 1
    assert len(done.stderr.splitlines()) == 1
    assert words in done.stderr


@pytest.mark.parametrize(
    ("flags", "port", "words"),
    [
        (("-m", "rpcsys.server", "--tracker"), "server", f"that is {SERVER}"),
        (("-m", "rpcsys.server", "--tracker"), "tracker's page", f"that is {PAGE}"),
        (("-m", "rpcsys.proxy", "--tracker"), "server", f"that is {SERVER}"),
        (("-m", "rpcsys.server", "--through-proxy", "--host"), "tracker", f"not the protocol of {SERVER}, but of "),
        (("-m", "rpcsys.server", "--through-proxy", "--host"), "web", f"not the protocol of {SERVER}, but of "),
    ],
)
def test_daemons_log_it(lab: Lab, flags: tuple[str, ...], port: str, words: str) -> None:
    words = words.replace("\\", "")
    more = ("--key", "other", "--preload", "none") if "rpcsys.server" in flags else ()
    more = more if "--through-proxy" in flags else (*more, "--host", "127.0.0.1", "--port", "0")
    daemon = lab.daemons.launch("wrong", (sys.executable, *flags, f"127.0.0.1:{lab.ports[port]}", *more))
    try:
        wait_until(lambda: words in daemon.stderr(), LOGGED_S, f"it logs {words!r}")
    finally:
        daemon.terminate()


@pytest.mark.parametrize("port", ["tracker", "server", "proxy"])
def test_a_browser_is_told_where_the_page_is(lab: Lab, port: str) -> None:
    with pytest.raises(urllib.error.HTTPError, match="400") as caught:
        urllib.request.urlopen(f"http://127.0.0.1:{lab.ports[port]}/metrics", timeout=ENDS_S)
    with caught.value as reply:
        assert b"its page has a port of its own (--http-port)" in reply.read()
    rpcsys.connect_tracker(lab.tracker.address).close()
