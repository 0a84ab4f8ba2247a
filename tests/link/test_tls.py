"""TLS between bytes and bytes: pins, versions, cuts and changes; OpenSSL's own programs as the other end."""

from __future__ import annotations

import contextlib
import random
import socket
import ssl
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rpcsys.errors import NoTls, WrongPin
from rpcsys.link import identity, tls
from rpcsys.link.tls import Tunnel

OWN, OTHER = identity.from_seed(b"1" * 32), identity.from_seed(b"2" * 32)
SERVER, CLIENT = tls.server_context(OWN), tls.client_context()


def ends(*pins: str) -> tuple[Tunnel, Tunnel]:
    return Tunnel(CLIENT, server=False, pins=pins or (OWN.pin,)), Tunnel(SERVER, server=True)


def exchange(one: Tunnel, other: Tunnel) -> None:
    """Carry what each end has to send to the other."""
    other.feed(one.outgoing())
    one.feed(other.outgoing())


def opened() -> tuple[Tunnel, Tunnel]:
    client, server = ends()
    assert not client.handshake()
    while not (client.open and server.open):
        exchange(client, server)
        server.handshake()
        exchange(client, server)
        client.handshake()
    return client, server


def read(tunnel: Tunnel, size: int = 1 << 20) -> bytes:
    space = memoryview(bytearray(size))
    return bytes(space[: tunnel.read_into(space)])


def test_both_ways() -> None:
    client, server = opened()
    client.write([b"question"])
    exchange(client, server)
    assert read(server) == b"question"
    server.write([b"ans", b"wer"])
    exchange(client, server)
    assert read(client) == b"answer"
    assert read(client) == b""
    assert not client.pending


@pytest.mark.parametrize("pins", [(OTHER.pin,), (OTHER.pin, "0" * 64), ("",)])
def test_another_key_is_told_before_anything_is_sent(pins: tuple[str, ...]) -> None:
    client, server = ends(*pins)
    client.handshake()
    exchange(client, server)
    server.handshake()
    exchange(client, server)
    with pytest.raises(WrongPin, match=f"its key is sha256:{OWN.pin[:8]}…"):
        client.handshake()
    assert not client.open


def test_the_second_of_two_pins_is_as_good() -> None:
    client, server = ends(OTHER.pin, OWN.pin)
    client.handshake()
    exchange(client, server)
    server.handshake()
    exchange(client, server)
    assert client.handshake()


@given(st.lists(st.binary(max_size=40_000), max_size=8), st.randoms())
@settings(max_examples=40, deadline=None)
def test_pieces_of_any_size_arrive_through_any_cuts(pieces: list[bytes], chance: random.Random) -> None:
    client, server = opened()
    client.write(pieces)
    stream, got = client.outgoing(), b""
    while stream:
        cut = chance.randrange(1, 5000)
        server.feed(stream[:cut])
        stream = stream[cut:]
        got += read(server, chance.randrange(1, 70_000))
    while more := read(server):
        got += more
    assert got == b"".join(pieces)
    assert not server.pending


def test_arrays_of_any_shape_are_bytes() -> None:
    client, server = opened()
    client.write([memoryview(bytearray(range(240))).cast("B", (4, 60)), memoryview(b"x" * 1_000_000)])
    server.feed(client.outgoing())
    assert read(server, 1 << 21) == bytes(range(240)) + b"x" * 1_000_000


def test_small_pieces_share_a_record() -> None:
    client, _ = opened()
    client.write([b"x"] * 1000)
    assert len(client.outgoing()) == 1000 + 22


def test_a_piece_is_sealed_and_received_in_one_step_each() -> None:
    client, server = opened()
    space = memoryview(bytearray(100))
    sealed = client.seal(b"piece")
    assert client.outgoing() == b""
    assert server.receive(sealed[:10], space) == 0  # half a record
    assert server.receive(sealed[10:], space) == 5
    assert server.drained
    assert space[:5] == b"piece"
    last = client.seal(b"last")
    client.close()
    assert server.receive(last + client.outgoing(), space) == 4
    assert not server.drained  # the end is to be read
    with pytest.raises(EOFError):
        server.read_into(space)


def test_an_end_that_closes_is_told_from_one_that_is_cut() -> None:
    client, server = opened()
    client.write([b"last"])
    client.close()
    server.feed(client.outgoing())
    assert read(server) == b"last"
    with pytest.raises(EOFError):
        read(server)
    client, server = opened()
    server.feed_end()
    with pytest.raises(ssl.SSLError):
        read(server)


@given(st.integers(0, 10_000), st.integers(1, 255))
@settings(max_examples=60, deadline=None)
def test_a_changed_byte_is_never_data(place: int, change: int) -> None:
    client, server = opened()
    client.write([b"question" * 100])
    data = bytearray(client.outgoing())
    data[place % len(data)] ^= change
    server.feed(data)
    server.feed_end()
    with pytest.raises(ssl.SSLError):
        read(server)


