"""TLS of a link to a lab's tracker, byte by byte: what answers is the lab's, or gets handshakes only."""

from __future__ import annotations

import ssl

import pytest

from rpcsys.errors import NoTls, WrongPin
from rpcsys.link import identity, tls
from rpcsys.link.credential import Credential
from rpcsys.link.lab_tls import LabTls

OWN, SPARE = identity.new(), identity.new()
CREDENTIAL = Credential(
    "basement", "ann", ("lab-host:9190",), (f"sha256:{OWN.pin}", f"sha256:{SPARE.pin}"), "rpcsys_p_aaaaaaaa_" + "A" * 43
)


def link() -> LabTls:
    return LabTls(("lab-host", 9190), CREDENTIAL)


def joined(own=OWN) -> tuple[LabTls, tls.Tunnel]:
    """A link and its tracker, after the handshake."""
    client, tracker = link(), tls.Tunnel(tls.server_context(own), server=True)
    tracker.feed(client.outgoing())
    tracker.handshake()
    assert client.receive(tracker.outgoing()) == b""
    tracker.feed(client.outgoing())
    assert tracker.handshake()
    return client, tracker


@pytest.mark.parametrize("own", [OWN, SPARE])
def test_either_pin_is_the_labs(own) -> None:
    client, tracker = joined(own)
    assert client.open
    assert client.by_spare is (own is SPARE)
    tracker.feed(client.seal(b"hello"))
    space = memoryview(bytearray(100))
    assert bytes(space[: tracker.read_into(space)]) == b"hello"
    tracker.write((b"x" * 200_000,))
    assert client.receive(tracker.outgoing()) == b"x" * 200_000


def test_another_key_is_named_and_gets_nothing() -> None:
    other = identity.new()
    client, tracker = link(), tls.Tunnel(tls.server_context(other), server=True)
    tracker.feed(client.outgoing())
    tracker.handshake()
    with pytest.raises(WrongPin, match=f"lab-host:9190 is not lab basement .its key is sha256:{other.pin[:8]}…"):
        client.receive(tracker.outgoing())
    assert not client.open


@pytest.mark.parametrize("data", [b"q\xf2\x02\x00\x05\x00", b"HTTP/1.1 400 Bad Request\r\n\r\n", bytes(100)])
def test_what_speaks_no_tls_is_told_apart(data) -> None:
    with pytest.raises(
        NoTls, match=r"lab-host:9190 does not speak TLS 1\.3, and you have a credential of lab basement"
    ) as refused:
        link().receive(data)
    assert "rpcsys tracker --lab DIR; if that lab is gone, remove the credential" in str(refused.value)


def test_what_came_before_the_end_is_not_lost() -> None:
    client, tracker = joined()
    tracker.write((b"the last words",))
    tracker.close()
    assert client.receive(tracker.outgoing()) == b"the last words"
    with pytest.raises(EOFError):
        client.receive(b"")


def test_changed_bytes_end_the_connection() -> None:
    client, tracker = joined()
    tracker.write((b"hello",))
    data = bytearray(tracker.outgoing())
    data[-1] ^= 1
    with pytest.raises(ssl.SSLError):
        client.receive(bytes(data))
