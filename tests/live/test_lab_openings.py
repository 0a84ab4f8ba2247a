"""Clients of a closed lab's server that do not prove themselves: what each attempt is counted as."""

from __future__ import annotations

import contextlib
import re
import select
import socket
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from rpcsys.link import credential
from rpcsys.link.openings import EACH
from rpcsys.wire import handshake, pinned_keys
from tests.live.daemons import START_S, Daemon, Daemons, free_port, wait_free, wait_until
from tests.live.labs import LabOnDisk
from tests.live.probe import LabProbe, context, opening

pytestmark = [pytest.mark.live, pytest.mark.timeout(300)]
SLOTS = 6


@pytest.fixture
def lab(tmp_path: Path) -> LabOnDisk:
    return LabOnDisk(tmp_path)


@pytest.fixture
def tracker(lab: LabOnDisk, daemons: Daemons) -> Daemon:
    return lab.tracker(daemons)


@pytest.fixture
def server(lab: LabOnDisk, tracker: Daemon, daemons: Daemons, tmp_path: Path) -> Daemon:
    path = tmp_path / "board.json"
    credential.write(str(path), lab.board("rpi4-1"))
    flags = ("--slots", str(SLOTS), "--lab", str(path), "--name", "rpi4-1", "--http-port", str(free_port()))
    return daemons.server("rpi4", *flags, tracker=tracker, offers=SLOTS)


def metrics(server: Daemon) -> dict[str, float]:
    """The server's metrics, by name and labels but the key."""
    with urllib.request.urlopen(f"http://127.0.0.1:{server.ready['http_port']}/metrics", timeout=20) as page:
        text = page.read().decode()
    found = re.findall(r'^rpcsys_server_(\w+)\{key="rpi4",?(.*?)\} (\S+)$', text, re.MULTILINE)
    return {f"{name} {labels}".strip(): float(value) for name, labels, value in found}


@contextlib.contextmanager
def keeper(lab: LabOnDisk, tracker: Daemon) -> Iterator[LabProbe]:
    with LabProbe(tracker.address) as probe:
        assert probe.hello(lab.keeper.token)["ok"]
        yield probe


def greeted(server: Daemon, matchkey: str, options: str) -> socket.socket:
    """A connection whose outer greeting was accepted."""
    found = pinned_keys.parse(matchkey)
    assert found is not None
    sock = socket.create_connection(server.address, 60)
    sock.sendall(opening(found.name, options))
    reader = handshake.AnswerReader()
    while reader.needed:
        reader.receive(sock.recv(reader.needed))
    return sock


def attempt(server: Daemon, matchkey: str, options: str, how: str) -> socket.socket:
    """A connection that says nothing more, or nothing more in TLS, or a wrong secret there."""
    sock = greeted(server, matchkey, options)
    if how == "silent":
        return sock
    inside = context().wrap_socket(sock)
    if how == "wrong":
        inside.sendall(opening(matchkey[:-4] + "0000", options))
    return inside


def test_attempts_that_prove_nothing_end_as_unused_and_the_board_is_not_to_blame(
    lab: LabOnDisk, tracker: Daemon, server: Daemon
) -> None:
    with keeper(lab, tracker) as probe, contextlib.ExitStack() as stack:
        for options in ("-session=rpcsys/1", ""):
            for how in ("silent", "no greeting", "wrong"):
                matchkey = probe.lease("rpi4")[2]
                stack.enter_context(attempt(server, matchkey, options, how))
        wait_until(lambda: tracker.stderr().count("outcome=unused") == 6, START_S, "all attempts to end")
        wait_free(tracker, "rpi4", SLOTS, START_S)
    found = metrics(server)
    assert (found['handshakes_total outcome="failed"'], found['handshakes_total outcome="done"']) == (6, 0)
    assert found["faults_total"] == 0
    assert not re.search('set_aside|fault=[^-" ]', tracker.stderr())


def test_a_name_that_is_not_on_offer_begins_no_handshake(lab: LabOnDisk, tracker: Daemon, server: Daemon) -> None:
    with keeper(lab, tracker) as probe:
        matchkey = probe.lease("rpi4")[2]
        for said in (matchkey, f"rpi4:t1-{'1f' * 32}", "rpi4", ""):
            with socket.create_connection(server.address, 20) as sock:
                sock.sendall(opening(said) + b"\x16\x03\x01")
                assert sock.recv(100, socket.MSG_WAITALL) == handshake.encode_mismatch()

    def counted() -> bool:
        found = metrics(server)
        return (found['unauthorized_total why="credential"'], found['unauthorized_total why="clear"']) == (3, 1)

    wait_until(counted, START_S, "each is counted")  # after its answer


def test_an_address_that_says_nothing_keeps_sixteen_connections_and_others_are_served(
    lab: LabOnDisk, tracker: Daemon, server: Daemon
) -> None:
    with contextlib.ExitStack() as stack:
        silent = [stack.enter_context(socket.create_connection(server.address, 60)) for _ in range(EACH + 20)]
        for sock in silent[EACH:]:
            assert sock.recv(1) == b""
        assert not select.select(silent[:EACH], [], [], 0)[0]
        with keeper(lab, tracker) as probe:
            matchkey = probe.lease("rpi4")[2]
            with context().wrap_socket(greeted(server, matchkey, "")) as inside:
                inside.sendall(opening(matchkey))
                accepted = handshake.AnswerReader()
                while accepted.needed:
                    accepted.receive(inside.recv(accepted.needed))
            wait_until(lambda: metrics(server)['handshakes_total outcome="done"'] == 1, START_S, "it is counted")
    assert metrics(server)['unauthorized_total why="silent"'] >= 20
