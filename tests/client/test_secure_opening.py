"""What a client says and raises while it opens an encrypted session: nothing, before the server has proven itself."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rpcsys.client import connect
from rpcsys.errors import MemoryLimit, NoTls, RpcsysError, ServerRefused, ServerUnreachable, UsageError
from rpcsys.link import tls
from rpcsys.stream import Ended
from rpcsys.wire import handshake, last_words, pinned_keys
from tests import secured
from tests.device import Device, scripted_server
from tests.secured import MATCH_KEY, OWN

OPTIONS = handshake.Options(session=handshake.SESSION)
ANSWER = handshake.encode_greeting(handshake.Greeting(handshake.SERVER, "key", OPTIONS))


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Iterator[Device]:
    monkeypatch.setattr(secured, "secure", True)
    with Device() as device:
        yield device


def refusal(*replies: bytes, hang_up: bool = True) -> RpcsysError:
    """What `connect` raises at a server that says this."""
    with scripted_server(*replies, hang_up=hang_up) as address:
        with pytest.raises(RpcsysError) as raised:
            connect(*address, key=MATCH_KEY.text, timeout=1.0)
        assert MATCH_KEY.secret not in str(raised.value)
        return raised.value


def test_a_session(device: Device) -> None:
    with device.session() as session:
        assert session.get_function("testing.echo")("said") == "said"
        assert session.info["key"] == "key"
    assert device.reports() == [{"served": "closed"}]


def test_a_server_without_tls_is_sent_nothing() -> None:
    error = refusal(ANSWER, b"\x02\0\0\0\x01\0\0\0" * 20)
    assert isinstance(error, NoTls)
    assert "closed the handshake (what was received is no TLS): it is older than this client, or something" in str(
        error
    )
    assert isinstance(refusal(ANSWER), NoTls)
    assert isinstance(refusal(ANSWER, b"\x15\x03\x03\x00\x02\x02\x28"), NoTls)
    assert isinstance(refusal(ANSWER, hang_up=False), ServerUnreachable)


def test_an_unknown_name_is_a_mismatch_without_tls() -> None:
    error = refusal(handshake.encode_mismatch())
    assert isinstance(error, ServerRefused)
    assert str(error).startswith(f"'key:t1-{OWN.pin[:4]}…' is not served at ")


def test_a_part_of_a_match_key_is_refused_before_anything_is_dialled() -> None:
    for part in (MATCH_KEY.name, MATCH_KEY.text[:-1], "key:t1-1f2e"):
        with pytest.raises(UsageError, match="no whole match key") as raised:
            connect("127.0.0.1", 1, key=part)
        assert MATCH_KEY.secret[:-1] not in str(raised.value)


def test_a_server_that_cannot_open_says_why_in_its_last_words() -> None:
    said = last_words.encode(MATCH_KEY, "MemoryLimit", "no memory is left")
    error = refusal(ANSWER, said)
    assert isinstance(error, MemoryLimit)
    assert str(error) == "no memory is left"
    forged = last_words.encode(MATCH_KEY._replace(secret="6" * 32), "MemoryLimit", "no memory is left")
    assert isinstance(refusal(ANSWER, forged), NoTls)


def told(act: Callable[[socket.socket], None]) -> tuple[bytes, RpcsysError]:
    """What a client says to a server that answers, does as ``act`` does, and hangs up; and what it raises."""
    said = bytearray()

    def serve() -> None:
        sock, _ = listener.accept()
        with sock:
            sock.settimeout(20)
            sock.sendall(ANSWER)
            act(sock)
            sock.shutdown(socket.SHUT_WR)
            while data := sock.recv(65536):
                said.extend(data)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve)
        thread.start()
        with pytest.raises(RpcsysError) as raised:
            connect(*listener.getsockname(), key=MATCH_KEY.text, timeout=10.0)
        thread.join(20)
    return bytes(said), raised.value


@given(st.binary(max_size=400))
@settings(max_examples=40)
def test_whatever_a_server_answers_it_gets_no_secret(garbage: bytes) -> None:
    said, _ = told(lambda sock: sock.sendall(garbage))
    assert MATCH_KEY.secret.encode() not in said


def test_a_server_that_ends_behind_the_handshake(device: Device) -> None:
    def handshakes(sock: socket.socket) -> None:
        greeting = 8 + len(f"client:{MATCH_KEY.name} -session=rpcsys/1")
        sock.recv(greeting, socket.MSG_WAITALL)
        tunnel = tls.Tunnel(tls.server_context(OWN), server=True)
        while not tunnel.handshake():
            sock.sendall(tunnel.outgoing())
            tunnel.feed(sock.recv(65536))

    said, error = told(handshakes)
    assert isinstance(error, NoTls)
    assert MATCH_KEY.secret.encode() not in said


def test_the_public_name_is_all_that_is_said_in_the_clear() -> None:
    said, _ = told(lambda sock: None)
    name = pinned_keys.PinnedMatchKey("key", OWN.pin, "").name
    greeting = handshake.encode_greeting(handshake.Greeting(handshake.CLIENT, name, OPTIONS))
    assert said.startswith(greeting + b"\x16\x03\x01")


def test_an_end_within_the_session_is_a_lost_session(device: Device) -> None:
    raw = device.raw()
    device.process.kill()
    with pytest.raises(Ended):
        raw.stream.receive_within(time.monotonic() + 20)