def answered() -> tuple[Tunnel, Tunnel, bytearray]:
    """Two ends, and the server's whole answer to the client's first bytes."""
    client, server = ends()
    client.handshake()
    server.feed(client.outgoing())
    server.handshake()
    return client, server, bytearray(server.outgoing())


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_a_handshake_that_is_cut_waits(data: st.DataObject) -> None:
    client, _, answer = answered()
    client.feed(answer[: data.draw(st.integers(0, len(answer) - 1))])
    assert not client.handshake()
    assert not client.open


@given(st.data())
@settings(max_examples=100, deadline=None)
def test_a_handshake_that_was_changed_opens_nothing_else(data: st.DataObject) -> None:
    """It fails or waits; or what was changed has no meaning, as the version in a record's head, and the ends agree."""
    client, server, answer = answered()
    answer[data.draw(st.integers(0, len(answer) - 1))] ^= data.draw(st.integers(1, 255))
    client.feed(answer)
    with contextlib.suppress(NoTls):
        client.handshake()
    if client.open:
        client.write([b"question"])
        server.feed(client.outgoing())
        assert server.handshake()
        assert read(server) == b"question"


@given(st.binary(min_size=1, max_size=300))
@settings(max_examples=100, deadline=None)
def test_garbage_is_refused_or_waits_for_more(garbage: bytes) -> None:
    server = Tunnel(SERVER, server=True)
    server.feed(garbage)
    with contextlib.suppress(NoTls):
        assert not server.handshake()
    assert not server.open


def test_why_a_handshake_fails_is_told_in_words() -> None:
    server = Tunnel(SERVER, server=True)
    server.feed(b"GET / HTTP/1.1\r\n\r\n")
    with pytest.raises(NoTls, match=r"^the TLS handshake failed: http request$"):
        server.handshake()


@pytest.fixture
def listening() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        yield sock


def serve(listening: socket.socket) -> None:
    """Serve one connection: echo until its end."""
    sock, _ = listening.accept()
    tunnel = Tunnel(SERVER, server=True)
    with sock:
        sock.settimeout(20)
        while data := sock.recv(65536):
            tunnel.feed(data)
            try:
                if tunnel.open or tunnel.handshake():
                    tunnel.write([read(tunnel)])
            except (NoTls, EOFError, ssl.SSLError):
                sock.sendall(tunnel.outgoing())
                return
            sock.sendall(tunnel.outgoing())


@pytest.mark.parametrize(("version", "works"), [("-tls1_3", True), ("-tls1_2", False), ("-tls1_1", False)])
def test_openssls_client_gets_1_3_and_nothing_older(listening: socket.socket, version: str, works: bool) -> None:
    thread = threading.Thread(target=serve, args=(listening,))
    thread.start()
    address = f"127.0.0.1:{listening.getsockname()[1]}"
    command = ["openssl", "s_client", "-connect", address, version, "-ign_eof", "-showcerts"]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    assert process.stdin is not None
    assert process.stdout is not None
    output = b""
    try:
        if works:
            process.stdin.write(b"question\n")
            process.stdin.flush()
            while b"question\n" not in output:
                output += process.stdout.readline()
            assert b"TLSv1.3" in output
            assert b"ED25519" in output
        else:
            output = process.communicate(timeout=20)[0]
            assert process.returncode
            assert b"Cipher is (NONE)" in output
    finally:
        process.kill()
        process.communicate()
        thread.join(20)
    assert not thread.is_alive()


def test_openssls_server_is_known_by_its_pin(tmp_path: Path) -> None:
    (tmp_path / "own.pem").write_text(OWN.pem())
    command = [
        "openssl",
        "s_server",
        "-accept",
        "127.0.0.1:0",
        "-cert",
        "own.pem",
        "-key",
        "own.pem",
        "-rev",
        "-naccept",
        "1",
    ]
    process = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert process.stdout is not None
    try:
        while not (line := process.stdout.readline()).startswith("ACCEPT"):
            assert line, "s_server ended"
        host, _, port = line.split()[1].rpartition(":")
        with socket.create_connection((host, int(port)), 20) as sock:
            client = Tunnel(CLIENT, server=False, pins=(OWN.pin,))
            while not client.handshake():
                sock.sendall(client.outgoing())
                client.feed(sock.recv(65536))
            client.write([b"abc\n"])
            sock.sendall(client.outgoing())
            got = b""
            while len(got) < 4:
                client.feed(sock.recv(65536))
                got += read(client)
            assert got == b"cba\n"
    finally:
        process.kill()
        process.communicate()


def test_the_key_is_in_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    tls.server_context(OWN)
    assert list(tmp_path.iterdir()) == []


def test_checks_of_certificates_are_off_in_one_place() -> None:
    root = Path(tls.__file__).parent.parent
    places = [path.name for path in root.rglob("*.py") if "CERT_NONE" in path.read_text(encoding="utf-8")]
    assert places == ["tls.py"]
