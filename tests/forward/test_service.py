"""The forwarder's sockets: sessions through TLS to their servers, and who else is refused."""

from __future__ import annotations

import logging
import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from rpcsys.errors import ConfigError, Unauthorized
from rpcsys.forward import service as forward
from rpcsys.link import credential
from rpcsys.link.credential import Credential
from rpcsys.wire import tokens
from rpcsys.wire.handshake import Greeting, Options, encode_greeting, encode_mismatch
from rpcsys.wire.tokens import HolderKind
from tests.forward.desks import Desk, forwarder, run, until
from tests.link.terminators import ANSWER, KEY, Both
from tests.scripted_peers import MAGIC, ScriptedTracker

OPENING = encode_greeting(Greeting("client", KEY.text, Options(timeout_s=60.0)))


@contextmanager
def server(echo: bool = True) -> Iterator[Both]:
    """A server with `KEY`, in a thread; its sessions send back what they get."""
    one = Both()
    stop = threading.Event()

    def work() -> None:
        one.accept()
        one.until(lambda: bool(one.opened))
        plain = one.opened[0][1]
        plain.setblocking(False)
        while not stop.is_set():
            one.terminator.turn(0.01)
            try:
                plain.send(plain.recv(1 << 16) if echo else b"")
            except (BlockingIOError, BrokenPipeError):
                pass

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield one
    finally:
        stop.set()
        thread.join()
        one.close()


def leases(one: Both) -> ScriptedTracker:
    """A tracker that hands out the server's match key."""
    return ScriptedTracker(commands=lambda asked: [[0, [*one.address, KEY.text]]])


def test_a_lease_and_its_session() -> None:
    async def main() -> None:
        with server() as one, leases(one) as tracker:
            async with forwarder(tracker.address) as service:
                desk = await Desk.tracker(service.port)
                assert await desk.ask([4, "rpi4", "", 1]) == [0, ["127.0.0.1", service.port, KEY.text]]
                session = await Desk.open(service.port)
                session.writer.write(OPENING)
                assert await session.reader.readexactly(len(ANSWER)) == ANSWER
                session.writer.write(b"hello")
                assert await session.reader.readexactly(5) == b"hello"
                assert one.opened[0][0].options.timeout_s == 60.0
                session.writer.close()
                again = await Desk.open(service.port)
                again.writer.write(OPENING)
                assert await again.reader.read() == encode_mismatch()  # it was used

    run(main())


def test_a_session_that_breaks_is_a_lost_lease(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        with server(echo=False) as one, leases(one) as tracker:
            async with forwarder(tracker.address) as service:
                desk = await Desk.tracker(service.port)
                await desk.ask([4, "rpi4", "", 1])
                session = await Desk.open(service.port)
                session.writer.write(OPENING)
                assert await session.reader.readexactly(len(ANSWER)) == ANSWER
                next(iter(one.terminator._terminations)).net.shutdown(socket.SHUT_WR)  # without TLS's own word
                assert await session.reader.read() == b""

    with caplog.at_level(logging.WARNING):
        run(main())
    assert "the lease of rpi4:t1-" in caplog.text
    assert "is lost: the connection broke" in caplog.text
    assert KEY.secret not in caplog.text


def test_a_server_that_is_not_there_is_a_refusal(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        with ScriptedTracker(commands=lambda asked: [[0, ["127.0.0.1", 1, KEY.text]]]) as tracker:
            async with forwarder(tracker.address) as service:
                desk = await Desk.tracker(service.port)
                await desk.ask([4, "rpi4", "", 1])
                session = await Desk.open(service.port)
                session.writer.write(OPENING)
                assert await session.reader.read() == encode_mismatch()

    run(main())
    assert "no device server for rpi4:t1-" in caplog.text


def test_what_was_not_leased_here_and_other_protocols_are_refused() -> None:
    async def main() -> None:
        with ScriptedTracker() as tracker:
            async with forwarder(tracker.address) as service:
                desk = await Desk.open(service.port)
                desk.writer.write(OPENING)
                assert await desk.reader.read() == encode_mismatch()
                desk = await Desk.open(service.port)
                desk.writer.write(b"GET / HTTP/1.1\r\n\r\n")
                assert (await desk.reader.read()).startswith(b"HTTP/1.1 400 ")
                desk = await Desk.open(service.port)
                desk.writer.write(b"\x16\x03\x01\x02")
                assert await desk.reader.read() == b""

    run(main())


def test_another_users_connection_is_refused(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        with ScriptedTracker() as tracker:
            async with forwarder(tracker.address) as service:
                monkeypatch.setattr(os, "geteuid", lambda: 4711)  # a second user cannot be caused everywhere
                desk = await Desk.open(service.port)
                desk.writer.write(MAGIC)
                assert await _rest(desk) == b""

    run(main())
    assert "a connection of another user of this machine" in caplog.text


async def _rest(desk: Desk) -> bytes:
    try:
        return await desk.reader.read()
    except ConnectionResetError:
        return b""


def test_nothing_is_left_open() -> None:
    def descriptors() -> int:
        return len(os.listdir("/proc/self/fd"))

    async def main() -> None:
        with ScriptedTracker() as tracker:
            async with forwarder(tracker.address) as service:
                before = descriptors()
                desks = [await Desk.tracker(service.port) for _ in range(5)]
                for desk in desks:
                    await desk.ask([6])
                    desk.writer.close()
                await until(lambda: not service._peers and descriptors() <= before)

    run(main())


# Whose lab


def a_credential(lab: str, *trackers: str) -> Credential:
    token = tokens.new(HolderKind.PERSON)
    return Credential(lab, "ann", trackers, ("sha256:" + "0" * 64, "sha256:" + "1" * 64), token.text)


@pytest.fixture
def labs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Writes this user's credentials of labs."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    for name in ("RPCSYS_TRACKER", "RPCSYS_TRACKER_HOST", "RPCSYS_LAB", "RPCSYS_CREDENTIAL"):
        monkeypatch.delenv(name, raising=False)

    def write(lab: str, *trackers: str) -> None:
        credential.write(credential.path_of(lab), a_credential(lab, *trackers))

    return write


def test_the_only_credential_says_which_lab(labs: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    labs("basement", "lab-host:9190", "other:9190")
    monkeypatch.setenv("TVM_TRACKER_HOST", "127.0.0.1")
    address, own = forward.find_lab(None)
    assert address == ("lab-host", 9190)
    assert own.lab == "basement"
    assert forward.find_lab(("other", 9190))[0] == ("other", 9190)


def test_no_credential_is_told_with_what_to_type(labs: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(Unauthorized, match="ask its keeper for an invitation, then type: rpcsys login") as caught:
        forward.find_lab(None)
    assert caught.value.exit_status == 4
    labs("basement", "lab-host:9190")
    with pytest.raises(Unauthorized, match="the lab at attic:9190 wants credentials"):
        forward.find_lab(("attic", 9190))
    monkeypatch.setenv("RPCSYS_TRACKER", "attic:9190")
    with pytest.raises(Unauthorized, match="the lab at attic:9190 wants credentials"):
        forward.find_lab(None)


def test_of_several_labs_one_is_to_be_named(labs: Any) -> None:
    labs("basement", "lab-host:9190")
    labs("attic", "attic:9190")
    with pytest.raises(ConfigError, match=r"give one with --tracker \(attic:9190, lab-host:9190\)"):
        forward.find_lab(None)
    assert forward.find_lab(("attic", 9190))[1].lab == "attic"
